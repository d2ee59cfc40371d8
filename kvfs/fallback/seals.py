"""A chunk's seal: its checksum and its key in extended attributes, and whether there can be any."""

# Descriptors and flags: the system's own calls.
# ruff: noqa: PTH108

from __future__ import annotations

import contextlib
import errno
import os
from enum import Enum
from typing import Final

from kvfs.fallback import crc32c
from kvfs.fallback.writers import temporary_name
from kvfs.permissions import FILE_MODE, set_file_mode

CHECKSUM_ATTRIBUTE: Final = "user.vllm.kv_crc32c"
KEY_ATTRIBUTE: Final = "user.kvfs.key"
# So many bytes of the key, the last ones, go into the inode beside the checksum; see docs/integrity.md.
_KEY_BYTES_MAX: Final = 28
_CHECKSUM_BYTES: Final = 4
# No room for an attribute just now, which says nothing about the file system.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class Verdict(Enum):
    """What a file's seal says of the bytes that were read from it."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    UNSEALED = "unsealed"
    DAMAGED = "damaged"


class Seal:
    """The seal that belongs to one key. Thread-safe.

    Args:
        key: The whole key.
        required: Whether a file without a whole seal is no chunk.
    """

    __slots__ = ("_key", "_required")

    def __init__(self, key: bytes, required: bool) -> None:
        self._key = key[-_KEY_BYTES_MAX:]
        self._required = required

    def put(self, fd: int, chunk: memoryview) -> None:
        """Seal an open file that nobody else sees yet. Blocks.

        Raises:
            OSError: The system refused an attribute; not where it has none and none are required.
        """
        checksum = crc32c.checksum(chunk).to_bytes(_CHECKSUM_BYTES, "big")
        try:
            os.setxattr(fd, CHECKSUM_ATTRIBUTE, checksum)
            os.setxattr(fd, KEY_ATTRIBUTE, self._key)
        except OSError as error:
            if error.errno != errno.ENOTSUP or self._required:
                raise
            # Never half a seal.
            with contextlib.suppress(OSError):
                os.removexattr(fd, CHECKSUM_ATTRIBUTE)

    def check(self, fd: int, chunk: memoryview) -> Verdict:
        """Compare what was read from an open file with its attributes. Blocks.

        Raises:
            OSError: An attribute cannot be read.
        """
        checksum, key = _read(fd, CHECKSUM_ATTRIBUTE), _read(fd, KEY_ATTRIBUTE)
        if self._required and (checksum is None or key is None):
            return Verdict.UNSEALED
        if key is not None and key != self._key:
            return Verdict.DAMAGED
        if checksum is None:
            return Verdict.UNVERIFIED
        if checksum != crc32c.checksum(chunk).to_bytes(_CHECKSUM_BYTES, "big"):
            return Verdict.DAMAGED
        return Verdict.VERIFIED

    def keeps(self, fd: int) -> bool:
        """Tell whether a store leaves this open file alone: it need not be sealed, or is. Blocks.

        Raises:
            OSError: An attribute cannot be read.
        """
        return not self._required or None not in (_read(fd, CHECKSUM_ATTRIBUTE), _read(fd, KEY_ATTRIBUTE))

    @property
    def required(self) -> bool:
        """Whether a file without a whole seal is no chunk."""
        return self._required


class Seals:
    """What one engine does about seals.

    Asks the file system whether it has such attributes. Blocks. What that takes is gone afterwards; it is a
    temporary of this process, whose lock is held already.

    Args:
        base_path: The namespace's directory, which exists.
        checksum: "auto", "require" or "off".

    Raises:
        OSError: ENOTSUP: seals are required, and there can be none.
    """

    def __init__(self, base_path: str, checksum: str) -> None:
        self.active = checksum != "off" and _has_attributes(base_path)
        self._required = checksum == "require"
        if self._required and not self.active:
            raise OSError(
                errno.ENOTSUP,
                "checksum is 'require', but this file system has no extended attributes to keep checksums "
                "in; use another one, or 'auto'",
                base_path,
            )

    def of(self, key: bytes) -> Seal | None:
        """Return the seal of a key; None where nothing is sealed or verified."""
        return Seal(key, self._required) if self.active else None


def _read(fd: int, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise


def _has_attributes(base_path: str) -> bool:
    try:
        fd = _open_nameless(base_path)
    except OSError:
        return _can_read_attributes(base_path)
    try:
        # The kernel asks the file's mode, not the descriptor, whether attributes may be written.
        set_file_mode(fd, FILE_MODE)
        os.setxattr(fd, CHECKSUM_ATTRIBUTE, bytes(_CHECKSUM_BYTES))
        os.setxattr(fd, KEY_ATTRIBUTE, bytes(_KEY_BYTES_MAX))
    except OSError as error:
        return error.errno in _NO_ROOM and _can_read_attributes(base_path)
    finally:
        os.close(fd)
    return True


def _open_nameless(base_path: str) -> int:
    """Open a new file that has no name, or no longer."""
    try:
        return os.open(base_path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
    except OSError:
        # Many file systems have none of these, and say so in many ways.
        path = f"{base_path}/{temporary_name('.kvfs_probe')}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            os.unlink(path)
        except OSError:
            os.close(fd)
            raise
        return fd


def _can_read_attributes(base_path: str) -> bool:
    try:
        os.getxattr(base_path, CHECKSUM_ATTRIBUTE)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True
