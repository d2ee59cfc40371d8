"""Locks of bytes of a file that belong to an open file description: the kernel drops them with it."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

# struct flock of 64-bit Linux: type, whence, start, length, pid; the kernel wants pid to be 0.
_FLOCK: Final = "hhqqi4x"


def share(fd: int, offset: int) -> None:
    """Hold a read lock of one byte, which need not be there.

    Raises:
        OSError: Somebody holds a write lock, or the file system has no locks.
    """
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, offset, 1))


def release_all(fd: int) -> None:
    """Give up every lock of this kind.

    Raises:
        OSError: The file system has no locks.
    """
    # No length: to the end.
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, 0, 0))


def is_shared(fd: int, offset: int, count: int = 1) -> bool:
    """Tell whether another open file description holds a lock of one of these bytes.

    Raises:
        OSError: The file system has no locks.
    """
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, offset, count))
    kind: int = struct.unpack(_FLOCK, found)[0]
    return kind != fcntl.F_UNLCK


def _lock(kind: int, offset: int, count: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, offset, count, 0)
