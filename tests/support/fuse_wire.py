"""The wire format of FUSE, as the kernel's linux/fuse.h defines it: what the test file system speaks."""

from __future__ import annotations

import os
import stat
import struct
from enum import IntEnum
from typing import Final, NamedTuple


class Op(IntEnum):
    """The requests that the test file system answers; others are ENOSYS to the kernel."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


ROOT_NODE: Final = 1
MAJOR: Final = 7
# The last minor version that this was written against; the kernel comes down to it.
MINOR: Final = 38
MAX_WRITE_BYTES: Final = 1 << 20
# A request is at most its data and a page of what goes before it.
MAX_REQUEST_BYTES: Final = MAX_WRITE_BYTES + 65536

# FUSE_ASYNC_READ, _ATOMIC_O_TRUNC, _BIG_WRITES, _PARALLEL_DIROPS, _MAX_PAGES. Not _ASYNC_DIO: with it the
# kernel makes an EIO of a short write through an io_uring, and the caller never sees how many bytes went.
INIT_FLAGS: Final = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 18 | 1 << 22
# FOPEN_DIRECT_IO: each transfer of the caller is one of ours, so that short ones reach it.
OPEN_UNCACHED: Final = 1 << 0

SET_MODE: Final = 1 << 0
SET_UID: Final = 1 << 1
SET_GID: Final = 1 << 2
SET_SIZE: Final = 1 << 3
SET_ATIME: Final = 1 << 4
SET_MTIME: Final = 1 << 5
SET_ATIME_NOW: Final = 1 << 7
SET_MTIME_NOW: Final = 1 << 8

IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
OUT_HEADER: Final = struct.Struct("=IiQ")
ENTRY: Final = struct.Struct("=QQQQII")
ATTR: Final = struct.Struct("=QQQQQQIIIIIIIIII")
ATTR_OUT: Final = struct.Struct("=QII")
SETATTR: Final = struct.Struct("=IIQQQQQQIIIIIIII")
OPEN_IN: Final = struct.Struct("=II")
OPEN_OUT: Final = struct.Struct("=QII")
CREATE: Final = struct.Struct("=IIII")
READ: Final = struct.Struct("=QQIIQII")
WRITE_OUT: Final = struct.Struct("=II")
FORGET_ONE: Final = struct.Struct("=QQ")
STATFS: Final = struct.Struct("=QQQQQIIII24x")
DIRENT: Final = struct.Struct("=QQII")
INIT_IN: Final = struct.Struct("=IIII")
INIT_OUT: Final = struct.Struct("=IIIIHHIIHHI28x")
FALLOCATE: Final = struct.Struct("=QQQII")
U64: Final = struct.Struct("=Q")
U32_PAIR: Final = struct.Struct("=II")


class Request(NamedTuple):
    """One request of the kernel."""

    op: int
    unique: int
    node: int
    uid: int
    gid: int
    body: bytes

    @property
    def flags(self) -> int:
        """Return the open flags that come with a request that opens or transfers; 0 for others."""
        if self.op in (Op.OPEN, Op.CREATE):
            return int(OPEN_IN.unpack_from(self.body)[0])
        if self.op in (Op.READ, Op.WRITE):
            return int(READ.unpack_from(self.body)[5])
        return 0

    def names(self) -> list[str]:
        """Return the NUL-terminated names at the end of a body that holds nothing else."""
        return [os.fsdecode(name) for name in self.body.split(b"\0")[:-1]]

    def name_after(self, size_bytes: int) -> str:
        """Return the NUL-terminated name that follows a structure of this size."""
        return os.fsdecode(self.body[size_bytes:].split(b"\0", 1)[0])


def parse(message: bytes) -> Request:
    """Take a message of the kernel apart."""
    _length, op, unique, node, uid, gid, _pid, _extension, _padding = IN_HEADER.unpack_from(message)
    return Request(op, unique, node, uid, gid, message[IN_HEADER.size :])


def attributes(status: os.stat_result) -> bytes:
    """Return a struct fuse_attr."""
    return ATTR.pack(
        status.st_ino,
        status.st_size,
        status.st_blocks,
        status.st_atime_ns // 10**9,
        status.st_mtime_ns // 10**9,
        status.st_ctime_ns // 10**9,
        status.st_atime_ns % 10**9,
        status.st_mtime_ns % 10**9,
        status.st_ctime_ns % 10**9,
        status.st_mode,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_rdev,
        status.st_blksize,
        0,
    )


def entry(node: int, status: os.stat_result) -> bytes:
    """Return a struct fuse_entry_out that the kernel may not keep: it asks each time."""
    return ENTRY.pack(node, 0, 0, 0, 0, 0) + attributes(status)


def directory_entry(offset: int, inode: int, kind: int, name: str) -> bytes:
    """Return a struct fuse_dirent, padded to 8 bytes; `kind` is a file mode."""
    encoded = os.fsencode(name)
    record = DIRENT.pack(inode, offset, len(encoded), stat.S_IFMT(kind) >> 12) + encoded
    return record + bytes(-len(record) % 8)


def init_reply(body: bytes) -> bytes:
    """Return a struct fuse_init_out for what the kernel offers."""
    _major, minor, read_ahead_bytes, flags = INIT_IN.unpack_from(body)
    return INIT_OUT.pack(
        MAJOR,
        min(minor, MINOR),
        read_ahead_bytes,
        flags & INIT_FLAGS,
        64,
        48,
        MAX_WRITE_BYTES,
        1,
        MAX_WRITE_BYTES // 4096,
        0,
        0,
    )
