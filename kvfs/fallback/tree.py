"""All files below a root: what they take on disk, and the chunks that nobody uses any more."""

# Descriptors: the system's own calls.
# ruff: noqa: PTH116

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kvfs.fallback import locks
from kvfs.fallback.directories import open_directory
from kvfs.fallback.names import is_leaf, key_of
from kvfs.fallback.ownership import LOCK_NAME
from kvfs.fallback.space import DIRECTORY_BYTES, counted_bytes

# Of `st_blocks`.
_BLOCK_BYTES: Final = 512
# Deeper than any model's name; whoever nests directories on purpose must not exhaust the stack.
_DEPTH_MAX: Final = 32
_LIST_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnusedChunk(NamedTuple):
    """A chunk of a namespace that no engine has open; the first one in order is the oldest."""

    written_ns: int
    counted_bytes: int
    namespace: str
    first: str
    second: str
    name: str


class Stopped(Exception):  # noqa: N818 - no error
    """The walk was to end early."""


def count_tree(root: str, stopped: Callable[[], bool]) -> int | None:
    """Return what everything below `root` takes on disk, itself included. Blocks for long.

    A chunk's file and its directory count as more where that is less than what a store reserves for them.
    Links are not followed and other file systems not entered. None if something could not be read, or after
    `stopped`.
    """
    try:
        with _opened(root, None, links=True) as directory:
            status = os.fstat(directory)
            return status.st_blocks * _BLOCK_BYTES + _count(directory, "", status.st_dev, 0, stopped)
    except (OSError, Stopped):
        return None


def _count(directory: int, parent: str, device: int, depth: int, stopped: Callable[[], bool]) -> int:
    if depth > _DEPTH_MAX:
        raise Stopped
    total = 0
    for name in _names(directory, stopped):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_dev != device:
            continue
        total += max(status.st_blocks * _BLOCK_BYTES, _least_of(parent, name, status))
        if stat.S_ISDIR(status.st_mode):
            # Removed since.
            with contextlib.suppress(FileNotFoundError), _opened(name, directory) as inner:
                total += _count(inner, name, device, depth + 1, stopped)
    return total


def _least_of(parent: str, name: str, status: os.stat_result) -> int:
    """Return what stores have reserved, and evicting gives back."""
    if stat.S_ISDIR(status.st_mode):
        return DIRECTORY_BYTES if is_leaf(name) else 0
    return counted_bytes(status.st_size) if stat.S_ISREG(status.st_mode) and is_leaf(parent) else 0


def unused_chunks(root: str, own: str, count: int, stopped: Callable[[], bool]) -> list[UnusedChunk]:
    """Return the oldest chunks in namespaces below `root` that no engine has open, oldest first.

    Blocks for long.

    Args:
        root: The directory of all namespaces.
        own: The caller's namespace, which is passed over.
        count: How many chunks at most.
        stopped: Whether to end early; nothing is returned then.
    """
    try:
        status = os.stat(own)
        with _opened(root, None, links=True) as directory:
            found = _find(directory, root, (status.st_dev, status.st_ino), 0, stopped)
            return heapq.nsmallest(count, found)
    except (OSError, Stopped):
        return []


def remove_unused(chunk: UnusedChunk) -> int:
    """Remove it, and its directory if that is empty then, unless it has changed; return what both counted as.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        directory = open_directory(chunk.namespace, chunk.first, chunk.second, None)
    except FileNotFoundError:
        return 0
    try:
        status = os.stat(chunk.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_mtime_ns != chunk.written_ns:
            return 0
        os.unlink(chunk.name, dir_fd=directory)
    except FileNotFoundError:
        return 0
    finally:
        os.close(directory)
    return chunk.counted_bytes + prune(chunk.namespace, chunk.first, chunk.second)


def prune(base_path: str, first: str, second: str) -> int:
    """Remove the directory of a chunk if it is empty, and return what it counted as. Blocks; never fails.

    The first level stays. 0 where it is not empty, or another has removed it.
    """
    with contextlib.suppress(OSError), _opened(f"{base_path}/{first}", None) as parent:
        os.rmdir(second, dir_fd=parent)
        return DIRECTORY_BYTES
    return 0


def _find(
    directory: int, path: str, own: tuple[int, int], depth: int, stopped: Callable[[], bool]
) -> Iterator[UnusedChunk]:
    """Yield the chunks below a directory, from all namespaces that nobody uses."""
    status = os.fstat(directory)
    if depth > _DEPTH_MAX or status.st_dev != own[0] or status.st_ino == own[1]:
        return
    names = list(_names(directory, stopped))
    is_namespace = LOCK_NAME in names
    if is_namespace and not _is_unused(directory):
        return
    for name in names:
        # No directory, not readable, gone: nothing is found there.
        with contextlib.suppress(OSError), _opened(name, directory) as inner:
            if is_namespace:
                yield from _collect(inner, path, name, stopped)
            else:
                yield from _find(inner, f"{path}/{name}", own, depth + 1, stopped)


def _collect(
    directory: int, namespace: str, first: str, stopped: Callable[[], bool]
) -> Iterator[UnusedChunk]:
    for second in _names(directory, stopped):
        with contextlib.suppress(OSError), _opened(second, directory) as inner:
            for name in _names(inner, stopped):
                if key_of(first, second, name) is None:
                    continue
                status = os.stat(name, dir_fd=inner, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    size_bytes = counted_bytes(status.st_size)
                    yield UnusedChunk(status.st_mtime_ns, size_bytes, namespace, first, second, name)


def _is_unused(directory: int) -> bool:
    """Tell whether no engine has the namespace open, as far as its lock file can tell."""
    try:
        fd = os.open(LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not locks.is_shared(fd, 0)
    except OSError:
        return False
    finally:
        # By hand: a forked child has the same open file description and would keep its lock.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextlib.contextmanager
def _opened(name: str, parent: int | None, *, links: bool = False) -> Iterator[int]:
    fd = os.open(name, _LIST_FLAGS & ~(os.O_NOFOLLOW if links else 0), dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _names(directory: int, stopped: Callable[[], bool]) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if stopped():
                raise Stopped
            yield entry.name
