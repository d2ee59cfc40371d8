"""Whether an engine is alone with its namespace: the locks on `kvfs.lock` of docs/lookup.md."""

# Descriptors, flags and modes: the system's own calls.
# ruff: noqa: PTH116

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from typing import Final

from kvfs.fallback import locks
from kvfs.fallback.writers import writer_number
from kvfs.permissions import set_file_mode

LOCK_NAME: Final = "kvfs.lock"
# Whoever shares holds this byte. Writers hold one each, far behind all bytes that there are.
_SHARED_BYTE: Final = 0
# For so long the owner believes that it still is alone.
_CONFIRMED_S: Final = 0.05


class Ownership:
    """The place of one engine among those of its namespace. Thread-safe; no call waits for another engine.

    The locks belong to an open file description, so that two engines of one process see each other, too.
    Until `release` the writer of this process's temporaries counts as alive.

    Args:
        base_path: The namespace's directory, which exists.
        index_mode: "owner", "shared", or "auto": the owner if nobody else is there.
        file_mode: Mode of the lock file, if it is made.

    Raises:
        OSError: Only for "owner": EBUSY if somebody else uses the namespace, or why locks do not work there.
    """

    def __init__(self, base_path: str, index_mode: str, file_mode: int) -> None:
        self._path = f"{base_path}/{LOCK_NAME}"
        self._file_mode = file_mode
        self._lock = threading.Lock()  # guards all that follows
        self._fd: int | None = None
        self._owner = False
        self._found: tuple[int, int, int] | None = None
        self._confirmed_at = 0.0
        if index_mode != "shared":
            problem = self._try_to_own()
            if self._owner:
                return
            if index_mode == "owner":
                raise OSError(problem, _refusal(problem), base_path)
        self._share()

    @property
    def owner(self) -> bool:
        """Whether this engine was the owner when it last asked."""
        return self._owner

    def confirm(self) -> bool:
        """Tell whether this engine is the owner, asking the kernel again after 50 ms; a no is for good."""
        with self._lock:
            if self._fd is None or not self._owner:
                return False
            now = time.monotonic()
            if now - self._confirmed_at <= _CONFIRMED_S:
                return True
            if self._is_alone(self._fd):
                self._confirmed_at = now
                return True
            self._become_shared(self._fd)
            return False

    def give_up(self) -> None:
        """Share from now on."""
        with self._lock:
            if self._fd is not None and self._owner:
                self._become_shared(self._fd)

    def is_alive(self, writer: int) -> bool:
        """Tell whether the writer of this number has the namespace open; what cannot be told may be."""
        with self._lock:
            if writer == writer_number() or self._fd is None:
                return True
            try:
                return locks.is_shared(self._fd, _byte_of(writer))
            except OSError:
                return True

    def release(self) -> None:
        """Give the place up, whatever it is. May be called again."""
        with self._lock:
            self._owner = False
            fd, self._fd = self._fd, None
            if fd is not None:
                _close(fd)

    def _try_to_own(self) -> int:
        """Become the owner if that place is free; return the errno that says why not, or 0."""
        fd: int | None = None
        try:
            fd = _open(self._path, self._file_mode)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(fd)
            self._found = (status.st_dev, status.st_ino, status.st_size)
            now = time.monotonic()
            if not self._is_alone(fd):
                raise BlockingIOError(errno.EAGAIN, "shared")
        except OSError as error:
            if fd is not None:
                _close(fd)
            busy = fd is not None and error.errno == errno.EAGAIN
            return errno.EBUSY if busy else error.errno or errno.EIO
        self._fd = fd
        self._owner = True
        self._confirmed_at = now
        _announce(fd)
        return 0

    def _become_shared(self, owned: int) -> None:
        self._owner = False
        self._fd = None
        # Before the other place is given up, so that nobody finds both free.
        self._share()
        _close(owned)

    def _share(self) -> None:
        """Let owners know that somebody shares; where that does not work, share all the same."""
        try:
            self._fd = _open(self._path, self._file_mode)
        except OSError:
            return
        with contextlib.suppress(OSError):
            locks.share(self._fd, _SHARED_BYTE)
        _announce(self._fd)
        # The lock goes when we do. A length stays: an owner that does not ask meanwhile still learns of us.
        with contextlib.suppress(OSError):
            _grow(self._path)

    def _is_alone(self, fd: int) -> bool:
        """Tell whether nobody shares or has shared, and nobody can without our seeing it."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
            if (status.st_dev, status.st_ino, status.st_size) != self._found:
                return False
            return not locks.is_shared(fd, _SHARED_BYTE)
        except OSError:
            return False


def _refusal(problem: int) -> str:
    if problem == errno.EBUSY:
        return "another kvfs uses the namespace, so this one cannot be its owner; use 'auto' or 'shared'"
    return f"cannot lock {LOCK_NAME} to be the owner ({os.strerror(problem)}); use 'auto' or 'shared'"


def _byte_of(writer: int) -> int:
    return 2 + writer // 4


def _announce(fd: int) -> None:
    """Let others know that this process's temporaries have a writer who is alive."""
    # Where there are no locks nobody can ask, either.
    with contextlib.suppress(OSError):
        locks.share(fd, _byte_of(writer_number()))


def _open(path: str, mode: int) -> int:
    # To read, which both kinds of lock allow: the file system stays free to become read-only.
    flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags, mode)
    try:
        set_file_mode(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def _grow(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.ftruncate(fd, os.fstat(fd).st_size + 1)
    finally:
        os.close(fd)


def _close(fd: int) -> None:
    # By hand: a forked child has the same open file description and would keep its locks.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
        locks.release_all(fd)
    # A file system that is dead says so here, too, and the descriptor is gone all the same.
    with contextlib.suppress(OSError):
        os.close(fd)
