"""The scan: one look at all directories of a namespace, for the chunks that were there before the engine."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Iterator
from typing import Final

from kvfs.fallback.checks import GROUP_INDEX_BYTES, KEY_SIZE_BYTES_MAX
from kvfs.fallback.chunks import chunk_names
from kvfs.fallback.index import KeyIndex

# A hash of one byte has two digits, and then none are left for the second level.
_FIRST_LEVEL: Final = re.compile("[0-9a-f]{2,3}")
_SECOND_LEVEL: Final = re.compile("[0-9a-f]{0,2}_g(0|[1-9][0-9]{0,9})")
_FILE: Final = re.compile("((?:[0-9a-f]{2})+)\\.bin")
_GROUP_INDEX_MAX: Final = 2 ** (8 * GROUP_INDEX_BYTES) - 1
# Removed since its name was read, or no directory.
_PASSED_OVER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Scan:
    """Reads a namespace once and adds what it finds to an index.

    Args:
        base_path: The namespace's directory.
        chunk_size_bytes: Files of any other size are no chunks.
        index: Gets the keys.
    """

    def __init__(self, base_path: str, chunk_size_bytes: int, index: KeyIndex) -> None:
        self._base_path = base_path
        self._chunk_size_bytes = chunk_size_bytes
        self._index = index
        self._stopped = threading.Event()
        self._unread = False
        index.scanning = True
        # Chunks that were seen.
        self.files = 0
        # Whether every chunk has been seen that was there at the start.
        self.complete = False

    def run(self) -> None:
        """Scan. Blocks until the end, or until just after `stop`."""
        try:
            self._scan_first_levels()
        except Exception:  # noqa: BLE001 - out of memory, say; the engine goes on asking the disk
            self._unread = True
        finally:
            self._index.scanning = False
        self.complete = not self._unread and not self._stopped.is_set()

    def stop(self) -> None:
        """End the scan early; returns before it has ended."""
        self._stopped.set()

    def _scan_first_levels(self) -> None:
        with self._opened(self._base_path, None) as base:
            for first in self._names(base):
                if _FIRST_LEVEL.fullmatch(first) is None:
                    continue
                with self._opened(first, base) as directory:
                    for second in self._names(directory):
                        if _is_second_level(first, second):
                            self._scan_chunks(directory, first, second)

    def _scan_chunks(self, parent: int | None, first: str, second: str) -> None:
        group = int(second.partition("_g")[2]).to_bytes(GROUP_INDEX_BYTES, "big")
        with self._opened(second, parent) as directory:
            for name in self._names(directory):
                digits = _FILE.fullmatch(name)
                if digits is None:
                    continue
                key = bytes.fromhex(digits[1]) + group
                # Only in the one place where its key belongs.
                if len(key) > KEY_SIZE_BYTES_MAX or chunk_names(key) != (first, second, name):
                    continue
                if self._is_chunk(name, directory):
                    self.files += 1
                    self._index.add(key)

    def _is_chunk(self, name: str, directory: int | None) -> bool:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            self._note(error)
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == self._chunk_size_bytes

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


def _is_second_level(first: str, second: str) -> bool:
    """Tell whether a directory of this name below `first` has chunks of some key."""
    match = _SECOND_LEVEL.fullmatch(second)
    if match is None or int(match[1]) > _GROUP_INDEX_MAX:
        return False
    # Three digits are of a hash of two bytes at least, which has one more.
    return (len(first) == 2) == second.startswith("_g")  # noqa: PLR2004
