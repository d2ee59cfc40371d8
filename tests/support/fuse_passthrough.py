"""A file system that shows a directory: what each request of the kernel does there, nothing of its own."""

# Descriptors, flags and modes: the system's own calls.
# ruff: noqa: PTH101, PTH115, PTH116

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import fuse_wire as wire
from fuse_wire import Op, Request

_NODE_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# What the kernel has done already, or what is not ours: the rest of open(2)'s flags is passed on.
_NOT_PASSED_ON: Final = os.O_DIRECT | os.O_EXCL | os.O_CREAT | os.O_NOFOLLOW


@dataclass
class Node:
    """A file that the kernel knows by number; open without any right, so that renames do not matter."""

    fd: int
    identity: tuple[int, int]
    lookups: int = 0

    @property
    def path(self) -> str:
        """Return a path for calls that take no descriptor of this kind."""
        return f"/proc/self/fd/{self.fd}"


class Passthrough:
    """The files of `directory`, by the kernel's numbers. One thread uses it.

    Names that it makes belong to the caller; the kernel checks permissions (`default_permissions`).
    """

    def __init__(self, directory: str) -> None:
        root = os.open(directory, _NODE_FLAGS)
        self._nodes: dict[int, Node] = {wire.ROOT_NODE: Node(root, _identity(os.stat(root)), 1)}
        self._numbers: dict[tuple[int, int], int] = {}
        self._next_number = wire.ROOT_NODE + 1
        self._listings: dict[int, list[tuple[str, os.stat_result]]] = {}
        # Whether files are opened past the page cache.
        self.uncached = False
        self._handlers: dict[int, Callable[[Request], bytes | None]] = {
            Op.INIT: lambda request: wire.init_reply(request.body),
            Op.DESTROY: lambda _request: b"",
            Op.LOOKUP: self._lookup,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._forget_many,
            Op.GETATTR: self._getattr,
            Op.SETATTR: self._setattr,
            Op.READLINK: lambda request: os.fsencode(os.readlink("", dir_fd=self._nodes[request.node].fd)),
            Op.SYMLINK: self._symlink,
            Op.MKNOD: self._mknod,
            Op.MKDIR: self._mkdir,
            Op.UNLINK: lambda request: self._remove(request, os.unlink),
            Op.RMDIR: lambda request: self._remove(request, os.rmdir),
            Op.RENAME: lambda request: self._rename(request, wire.U64.size, 0),
            Op.RENAME2: self._rename2,
            Op.LINK: self._link,
            Op.OPEN: self._open,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.FLUSH: lambda _request: b"",
            Op.FSYNC: lambda _request: b"",
            Op.RELEASE: self._release,
            Op.STATFS: self._statfs,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._readdir,
            Op.RELEASEDIR: self._releasedir,
            Op.SETXATTR: self._setxattr,
            Op.GETXATTR: self._getxattr,
            Op.LISTXATTR: self._listxattr,
            Op.REMOVEXATTR: self._removexattr,
        }

    def answer(self, request: Request) -> bytes | None:
        """Do what is asked; return the reply's body, None where the kernel wants none.

        Raises:
            OSError: What the reply says instead.
        """
        handler = self._handlers.get(request.op)
        if handler is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return handler(request)

    def path_of(self, number: int) -> str:
        """Return where a file that the kernel knows is now; "" when it knows none of that number."""
        node = self._nodes.get(number)
        return os.readlink(node.path) if node is not None else ""

    def _at(self, request: Request) -> int:
        return self._nodes[request.node].fd

    def _entry(self, parent: int, name: str) -> bytes:
        """Give the file a number, or the one it has, and return its entry."""
        fd = os.open(name, _NODE_FLAGS, dir_fd=parent)
        status = os.stat(fd)
        number = self._numbers.get(_identity(status))
        if number is None:
            number = self._next_number
            self._next_number += 1
            self._nodes[number] = Node(fd, _identity(status))
            self._numbers[_identity(status)] = number
        else:
            os.close(fd)
        self._nodes[number].lookups += 1
        return wire.entry(number, status)

    def _made(self, request: Request, name: str) -> bytes:
        os.chown(name, request.uid, request.gid, dir_fd=self._at(request), follow_symlinks=False)
        return self._entry(self._at(request), name)

    def _lookup(self, request: Request) -> bytes:
        return self._entry(self._at(request), request.name_after(0))

    def _forget(self, request: Request) -> None:
        self._drop(request.node, int(wire.U64.unpack_from(request.body)[0]))

    def _forget_many(self, request: Request) -> None:
        count = int(wire.U32_PAIR.unpack_from(request.body)[0])
        for index in range(count):
            place = wire.U32_PAIR.size + index * wire.FORGET_ONE.size
            number, lookups = wire.FORGET_ONE.unpack_from(request.body, place)
            self._drop(number, lookups)

    def _drop(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == wire.ROOT_NODE:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self._nodes[number], self._numbers[node.identity]
            os.close(node.fd)

    def _getattr(self, request: Request) -> bytes:
        return wire.ATTR_OUT.pack(0, 0, 0) + wire.attributes(os.stat(self._at(request)))

    def _setattr(self, request: Request) -> bytes:
        (valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = (
            wire.SETATTR.unpack_from(request.body)
        )
        node = self._nodes[request.node]
        if valid & wire.SET_MODE:
            os.chmod(node.path, stat.S_IMODE(mode))
        if valid & (wire.SET_UID | wire.SET_GID):
            os.chown(node.path, uid if valid & wire.SET_UID else -1, gid if valid & wire.SET_GID else -1)
        if valid & wire.SET_SIZE:
            os.truncate(node.path, size)
        if valid & (wire.SET_ATIME | wire.SET_MTIME):
            before = os.stat(node.fd)
            times = [before.st_atime_ns, before.st_mtime_ns]
            for index, (bit, seconds, rest) in enumerate(
                ((wire.SET_ATIME, atime, atime_ns), (wire.SET_MTIME, mtime, mtime_ns))
            ):
                if valid & bit:
                    times[index] = seconds * 10**9 + rest
            if not valid & (wire.SET_ATIME_NOW | wire.SET_MTIME_NOW):
                os.utime(node.path, ns=(times[0], times[1]))
        return self._getattr(request)

    def _symlink(self, request: Request) -> bytes:
        name, target = request.names()
        os.symlink(target, name, dir_fd=self._at(request))
        return self._made(request, name)

    def _mknod(self, request: Request) -> bytes:
        mode, device, _umask, _padding = wire.CREATE.unpack_from(request.body)
        name = request.name_after(wire.CREATE.size)
        os.mknod(name, mode, device, dir_fd=self._at(request))
        return self._made(request, name)

    def _mkdir(self, request: Request) -> bytes:
        mode, _umask = wire.U32_PAIR.unpack_from(request.body)
        name = request.name_after(wire.U32_PAIR.size)
        os.mkdir(name, mode, dir_fd=self._at(request))
        return self._made(request, name)

    def _remove(self, request: Request, call: Callable[..., None]) -> bytes:
        call(request.name_after(0), dir_fd=self._at(request))
        return b""

    def _rename(self, request: Request, head_size_bytes: int, flags: int) -> bytes:
        target = self._nodes[int(wire.U64.unpack_from(request.body)[0])].fd
        source_name, target_name = [
            os.fsdecode(name) for name in request.body[head_size_bytes:].split(b"\0")[:2]
        ]
        if flags and _exists(target, target_name):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        # Nobody else writes there between the question and this, and one thread answers all requests.
        os.rename(source_name, target_name, src_dir_fd=self._at(request), dst_dir_fd=target)
        return b""

    def _rename2(self, request: Request) -> bytes:
        flags = int(wire.U32_PAIR.unpack_from(request.body, wire.U64.size)[0])
        if flags & ~1:
            # Only RENAME_NOREPLACE.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._rename(request, wire.U64.size + wire.U32_PAIR.size, flags)

    def _link(self, request: Request) -> bytes:
        source = self._nodes[int(wire.U64.unpack_from(request.body)[0])]
        name = request.name_after(wire.U64.size)
        os.link(source.path, name, dst_dir_fd=self._at(request), follow_symlinks=True)
        return self._entry(self._at(request), name)

    def _opened(self, fd: int) -> bytes:
        return wire.OPEN_OUT.pack(fd, wire.OPEN_UNCACHED if self.uncached else 0, 0)

    def _open(self, request: Request) -> bytes:
        return self._opened(
            os.open(self._nodes[request.node].path, request.flags & ~_NOT_PASSED_ON | os.O_CLOEXEC)
        )

    def _create(self, request: Request) -> bytes:
        flags, mode, _umask, _ = wire.CREATE.unpack_from(request.body)
        name = request.name_after(wire.CREATE.size)
        passed_on = flags & ~(os.O_DIRECT | os.O_NOFOLLOW) | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, passed_on, mode, dir_fd=self._at(request))
        return self._made(request, name) + self._opened(fd)

    def _read(self, request: Request) -> bytes:
        fd, offset, size, *_ = wire.READ.unpack_from(request.body)
        return os.pread(fd, size, offset)

    def _write(self, request: Request) -> bytes:
        fd, offset, size, *_ = wire.READ.unpack_from(request.body)
        data = memoryview(request.body)[wire.READ.size : wire.READ.size + size]
        return wire.WRITE_OUT.pack(os.pwrite(fd, data, offset), 0)

    @staticmethod
    def _release(request: Request) -> bytes:
        os.close(int(wire.U64.unpack_from(request.body)[0]))
        return b""

    def _statfs(self, request: Request) -> bytes:
        found = os.statvfs(self._at(request))
        return wire.STATFS.pack(
            *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
            *(found.f_bsize, found.f_namemax, found.f_frsize, 0),
        )

    def _opendir(self, request: Request) -> bytes:
        fd = os.open(self._nodes[request.node].path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with os.scandir(fd) as entries:
            self._listings[fd] = [(each.name, each.stat(follow_symlinks=False)) for each in entries]
        return wire.OPEN_OUT.pack(fd, 0, 0)

    def _readdir(self, request: Request) -> bytes:
        fd, offset, size, *_ = wire.READ.unpack_from(request.body)
        reply = b""
        for index, (name, status) in enumerate(self._listings[fd][offset:], offset + 1):
            record = wire.directory_entry(index, status.st_ino, status.st_mode, name)
            if len(reply) + len(record) > size:
                break
            reply += record
        return reply

    def _releasedir(self, request: Request) -> bytes:
        fd = int(wire.U64.unpack_from(request.body)[0])
        del self._listings[fd]
        os.close(fd)
        return b""

    def _setxattr(self, request: Request) -> bytes:
        size, flags = wire.U32_PAIR.unpack_from(request.body)
        name, value = request.body[wire.U32_PAIR.size :].split(b"\0", 1)
        os.setxattr(self._nodes[request.node].path, name, value[:size], flags)
        return b""

    def _getxattr(self, request: Request) -> bytes:
        name = request.name_after(wire.U32_PAIR.size)
        return _sized(request, os.getxattr(self._nodes[request.node].path, name))

    def _listxattr(self, request: Request) -> bytes:
        names = os.listxattr(self._nodes[request.node].path)
        return _sized(request, b"".join(os.fsencode(name) + b"\0" for name in names))

    def _removexattr(self, request: Request) -> bytes:
        os.removexattr(self._nodes[request.node].path, request.name_after(0))
        return b""


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _sized(request: Request, value: bytes) -> bytes:
    """Answer a request for an attribute: its size to those that have no room yet."""
    room = int(wire.U32_PAIR.unpack_from(request.body)[0])
    if room == 0:
        return wire.U32_PAIR.pack(len(value), 0)
    if len(value) > room:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return value
