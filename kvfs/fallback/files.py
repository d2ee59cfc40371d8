"""What happens on disk for one chunk: store, load and lookup of a block file, with plain system calls."""

# Paths stay strings: a Path a chunk costs more than some of the calls.
# ruff: noqa: PTH105, PTH108, PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Final

from kvfs.fallback.checks import GROUP_INDEX_BYTES
from kvfs.paths import make_directories

# KV bytes are users' prompts: nobody but the owner reads them.
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
# What file systems without hard links say to link(2).
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
# No device accepts direct transfers of less than this alignment.
DIRECT_ALIGNMENT_MIN: Final = 512


@dataclass(slots=True)
class OpReport:
    """What one operation did, beyond its success; filled in as it goes, also when it fails."""

    bytes_moved: int = 0
    duplicate: bool = False
    healed: bool = False
    removed: bool = False
    # Where in the chunk a direct transfer was refused with EINVAL; None when none was.
    direct_refused_at: int | None = None


def chunk_path(base_path: str, key: bytes) -> str:
    """Return the path of a key's block file, as vLLM's FileMapper lays them out."""
    digits = key[:-GROUP_INDEX_BYTES].hex()
    group = int.from_bytes(key[-GROUP_INDEX_BYTES:], "big")
    return f"{base_path}/{digits[:3]}/{digits[3:5]}_g{group}/{digits}.bin"


def temporary_path(path: str) -> str:
    """Return a name beside `path` that no other writer can have, in this process or another."""
    # From the kernel each time: a seed in memory would be copied by fork().
    return f"{path}_{secrets.token_hex(8)}.tmp"


def store(temporary: str, path: str, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    """Write `chunk` to `temporary` and publish it at `path`; a good file there is left alone.

    Blocks. Missing directories are made. The temporary is gone afterwards, whatever happened.

    Raises:
        OSError: What the system said; EISDIR when a directory lies at `path`.
    """
    if _holds_chunk(path, len(chunk)):
        report.duplicate = True
        return
    fd = _create(temporary)
    try:
        try:
            _write_all(fd, chunk, direct=direct, report=report)
        finally:
            # Network file systems report a full disk here.
            os.close(fd)
        _publish(temporary, path, len(chunk), report)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if not report.duplicate:
        report.bytes_moved = len(chunk)


def load(path: str, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    """Fill `chunk` from the file at `path`, which must have exactly its size.

    Blocks. A shorter file is removed: its truncation is proven. After a failure the bytes of
    `chunk` are unspecified.

    Raises:
        OSError: What the system said; EBADMSG for a wrong size, EISDIR for a directory.
    """
    # Without O_NONBLOCK a FIFO would keep the thread for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        problem = _mismatch(status, len(chunk))
        if not problem:
            _read_all(fd, chunk, direct=direct, report=report)
            if report.bytes_moved == len(chunk):
                return
            # It was cut while we read. Only the size proves that; a short answer alone does not.
            status = os.fstat(fd)
            problem = errno.EBADMSG
        if stat.S_ISREG(status.st_mode) and status.st_size < len(chunk):
            report.removed = _remove_truncated(path, status)
        raise OSError(problem, _describe(problem, status, len(chunk)), path)
    finally:
        # Nothing was written: what close() says is no failure of the load.
        with contextlib.suppress(OSError):
            os.close(fd)


def lookup(path: str, chunk_size_bytes: int) -> int:
    """Return 0 when a chunk of that size lies at `path`, otherwise the errno that says why not."""
    try:
        return _mismatch(os.lstat(path), chunk_size_bytes)
    except OSError as error:
        return error.errno or errno.EIO


def exists(path: str) -> bool:
    """Tell whether a regular file that is not empty lies at `path`; any failure is a no."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def _mismatch(status: os.stat_result, chunk_size_bytes: int) -> int:
    if stat.S_ISDIR(status.st_mode):
        return errno.EISDIR
    if stat.S_ISLNK(status.st_mode):
        return errno.ELOOP
    if not stat.S_ISREG(status.st_mode) or status.st_size != chunk_size_bytes:
        return errno.EBADMSG
    return 0


def _describe(problem: int, status: os.stat_result, chunk_size_bytes: int) -> str:
    if problem != errno.EBADMSG:
        return os.strerror(problem)
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return f"the file has {status.st_size} bytes, but a chunk has {chunk_size_bytes}"


def _holds_chunk(path: str, chunk_size_bytes: int) -> bool:
    """Tell whether the chunk is there already.

    Raises:
        OSError: EISDIR for a directory, which no store can replace; what the system said otherwise.
    """
    problem = lookup(path, chunk_size_bytes)
    if problem in (0, errno.ENOENT, errno.EBADMSG, errno.ELOOP):
        # ELOOP of a parent comes back from creating the temporary beside it.
        return problem == 0
    raise OSError(problem, os.strerror(problem), path)


def _create(temporary: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(temporary, flags, _FILE_MODE)
    except FileNotFoundError:
        # Optimistic: the directory is there but for the first chunk in it.
        make_directories(os.path.dirname(temporary))
        return os.open(temporary, flags, _FILE_MODE)


def _publish(temporary: str, path: str, chunk_size_bytes: int, report: OpReport) -> None:
    """Move the whole temporary into place; a good file that came first stays."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        os.unlink(temporary)
        return
    if _holds_chunk(path, chunk_size_bytes):
        report.duplicate = True
        os.unlink(temporary)
        return
    existed = os.path.lexists(path)
    os.replace(temporary, path)
    report.healed = existed


def _remove_truncated(path: str, proven: os.stat_result) -> bool:
    """Remove the file that was found too short, unless another writer has replaced it since."""
    try:
        current = os.lstat(path)
        if (current.st_dev, current.st_ino) != (proven.st_dev, proven.st_ino):
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


def _write_all(fd: int, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    direct = direct and _enter_direct(fd, report)
    done = 0
    # One call moves at most 2,147,479,552 bytes on Linux, so larger chunks take several turns.
    while done < len(chunk):
        try:
            moved = os.pwrite(fd, chunk[done:], done)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _leave_direct(fd, done, report)
            continue
        if moved == 0:
            raise OSError(errno.EIO, "the file system wrote nothing and gave no reason")
        done += moved


def _read_all(fd: int, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    """Read until `chunk` is full or the file ends; `bytes_moved` tells which."""
    direct = direct and _enter_direct(fd, report)
    while report.bytes_moved < len(chunk):
        try:
            moved = os.preadv(fd, [chunk[report.bytes_moved :]], report.bytes_moved)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _leave_direct(fd, report.bytes_moved, report)
            continue
        if moved == 0:
            return
        report.bytes_moved += moved


def _enter_direct(fd: int, report: OpReport) -> bool:
    """Switch the open file to O_DIRECT; tell whether its file system has it.

    After opening and not in open(), where some file systems refuse the flag only once the new file
    is there.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        report.direct_refused_at = 0
        return False
    return True


def _leave_direct(fd: int, offset: int, report: OpReport) -> bool:
    """Switch the open file back to buffered and return False, the new state."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
    report.direct_refused_at = offset
    return False
