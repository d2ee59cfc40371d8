"""Whether a directory lies on a file system that only this machine writes to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Locks and absences hold on these: no other machine can come in between. FUSE may be anything.
_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS: Final = Path("/proc/self/mountinfo")
# Fields before the separator: number, parent, major:minor, root, mount point, options, optional ones.
_DEVICE_FIELD: Final = 2
_POINT_FIELD: Final = 4


def is_local(directory: str) -> bool:
    """Say whether the file system of a directory is known to be local; False where that cannot be told.

    Reads the mount table; the directory or a parent of it must be there. Touches no other file.
    """
    path = Path(directory).absolute()
    try:
        while not path.exists():
            path = path.parent
        path = path.resolve()
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        device = path.stat().st_dev
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    by_device: str | None = None
    by_path: tuple[int, str] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        kind = right.split(" ", 1)[0]
        if len(fields) <= _POINT_FIELD or not kind:
            continue
        if fields[_DEVICE_FIELD] == wanted:
            by_device = kind
        # A subvolume shows another device than its mount, and there the longest path decides.
        point = fields[_POINT_FIELD].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")
        if path.is_relative_to(point) and (by_path is None or len(point) >= by_path[0]):
            by_path = len(point), kind
    return (by_device or (by_path[1] if by_path else "")) in _LOCAL
