"""The chunks of one namespace by key: where each lies, how it is sealed, with which modes it is made."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from kvfs.fallback import files
from kvfs.fallback.directories import open_directory
from kvfs.fallback.names import chunk_names
from kvfs.fallback.seals import Seals
from kvfs.fallback.writers import temporary_name


class Chunks:
    """Store, load and look up chunks on disk; see docs/engine.md and docs/integrity.md. Thread-safe; blocks.

    Args:
        base_path: The namespace's directory.
        seals: What is done about seals.
        file_mode: Mode of new files.
        dir_mode: Mode of new directories.
    """

    def __init__(self, base_path: str, seals: Seals, file_mode: int, dir_mode: int) -> None:
        self.base_path = base_path
        self.seals = seals
        # Called when a chunk's directory was made.
        self.on_directory_made: Callable[[], None] = lambda: None
        self._file_mode = file_mode
        self._dir_mode = dir_mode

    def path(self, key: bytes) -> str:
        """Return the path of a key's file, for messages."""
        return "/".join((self.base_path, *chunk_names(key)))

    def store(self, key: bytes, chunk: memoryview, *, direct: bool, report: files.OpReport) -> None:
        """Store a chunk; see `files.store`.

        Raises:
            OSError: What the system said; ELOOP for a link on the way.
        """
        try:
            self._store_once(key, chunk, direct=direct, report=report)
        except FileNotFoundError:
            # Somebody removed the directory just after we had entered it: an eviction, for example.
            self._store_once(key, chunk, direct=direct, report=report)

    def load(self, key: bytes, chunk: memoryview, *, direct: bool, report: files.OpReport) -> None:
        """Load a chunk; see `files.load`.

        Raises:
            OSError: What the system said; ELOOP for a link on the way.
        """
        first, second, name = chunk_names(key)
        directory = open_directory(self.base_path, first, second, None)
        try:
            file = files.BlockFile(name, directory, seal=self.seals.of(key))
            files.load(file, chunk, direct=direct, report=report)
        finally:
            os.close(directory)

    def lookup(self, key: bytes, chunk_size_bytes: int) -> int:
        """Return 0 when a chunk of that size is there, otherwise the errno that says why not."""
        first, second, name = chunk_names(key)
        try:
            directory = open_directory(self.base_path, first, second, None)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            return files.lookup(files.BlockFile(name, directory), chunk_size_bytes)
        finally:
            os.close(directory)

    def remove(self, key: bytes) -> int | None:
        """Remove a chunk and return its size in bytes, None if it was not there. Its directory stays.

        Raises:
            OSError: What the system said; ELOOP for a link, EISDIR for a directory.
        """
        first, second, name = chunk_names(key)
        try:
            directory = open_directory(self.base_path, first, second, None)
        except FileNotFoundError:
            return None
        try:
            file = files.BlockFile(name, directory)
            status = file.status()
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            file.unlink()
        except FileNotFoundError:
            return None
        finally:
            os.close(directory)
        return status.st_size

    def _store_once(self, key: bytes, chunk: memoryview, *, direct: bool, report: files.OpReport) -> None:
        first, second, name = chunk_names(key)
        directory = open_directory(self.base_path, first, second, self._dir_mode, self.on_directory_made)
        try:
            file = files.BlockFile(name, directory, self._file_mode, self.seals.of(key))
            files.store(file, temporary_name(name), chunk, direct=direct, report=report)
        finally:
            os.close(directory)
