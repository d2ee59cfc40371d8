"""Keep the page cache out of a measurement, and prove from the kernel's own counters that it stayed out."""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class StorageBytes:
    """What this process has moved to and from block devices since it started."""

    read: int
    written: int


def storage_bytes() -> StorageBytes:
    """Return the process's counters: they grow when a request goes to a device, not on a cache hit."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return StorageBytes(int(fields["read_bytes"]), int(fields["write_bytes"]))


def drop(paths: Iterable[Path]) -> None:
    """Write files out and take their pages out of the cache. Blocks."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(paths: Iterable[Path]) -> int:
    """Return how much of these files lies in the page cache.

    Raises:
        OSError: A file cannot be opened or asked.
    """
    return sum(_resident_bytes(path) for path in paths)


def _resident_bytes(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes == 0:
            return 0
        address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap", str(path))
    try:
        pages = -(-size_bytes // mmap.PAGESIZE)
        states = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, size_bytes, states) != 0:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        return sum(state & 1 for state in states.raw) * mmap.PAGESIZE
    finally:
        _libc.munmap(address, size_bytes)


def sync_file_system(directory: Path) -> None:
    """Write out what the file system of a directory still holds back, so that nobody is charged for it later.

    Raises:
        OSError: The file system refused.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(directory))
    finally:
        os.close(descriptor)


def takes_o_direct(directory: Path) -> bool:
    """Write one page past the page cache in a directory and say whether that worked."""
    path = directory / f".o_direct_{os.getpid()}"
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o600)
        try:
            os.write(descriptor, page)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        page.close()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return True
