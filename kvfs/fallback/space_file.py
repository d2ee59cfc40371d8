"""The file that the processes of one host share to say what they have taken of a directory's room.

docs/capacity.md has the rules. The extension reads and writes the same file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kvfs.fallback import locks
from kvfs.permissions import ENTER_FLAGS, set_file_mode

SPACE_NAME: Final = "kvfs.space"
SLOTS: Final = 1024
_MAGIC: Final = b"KVFSSPC1"
# Instead of 1 for "counted".
_STALE: Final = 2
# Magic, whether all has been counted, bytes of nobody, bytes by slot; as the machine has its numbers.
_IMAGE: Final = struct.Struct(f"=8sQq{SLOTS}q")
# Locks of slots lie far behind the bytes.
_LOCK_OFFSET: Final = 1 << 30
# All numbers of a table together are no more.
_BYTES_MAX: Final = 1 << 60
_PATIENCE_S: Final = 0.1
_RETRY_S: Final = 0.0002


@dataclass(slots=True)
class SpaceTable:
    """What stands in the file, in bytes.

    Attributes:
        counted: Whether `unowned` has been counted.
        stale: Whether a process has ended since then: more may be promised than there is.
        unowned: Of no process that lives; negative where such ones have removed what others had stored.
        slots: By process.
        mine: This engine's slot.
    """

    counted: bool = False
    unowned: int = 0
    slots: list[int] = field(default_factory=lambda: [0] * SLOTS)
    mine: int = 0
    stale: bool = False

    def image(self) -> bytes:
        """Return it as it stands in the file."""
        counted = (_STALE if self.stale else 1) if self.counted else 0
        return _IMAGE.pack(_MAGIC, counted, self.unowned, *self.slots)

    @property
    def total(self) -> int:
        """All of it."""
        return self.unowned + sum(self.slots)


class SpaceFile:
    """A slot of the file `kvfs.space` in a directory, held until `close` or the end of the process.

    Thread-safe. Each call takes some 0.1 ms, and waits for other processes' calls, for 0.1 s at most.

    Args:
        directory: It exists; links in its path are followed.
        file_mode: Mode of the file, if it is made.

    Raises:
        OSError: What the system said; EBUSY, or ENOLCK where all slots are taken.
    """

    def __init__(self, directory: str, file_mode: int) -> None:
        self._lock = threading.Lock()  # held for a change
        self._file_mode = file_mode
        self._directory = os.open(directory, ENTER_FLAGS & ~os.O_NOFOLLOW)
        self._fd: int | None = None
        self._slot = 0
        # Whether nobody else had a slot.
        self.alone = False
        try:
            self._fd = self._join()
        except BaseException:
            os.close(self._directory)
            raise

    def update(self, change: Callable[[SpaceTable], None]) -> None:
        """Read the table, let `change` change it, write it.

        What belonged to the dead belongs to nobody by then. What does not hold together is an empty table
        that has not been counted, and so is that of a file which was removed, to be made anew.

        Raises:
            OSError: What the system said; EBUSY. Nothing was changed.
        """
        with self._lock:
            if self._fd is None:
                raise OSError(errno.EBADF, "closed", SPACE_NAME)
            if os.fstat(self._fd).st_nlink == 0:
                removed, self._fd = self._fd, self._join()
                os.close(removed)
            with _turn(self._fd):
                table = _read(self._fd)
                table.mine = self._slot
                before = table.image()
                for slot, size_bytes in enumerate(table.slots):
                    if size_bytes and slot != self._slot and not _is_held(self._fd, slot):
                        table.unowned += size_bytes
                        table.slots[slot] = 0
                        table.stale = True
                change(table)
                image = table.image()
                # A new file is written at once, so that a count has its blocks, too.
                if image != before or os.fstat(self._fd).st_size != len(image):
                    self._write(image)

    def is_alone(self) -> bool:
        """Tell whether nobody else has a slot. For `change` of an `update` alone."""
        return self._fd is not None and not locks.is_shared(self._fd, _LOCK_OFFSET, SLOTS)

    def room(self) -> tuple[int, int]:
        """Return the bytes that the file system has left for users, and those that are taken of it.

        Raises:
            OSError: What the system said.
        """
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize

    def close(self) -> None:
        """Give the slot up. May be called again."""
        with self._lock:
            if self._fd is not None:
                # By hand: a forked child has the same open file description and would keep it.
                with contextlib.suppress(OSError):
                    locks.release_all(self._fd)
                os.close(self._fd)
                os.close(self._directory)
                self._fd = None

    def _join(self) -> int:
        """Open the file, made if it is missing, and take a slot."""
        fd = self._open(self._file_mode)
        try:
            with _turn(fd):
                self.alone = not locks.is_shared(fd, _LOCK_OFFSET, SLOTS)
                self._slot = self._take_slot(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open(self, file_mode: int) -> int:
        # To read, which all locks here allow: the file system stays free to become read-only.
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(SPACE_NAME, flags | os.O_EXCL, file_mode, dir_fd=self._directory)
        except FileExistsError:
            return os.open(SPACE_NAME, flags & ~os.O_CREAT, dir_fd=self._directory)
        try:
            set_file_mode(fd, file_mode)
        except OSError:
            os.close(fd)
            raise
        return fd

    @staticmethod
    def _take_slot(fd: int) -> int:
        for slot in range(SLOTS):
            if not _is_held(fd, slot):
                locks.share(fd, _LOCK_OFFSET + slot)
                return slot
        raise OSError(errno.ENOLCK, f"all {SLOTS} slots are taken", SPACE_NAME)

    def _write(self, image: bytes) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(SPACE_NAME, flags, dir_fd=self._directory)
        try:
            if os.pwrite(fd, image, 0) != len(image):
                raise OSError(errno.EIO, "written in part", SPACE_NAME)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _turn(fd: int) -> Iterator[None]:
    """Hold the file as a whole."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), SPACE_NAME) from None
            time.sleep(_RETRY_S)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _is_held(fd: int, slot: int) -> bool:
    """Tell whether another has the slot; one's own locks do not show."""
    try:
        return locks.is_shared(fd, _LOCK_OFFSET + slot)
    except OSError:
        # What cannot be told may be.
        return True


def _read(fd: int) -> SpaceTable:
    # What could not be read must not be written anew: that would forget what the others hold.
    image = os.pread(fd, _IMAGE.size, 0)
    if len(image) != _IMAGE.size:
        return SpaceTable()
    magic, counted, unowned, *slots = _IMAGE.unpack(image)
    table = SpaceTable(counted > 0, unowned, slots, stale=counted == _STALE)
    in_range = abs(unowned) + sum(map(abs, slots)) <= _BYTES_MAX
    # Nothing can take less than no room.
    may_be_true = in_range and (table.total >= 0 or not table.counted)
    return table if magic == _MAGIC and counted <= _STALE and may_be_true else SpaceTable()
