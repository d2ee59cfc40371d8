"""Who may read chunks, and what a process sees that may not."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import OneChunk

CHUNK = bytes(range(256)) * 32
NOBODY = 65534


@pytest.fixture
def unprivileged(storage: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that gives up root's rights until the test ends; nothing to do for other users."""
    if os.geteuid() != 0:
        yield lambda: None
        return
    storage.chmod(0o755)
    # The C library changes all threads of the process.
    yield lambda: os.seteuid(NOBODY)
    os.seteuid(0)


@pytest.fixture
def directory(one_chunk: OneChunk) -> Path:
    """Return the chunk's directory, made and open to everybody."""
    for parent in (one_chunk.path.parent.parent, one_chunk.path.parent):
        parent.mkdir()
        parent.chmod(0o777)
    return one_chunk.path.parent


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077], ids=oct)
def test_store_any_umask_gives_owner_only_modes(one_chunk: OneChunk, umask: int) -> None:
    previous = os.umask(umask)
    try:
        assert one_chunk.store(CHUNK) == 0
    finally:
        os.umask(previous)
    assert _mode(one_chunk.path) == 0o600
    assert _mode(one_chunk.path.parent) == 0o700
    assert _mode(one_chunk.path.parent.parent) == 0o700


def test_store_existing_directories_keep_their_modes(one_chunk: OneChunk, directory: Path) -> None:
    assert one_chunk.store(CHUNK) == 0
    assert _mode(directory) == 0o777
    assert _mode(one_chunk.path) == 0o600


# A directory of the session's own that other users can enter: not below pytest's, which is closed to them.
@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_load_unreadable_file_fails_with_eacces_and_leaves_it(
    one_chunk: OneChunk, directory: Path, unprivileged: Callable[[], None]
) -> None:
    one_chunk.path.write_bytes(CHUNK[:-1])
    one_chunk.path.chmod(0)
    unprivileged()
    assert one_chunk.load()[0] == errno.EACCES
    # Truncated, but that was not proven: nobody could open it.
    assert [path.name for path in directory.iterdir()] == [one_chunk.path.name]


@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_store_unwritable_directory_fails_with_eacces(
    one_chunk: OneChunk, directory: Path, unprivileged: Callable[[], None]
) -> None:
    directory.chmod(0o555)
    unprivileged()
    assert one_chunk.store(CHUNK) == errno.EACCES
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_load_truncated_file_in_unwritable_directory_still_fails_with_ebadmsg(
    one_chunk: OneChunk, directory: Path, unprivileged: Callable[[], None]
) -> None:
    one_chunk.path.write_bytes(CHUNK[:-1])
    one_chunk.path.chmod(0o444)
    directory.chmod(0o555)
    unprivileged()
    # It cannot be removed either; that is no reason for another outcome, and the next store tries again.
    assert one_chunk.load()[0] == errno.EBADMSG
    assert one_chunk.path.exists()
