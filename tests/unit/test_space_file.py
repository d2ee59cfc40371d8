"""The file that processes share: whatever stands in it, and whatever lies at its place."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that
from room import SLACK_BYTES, RoomWatch

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

CHUNK = 16384
COST = CHUNK + 4096
CAPACITY = 64 * COST
SLOTS = 1024
SIZE_BYTES = 24 + 8 * SLOTS
NAME = "kvfs.space"
MAGIC = b"KVFSSPC1"


def _image(*, magic: bytes = MAGIC, counted: int = 1, unowned: int = 0, slot: int = 0) -> bytes:
    return struct.pack(f"=8sQq{SLOTS}q", magic, counted, unowned, *([slot] * SLOTS))


def _start(start_rig: StartRig, base: Path) -> Rig:
    rig = start_rig(base, num_chunks=4, chunk_size_bytes=CHUNK, capacity_bytes=CAPACITY)
    assert rig.await_stats(space_counted=1)
    return rig


def _store(rig: Rig, key: bytes) -> None:
    assert await_that(lambda: rig.store([key], [0]).outcomes == [0])


def _assert_works(rig: Rig, first: int) -> None:
    """Store more than the capacity, and nothing of it in vain."""
    keys = [rig.key(number) for number in range(first, first + 100)]
    for key in keys:
        _store(rig, key)
    stats = rig.engine.stats()
    assert 0 < stats["used_bytes"] <= CAPACITY
    assert stats["evicted_chunks"] > 30


BROKEN = {
    "empty": b"",
    "one-byte": b"K",
    "zeros": bytes(SIZE_BYTES),
    "magic-alone": MAGIC,
    "one-byte-short": _image()[:-1],
    "longer": _image() + bytes(5000),
    "other-magic": _image(magic=b"KVFSSPC2"),
    "counted-3": _image(counted=3),
    "counted-huge": _image(counted=2**64 - 1),
    "unowned-negative": _image(unowned=-1),
    "unowned-huge": _image(unowned=2**63 - 1),
    "unowned-wrong": _image(unowned=2**60),
    "slots-huge": _image(slot=2**63 - 1),
    "slots-least": _image(slot=-(2**63)),
    "slots-wrong": _image(slot=2**50),
    "slots-wrong-negative": _image(slot=-(2**50)),
    "random": random.Random(889).randbytes(SIZE_BYTES),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_start_with_any_content_counts_anew_and_works(
    start_rig: StartRig, storage: Path, content: bytes
) -> None:
    (storage / NAME).write_bytes(content)
    with RoomWatch(storage) as watch:
        _assert_works(_start(start_rig, storage), 0)
    assert watch.peak_bytes <= CAPACITY + SLACK_BYTES


def test_start_with_every_truncation_counts_anew(start_rig: StartRig, tmp_path: Path) -> None:
    whole = _image(unowned=2**40)
    for size in [*range(40), *range(40, SIZE_BYTES, 509)]:
        (tmp_path / NAME).write_bytes(whole[:size])
        rig = _start(start_rig, tmp_path)
        # Counted, and not read.
        assert rig.engine.stats()["used_bytes"] < 1 << 20, size
        rig.engine.close()


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_content_that_breaks_while_it_is_used_is_counted_anew(
    start_rig: StartRig, tmp_path: Path, content: bytes
) -> None:
    rig = _start(start_rig, tmp_path)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    path = tmp_path / NAME
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)
    assert path.stat().st_ino == inode
    if content in (
        BROKEN["unowned-wrong"],
        BROKEN["slots-wrong"],
        BROKEN["longer"],
    ):
        # These hold together. What they say counts until the next start.
        rig.engine.close()
        rig = _start(start_rig, tmp_path)
    else:
        assert await_that(lambda: path.stat().st_size == SIZE_BYTES and path.read_bytes()[:8] == MAGIC)
        assert rig.await_stats(space_counted=1)
    _assert_works(rig, 100)


def test_file_that_is_removed_while_it_is_used_sheds_no_chunk_for_ever(
    start_rig: StartRig, tmp_path: Path
) -> None:
    rig = _start(start_rig, tmp_path)
    (tmp_path / NAME).unlink()
    keys = [rig.key(number) for number in range(300)]
    outcomes = {code for key in keys for code in rig.store([key], [0]).outcomes}
    assert outcomes <= {0, errno.EAGAIN}
    rig.engine.close()
    _assert_works(_start(start_rig, tmp_path), 1000)


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(_image())
    path.symlink_to(target)


def _make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("make", [Path.mkdir, _make_fifo, _make_link, _make_dangling_link])
def test_start_with_anything_else_at_its_place_says_so(
    start_rig: StartRig, storage: Path, make: Callable[[Path], None]
) -> None:
    path = storage / NAME
    make(path)
    kind = path.lstat().st_mode
    with pytest.raises(OSError, match=r"kvfs\.space"):
        start_rig(storage, chunk_size_bytes=CHUNK, capacity_bytes=CAPACITY)
    assert path.lstat().st_mode == kind
    assert not (storage / "nowhere").exists()
    # Nobody holds the namespace after that.
    assert start_rig(storage, chunk_size_bytes=CHUNK, index_mode="owner").engine.stats()["owner"] == 1


def test_it_has_the_mode_of_new_files(start_rig: StartRig, storage: Path) -> None:
    start_rig(storage, chunk_size_bytes=CHUNK, capacity_bytes=CAPACITY, file_mode=0o640)
    assert (storage / NAME).stat().st_mode & 0o777 == 0o640


def test_root_is_made_if_it_is_missing(start_rig: StartRig, storage: Path) -> None:
    root = storage / "a" / "root"
    start_rig(storage / "ns", chunk_size_bytes=CHUNK, capacity_bytes=CAPACITY, space_root=str(root))
    # Written with the first change.
    assert await_that(lambda: (root / NAME).stat().st_size == SIZE_BYTES)
