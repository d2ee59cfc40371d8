"""What a directory lies on, how much of it is in the page cache, and how to get it out of there."""

import ctypes
import mmap
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.errors import UsageError

# Nothing that is measured on these says anything about a disk.
MEMORY_FILESYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Mount:
    """The file system that holds a directory.

    Attributes:
        filesystem: Its type, such as "ext4".
        options: Its mount options.
        device: The block device or source.
        device_model: What the device calls itself, or whether it rotates.
    """

    filesystem: str
    options: str
    device: str
    device_model: str


def mount_of(directory: Path) -> Mount:
    """Find the mount that a directory lies on in /proc/self/mountinfo."""
    wanted = directory.stat().st_dev
    resolved = directory.resolve()
    best: tuple[int, Mount] | None = None
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        major, minor = fields[2].split(":")
        point = Path(fields[4].encode().decode("unicode_escape"))
        if os.makedev(int(major), int(minor)) != wanted and not resolved.is_relative_to(point):
            continue
        # The device decides; overlays and subvolumes show another one, and there the longest path does.
        rank = len(point.parts) + (1000 if os.makedev(int(major), int(minor)) == wanted else 0)
        if not resolved.is_relative_to(point):
            rank -= 500
        if best is None or rank >= best[0]:
            kind, source, super_options = right.split(" ", 2)
            options = ",".join(dict.fromkeys((fields[5] + "," + super_options).split(",")))
            best = rank, Mount(kind, options, source, _device_model(fields[2]))
    return best[1] if best else Mount(_UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN)


def _device_model(number: str) -> str:
    block = Path("/sys/dev/block") / number
    for candidate in (block, block.resolve().parent):
        queue = candidate / "queue" / "rotational"
        if not queue.is_file():
            continue
        model = candidate / "device" / "model"
        name = model.read_text().strip() if model.is_file() else candidate.resolve().name
        return f"{name}, {'rotating' if queue.read_text().strip() == '1' else 'not rotating'}"
    return _UNKNOWN


def require_disk(directory: Path, needed_bytes: int) -> None:
    """Refuse a directory whose figures would say nothing about a disk, or that is too small.

    Raises:
        UsageError: Memory behind it, or not enough free space.
    """
    mount = mount_of(directory)
    if mount.filesystem in MEMORY_FILESYSTEMS:
        raise UsageError(
            f"{directory} is on {mount.filesystem}, which is memory, and this measures disks; name a "
            "directory on a disk with --work-dir"
        )
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise UsageError(
            f"{directory} has {free / 1e9:.1f} GB free and this run writes up to {needed_bytes / 1e9:.1f} "
            "GB; free some, or name another directory with --work-dir"
        )


def evict(directory: Path) -> float:
    """Get all files under a directory out of the page cache; return the share that stayed, 0 to 1.

    Nothing but whole pages that are on disk can be dropped, so each file is synced first.
    """
    resident = total = 0
    for path in _files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            pages, in_memory = _residency(descriptor)
        finally:
            os.close(descriptor)
        total += pages
        resident += in_memory
    return resident / total if total else 0.0


def used_bytes(directory: Path) -> int:
    """Return what the files under a directory take on disk."""
    return sum(path.stat().st_blocks * 512 for path in _files(directory))


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _residency(descriptor: int) -> tuple[int, int]:
    """Return how many pages a file has, and how many of them are in memory, by mincore(2)."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    # Python's own mmap does not tell the address of a mapping that cannot be written.
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        vector = ctypes.create_string_buffer(pages)
        if libc.mincore(address, size, vector) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(address, size)
    return pages, sum(byte & 1 for byte in vector.raw)
