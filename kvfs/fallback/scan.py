"""The scan: one look at all directories of a namespace, for the chunks that were there before the engine.

It also removes temporaries whose writers are gone.
"""

# Descriptors: the system's own calls.

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Final

from kvfs.fallback.index import KeyIndex
from kvfs.fallback.names import is_first_level, is_second_level, key_of
from kvfs.fallback.ownership import Ownership
from kvfs.fallback.writers import writer_of

# Removed since its name was read, or no directory.
_PASSED_OVER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Scan:
    """Reads a namespace once and adds what it finds to an index.

    Args:
        base_path: The namespace's directory.
        chunk_size_bytes: Files of any other size are no chunks.
        index: Gets the keys.
        ownership: Knows which writers are alive.
    """

    def __init__(self, base_path: str, chunk_size_bytes: int, index: KeyIndex, ownership: Ownership) -> None:
        self._base_path = base_path
        self._chunk_size_bytes = chunk_size_bytes
        self._index = index
        self._ownership = ownership
        self._stopped = threading.Event()
        self._unread = False
        index.scanning = True
        # Chunks that were seen.
        self.files = 0
        # Temporaries of writers who are gone.
        self.reclaimed = 0
        # Whether every chunk has been seen that was there at the start.
        self.complete = False
        # Called with the two directories and the bytes of a temporary that was removed; with none where the
        # directory is empty, left by who was killed before it could be removed.
        self.on_removed: Callable[[str, str, int], None] | None = None

    def run(self) -> None:
        """Scan. Blocks until the end, or until just after `stop`."""
        try:
            self._scan_first_levels(counts=True)
        except Exception:  # noqa: BLE001 - out of memory, say; the engine goes on asking the disk
            self._unread = True
        finally:
            self._index.scanning = False
        self.complete = not self._unread and not self._stopped.is_set()

    def again(self) -> None:
        """Add what others have stored since the scan, which must have ended: else it does nothing. Blocks."""
        if self._index.scanning:
            return
        with contextlib.suppress(Exception):
            self._scan_first_levels(counts=False)

    def stop(self) -> None:
        """End the scan early; returns before it has ended."""
        self._stopped.set()

    def _scan_first_levels(self, *, counts: bool) -> None:
        with self._opened(self._base_path, None) as base:
            for first in self._names(base):
                self._reclaim(first, base)  # not for a chunk, and not counted as one
                if not is_first_level(first):
                    continue
                with self._opened(first, base) as directory:
                    for second in self._names(directory):
                        if is_second_level(first, second):
                            self._scan_chunks(directory, first, second, counts=counts)

    def _scan_chunks(self, parent: int | None, first: str, second: str, *, counts: bool) -> None:
        with self._opened(second, parent) as directory:
            names = list(self._names(directory))
            if self.on_removed and directory is not None and not names and not self._stopped.is_set():
                self.on_removed(first, second, 0)
            for name in names:
                size_bytes = self._reclaim(name, directory)
                if size_bytes is not None and self.on_removed:
                    self.on_removed(first, second, size_bytes)
                # Only in the one place where its key belongs.
                key = key_of(first, second, name)
                status = None if key is None else self._status(name, directory)
                if key is None or status is None:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_size == self._chunk_size_bytes:
                    self.files += counts
                    self._index.add(key, int(status.st_mtime))

    def _status(self, name: str, directory: int | None) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            self._note(error)
            return None

    def _reclaim(self, name: str, directory: int | None) -> int | None:
        """Remove a temporary whose writer is gone, and return its size in bytes."""
        writer = writer_of(name)
        if writer is None or self._ownership.is_alive(writer):
            return None
        with contextlib.suppress(OSError):
            size_bytes = os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=directory)
            self.reclaimed += 1
            return size_bytes
        return None

    @contextlib.contextmanager
    def _opened(self, name: str, parent: int | None) -> Iterator[int | None]:
        """Open a directory; None if there is nothing to read."""
        # The namespace itself may lie behind a link.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if parent is None else os.O_NOFOLLOW)
        try:
            fd = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            self._note(error)
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _names(self, directory: int | None) -> Iterator[str]:
        """Yield the names in an open directory until `stop`."""
        if directory is None:
            return
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if self._stopped.is_set():
                        return
                    yield entry.name
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno not in _PASSED_OVER:
            self._unread = True
