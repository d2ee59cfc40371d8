"""Small files that processes share: read whole or refused, written whole or not at all."""

# Descriptors, flags and modes: the system's own calls.
# ruff: noqa: PTH105, PTH108, PTH118, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Final

from kvfs.permissions import FILE_MODE, set_file_mode

_LOCK_TIMEOUT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.01
_TEMPORARY: Final = re.compile(r"(?:config|kvfs)\.json_[0-9a-f]{32}\.tmp")
# What file systems without hard links say to link(2).
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
# What file systems that cannot sync one file say to fsync(2).
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def read(path: str, size_max_bytes: int) -> bytes | None:
    """Return the content of a small file, None where there is none. Blocks.

    Raises:
        OSError: What the system said; ELOOP for a symbolic link, EISDIR for a directory, EINVAL for
            anything else that is no regular file, EFBIG for more than `size_max_bytes`.
    """
    try:
        # Without O_NONBLOCK a FIFO would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = b""
        while len(content) <= size_max_bytes:
            part = os.read(fd, size_max_bytes + 1 - len(content))
            if not part:
                return content
            content += part
        raise OSError(errno.EFBIG, f"more than {size_max_bytes} bytes", path)
    finally:
        os.close(fd)


def publish(path: str, content: bytes, mode: int = FILE_MODE) -> bool:
    """Write a file under a name that nothing has; False when something has it, which stays. Blocks.

    Where a file system has no hard links, only the directory's lock keeps two writers apart.

    Raises:
        OSError: The file cannot be written.
    """
    with _temporary(path, content, mode) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(path):
                return False
            os.replace(temporary, path)
        return True


def replace(path: str, content: bytes, mode: int = FILE_MODE) -> None:
    """Write a file in the place of what has its name, which no reader misses meanwhile. Blocks.

    Raises:
        OSError: The file cannot be written.
    """
    with _temporary(path, content, mode) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def locked(directory: str) -> Iterator[bool]:
    """Keep other starting engines out of a directory, as long as the kernel and they let us.

    Blocks for at most five seconds. The lock goes with its process, however that ends.

    Yields:
        Whether the lock is held: not every file system locks directories (NFS does not).
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    held = False
    try:
        held = _lock(fd)
        if held:
            _reclaim(directory)
        yield held
    finally:
        # By hand: a forked child has the same open file description and would keep the lock.
        if held:
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(fd: int) -> bool:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return False
        else:
            return True


def _reclaim(directory: str) -> None:
    """Remove temporaries that killed writers left: whoever still writes one has the lock that we hold."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if _TEMPORARY.fullmatch(name):
                os.unlink(os.path.join(directory, name))


@contextlib.contextmanager
def _temporary(path: str, content: bytes, mode: int) -> Iterator[str]:
    """Write a file beside `path` and yield its name; it is gone afterwards unless it got another one."""
    # From the kernel each time: a seed in memory would be copied by fork().
    temporary = f"{path}_{secrets.token_hex(16)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, mode)
    try:
        try:
            set_file_mode(fd, mode)
            while content:
                content = content[os.write(fd, content) :]
            _sync(fd)
        finally:
            # Network file systems report a full disk here.
            os.close(fd)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _sync(fd: int) -> None:
    # Once in a namespace's life: a power failure must not leave an empty file, which nobody would trust.
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
