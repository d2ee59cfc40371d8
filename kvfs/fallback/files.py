"""What happens on disk for one chunk: store, load and lookup of a block file, with plain system calls."""

# Paths stay strings: a Path a chunk costs more than some of the calls.
# ruff: noqa: PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from typing import Final

from kvfs.fallback.seals import Seal, Verdict
from kvfs.fallback.writers import temporary_name
from kvfs.paths import make_directories
from kvfs.permissions import FILE_MODE, set_file_mode

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
    # The size of the file that was removed or healed.
    removed_bytes: int = 0
    # Of a load: the content is not what its seal says; or it is.
    damaged: bool = False
    verified: bool = False
    # Where in the chunk a direct transfer was refused with EINVAL; None when none was.
    direct_refused_at: int | None = None


@dataclass(frozen=True, slots=True)
class BlockFile:
    """Where one chunk lies, and how its file is made.

    Attributes:
        name: Its name in the directory, or its path.
        directory: An open directory; None for a path, whose missing directories a store makes.
        mode: Mode of a new file, whatever the umask is.
        seal: Written and verified; None for neither.
    """

    name: str
    directory: int | None = None
    mode: int = FILE_MODE
    seal: Seal | None = None

    def open(self, flags: int) -> int:
        """Open the file, but through no link."""
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.directory)

    def status(self) -> os.stat_result:
        """Look at what lies there."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)

    def unlink(self) -> None:
        """Remove what lies there."""
        os.unlink(self.name, dir_fd=self.directory)


def store(file: BlockFile, temporary: str, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    """Write `chunk` to `temporary`, seal it and publish it; a good file there is left alone.

    Blocks. The temporary lies in the file's directory and is gone afterwards, whatever happened.

    Raises:
        OSError: What the system said; EISDIR when a directory lies there.
    """
    if _holds_chunk(file, len(chunk)):
        report.duplicate = True
        return
    written = BlockFile(temporary, file.directory, file.mode, file.seal)
    fd = _create(written)
    try:
        try:
            # Before the seal: the kernel asks the mode whether attributes may be written.
            set_file_mode(fd, file.mode)
            _write_all(fd, chunk, direct=direct, report=report)
            if file.seal is not None:
                file.seal.put(fd, chunk)
        finally:
            # Network file systems report a full disk here.
            os.close(fd)
        _publish(written, file, len(chunk), report)
    except BaseException:
        with contextlib.suppress(OSError):
            written.unlink()
        raise
    if not report.duplicate:
        report.bytes_moved = len(chunk)


def load(file: BlockFile, chunk: memoryview, *, direct: bool, report: OpReport) -> None:
    """Fill `chunk` from the file, which must have exactly its size and the right content.

    Blocks. What is proven to be damaged or too short is removed. After a failure the bytes of `chunk` are
    unspecified.

    Raises:
        OSError: What the system said; EBADMSG for a wrong size or content, EISDIR for a directory, ENODATA
            for a file without the seal that is required.
    """
    # O_NONBLOCK: a FIFO would keep the thread for ever.
    fd = file.open(os.O_RDONLY)
    try:
        status = os.fstat(fd)
        problem = _mismatch(status, len(chunk))
        if not problem:
            _read_all(fd, chunk, direct=direct, report=report)
            if report.bytes_moved == len(chunk):
                _verify(file, fd, chunk, report)
                return
            # It was cut while we read. Only the size proves that; a short answer alone does not.
            status = os.fstat(fd)
            problem = errno.EBADMSG
        if stat.S_ISREG(status.st_mode) and status.st_size < len(chunk):
            _remove_proven(file, status, report)
        raise OSError(problem, _describe(problem, status, len(chunk)), file.name)
    finally:
        # Nothing was written: what close() says is no failure of the load.
        with contextlib.suppress(OSError):
            os.close(fd)


def _verify(file: BlockFile, fd: int, chunk: memoryview, report: OpReport) -> None:
    """Compare what was read with the file's seal; remove the file if it is damaged.

    Raises:
        OSError: EBADMSG, ENODATA (see `load`), or an attribute cannot be read.
    """
    verdict = Verdict.UNVERIFIED if file.seal is None else file.seal.check(fd, chunk)
    if verdict is Verdict.UNSEALED:
        raise OSError(errno.ENODATA, "the file has no whole seal, and checksum is 'require'", file.name)
    if verdict is Verdict.DAMAGED:
        report.damaged = True
        _remove_proven(file, os.fstat(fd), report)
        raise OSError(errno.EBADMSG, "the content is not what the file's checksum and key say", file.name)
    report.verified = verdict is Verdict.VERIFIED


def lookup(file: BlockFile, chunk_size_bytes: int) -> int:
    """Return 0 when a chunk of that size lies there, otherwise the errno that says why not."""
    try:
        return _mismatch(file.status(), chunk_size_bytes)
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


def _holds_chunk(file: BlockFile, chunk_size_bytes: int) -> bool:
    """Tell whether the chunk is there already.

    Raises:
        OSError: EISDIR for a directory, which no store can replace; what the system said otherwise.
    """
    problem = lookup(file, chunk_size_bytes)
    if problem == 0:
        return file.seal is None or not file.seal.required or _is_sealed(file, file.seal)
    if problem in (errno.ENOENT, errno.EBADMSG, errno.ELOOP):
        # ELOOP of a parent comes back from creating the temporary beside it.
        return False
    raise OSError(problem, os.strerror(problem), file.name)


def _is_sealed(file: BlockFile, seal: Seal) -> bool:
    try:
        fd = file.open(os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return seal.keeps(fd)
    finally:
        os.close(fd)


def _create(file: BlockFile) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(file.name, flags, file.mode, dir_fd=file.directory)
    except FileNotFoundError:
        if file.directory is not None:
            raise
        # Optimistic: the directory is there but for the first chunk in it.
        make_directories(os.path.dirname(file.name))
        return os.open(file.name, flags, file.mode)


def _publish(written: BlockFile, file: BlockFile, chunk_size_bytes: int, report: OpReport) -> None:
    """Move the whole temporary into place; a good file that came first stays."""
    directory = file.directory
    try:
        os.link(written.name, file.name, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        written.unlink()
        return
    if _holds_chunk(file, chunk_size_bytes):
        report.duplicate = True
        written.unlink()
        return
    try:
        wrong = file.status()
    except FileNotFoundError:
        wrong = None
    _rename(written, file)
    report.healed = wrong is not None
    if wrong is not None and stat.S_ISREG(wrong.st_mode):
        # Not more than a chunk: another writer may have been quicker, and then that is what was replaced.
        report.removed_bytes = min(wrong.st_size, chunk_size_bytes)


def _remove_proven(file: BlockFile, proven: os.stat_result, report: OpReport) -> None:
    """Remove the file that was found too short or damaged, unless another writer has replaced it since."""
    with contextlib.suppress(OSError):
        if not _is_same(file, proven):
            return
        # Another writer may come in between: what lies there by now is taken aside and looked at there.
        aside = BlockFile(temporary_name(file.name), file.directory)
        _rename(file, aside)
        if not _is_same(aside, proven):
            _put_back(aside, file)
            return
        aside.unlink()
        report.removed = True
        report.removed_bytes = proven.st_size


def _put_back(aside: BlockFile, file: BlockFile) -> None:
    """Undo the removal of a good file, unless yet another one has come since."""
    try:
        os.link(aside.name, file.name, src_dir_fd=aside.directory, dst_dir_fd=file.directory)
    except FileExistsError:
        pass
    except OSError:
        # No hard links here; of two good files either may stay.
        _rename(aside, file)
        return
    aside.unlink()


def _rename(source: BlockFile, target: BlockFile) -> None:
    os.replace(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


def _is_same(file: BlockFile, status: os.stat_result) -> bool:
    current = file.status()
    return (current.st_dev, current.st_ino) == (status.st_dev, status.st_ino)


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
