"""What a store, a load and a lookup do about whatever lies at a chunk's path, at both levels."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import OneChunk

CHUNK = bytes(range(256)) * 32
OTHER = bytes(len(CHUNK))


def _place_link(path: Path) -> None:
    (path.parent / "target").write_bytes(OTHER)
    path.symlink_to("target")


PLACE: dict[str, Callable[[Path], object]] = {
    "short": lambda path: path.write_bytes(CHUNK[:-1]),
    "short-by-a-page": lambda path: path.write_bytes(CHUNK[:4096]),
    "empty": lambda path: path.touch(),
    "long": lambda path: path.write_bytes(CHUNK + b"x"),
    "twice-the-size": lambda path: path.write_bytes(CHUNK + CHUNK),
    "link": _place_link,
    "dangling-link": lambda path: path.symlink_to("nowhere"),
    "link-to-itself": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
}
REPLACED = [name for name in PLACE if name != "directory"]


@pytest.fixture
def place(one_chunk: OneChunk) -> Callable[[str], None]:
    """Return a function that puts an object at the chunk's path."""

    def put(name: str) -> None:
        one_chunk.path.parent.mkdir(parents=True)
        PLACE[name](one_chunk.path)

    return put


def _temporaries(chunk: OneChunk) -> list[str]:
    return [path.name for path in chunk.path.parent.iterdir() if path.name.endswith(".tmp")]


def test_store_nothing_there_round_trips(one_chunk: OneChunk) -> None:
    assert not one_chunk.present()
    assert one_chunk.store(CHUNK) == 0
    assert one_chunk.path.read_bytes() == CHUNK
    assert one_chunk.present()
    assert one_chunk.load() == (0, CHUNK)
    # A good load leaves the file.
    assert one_chunk.path.read_bytes() == CHUNK
    assert [path.name for path in one_chunk.path.parent.iterdir()] == [one_chunk.path.name]


def test_store_good_file_there_leaves_it_untouched(one_chunk: OneChunk) -> None:
    one_chunk.path.parent.mkdir(parents=True)
    one_chunk.path.write_bytes(CHUNK)
    os.utime(one_chunk.path, ns=(10**18, 10**18))
    before = one_chunk.path.stat()
    assert one_chunk.store(OTHER) == 0
    after = one_chunk.path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert one_chunk.path.read_bytes() == CHUNK
    assert _temporaries(one_chunk) == []


@pytest.mark.parametrize("name", REPLACED)
def test_store_bad_object_there_heals_it(
    one_chunk: OneChunk, place: Callable[[str], None], name: str
) -> None:
    place(name)
    assert one_chunk.store(CHUNK) == 0
    assert stat.S_ISREG(one_chunk.path.lstat().st_mode)
    assert one_chunk.path.read_bytes() == CHUNK
    assert one_chunk.present()
    assert one_chunk.load() == (0, CHUNK)
    assert _temporaries(one_chunk) == []
    if name == "link":
        assert (one_chunk.path.parent / "target").read_bytes() == OTHER


def test_store_directory_there_fails_with_eisdir_and_leaves_no_temporary(
    one_chunk: OneChunk, place: Callable[[str], None]
) -> None:
    place("directory")
    assert one_chunk.store(CHUNK) == errno.EISDIR
    assert one_chunk.path.is_dir()
    assert list(one_chunk.path.iterdir()) == []
    assert _temporaries(one_chunk) == []


def test_store_parent_is_a_file_fails_with_enotdir(one_chunk: OneChunk) -> None:
    one_chunk.path.parent.parent.mkdir(parents=True)
    one_chunk.path.parent.write_bytes(b"in the way")
    assert one_chunk.store(CHUNK) == errno.ENOTDIR
    assert one_chunk.load()[0] == errno.ENOTDIR
    assert not one_chunk.present()
    assert one_chunk.path.parent.read_bytes() == b"in the way"


@pytest.mark.parametrize("name", ["short", "short-by-a-page", "empty"])
def test_load_truncated_file_there_removes_it(
    one_chunk: OneChunk, place: Callable[[str], None], name: str
) -> None:
    place(name)
    assert one_chunk.load()[0] == errno.EBADMSG
    assert not os.path.lexists(one_chunk.path)
    assert one_chunk.load()[0] == errno.ENOENT


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("long", errno.EBADMSG),
        ("twice-the-size", errno.EBADMSG),
        ("link", errno.ELOOP),
        ("dangling-link", errno.ELOOP),
        ("link-to-itself", errno.ELOOP),
        ("fifo", errno.EBADMSG),
        ("directory", errno.EISDIR),
    ],
)
def test_load_bad_object_there_fails_and_leaves_it(
    one_chunk: OneChunk, place: Callable[[str], None], name: str, outcome: int
) -> None:
    place(name)
    before = one_chunk.path.lstat()
    assert one_chunk.load()[0] == outcome
    after = one_chunk.path.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    if name == "link":
        assert (one_chunk.path.parent / "target").read_bytes() == OTHER


def test_load_missing_chunk_fails_with_enoent(one_chunk: OneChunk) -> None:
    assert one_chunk.load()[0] == errno.ENOENT
    one_chunk.path.parent.mkdir(parents=True)
    assert one_chunk.load()[0] == errno.ENOENT


@pytest.mark.parametrize("name", ["empty", "link", "dangling-link", "link-to-itself", "fifo", "directory"])
def test_lookup_bad_object_there_is_absent(
    one_chunk: OneChunk, place: Callable[[str], None], name: str
) -> None:
    place(name)
    assert not one_chunk.present()
