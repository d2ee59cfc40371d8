"""Quotas of the kernel, without Debian's quota tools: which ones work here, and how to set a limit."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from file_systems import Disk, Mounts, enter_namespace, run

# Whom a quota of a user binds: not root, which has CAP_SYS_RESOURCE on most machines.
NOBODY: Final = 65534
_PROJECT: Final = 77
_SYS_QUOTACTL_FD: Final = 443
_Q_SETQUOTA: Final = 0x800008
_USER, _PROJECTS = 0, 2
# struct if_dqblk: limits in KiB; QIF_BLIMITS says that those of bytes are meant.
_LIMITS: Final = struct.Struct("=QQQQQQQQI4x")
_BYTE_LIMITS: Final = 1
_FSGETXATTR: Final = 0x801C581F
_FSSETXATTR: Final = 0x401C5820
# struct fsxattr: flags, extent size, extents, project, copy-on-write extent size.
_FSXATTR: Final = struct.Struct("=IIIII8x")
_PROJECT_INHERITED: Final = 0x200


@dataclass(frozen=True)
class QuotaKind:
    """One kind of quota on one kind of file system."""

    disk: str
    scope: str
    options: str = ""
    mkfs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return what tests and reports call it."""
        return f"{self.disk}-{self.scope}"


KINDS: Final = (
    QuotaKind("ext4", "user", "usrquota", ("-O", "quota", "-E", "quotatype=usrquota")),
    QuotaKind("ext4", "project", "prjquota", ("-O", "quota,project", "-E", "quotatype=prjquota")),
    QuotaKind("xfs", "user", "uquota"),
    QuotaKind("xfs", "project", "pquota"),
    QuotaKind("tmpfs", "user", "usrquota"),
    QuotaKind("btrfs", "subvolume"),
)


@dataclass(frozen=True)
class Quota:
    """A directory whose bytes a quota bounds."""

    kind: QuotaKind
    disk: Disk
    directory: Path

    def limit(self, limit_bytes: int) -> None:
        """Bound the bytes, or with 0 let there be any number.

        Raises:
            OSError: The kernel has no such quota.
        """
        if self.kind.disk == "btrfs":
            run("btrfs", "qgroup", "limit", str(limit_bytes) if limit_bytes else "none", self.directory)
        elif self.kind.scope == "user":
            _set_limit(self.disk.directory, _USER, NOBODY, limit_bytes)
        else:
            _set_limit(self.disk.directory, _PROJECTS, _PROJECT, limit_bytes)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Be somebody whom the quota binds: not root, but for btrfs, which knows no exceptions."""
        if self.kind.disk == "btrfs":
            yield
            return
        # The C library changes all threads of the process, and new ones follow.
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)


def make(mounts: Mounts, kind: QuotaKind) -> Quota:
    """Make a file system with such a quota, without a limit yet.

    Raises:
        OSError: This kernel has none.
    """
    disk = mounts.make(kind.disk, options=kind.options, mkfs=kind.mkfs)
    directory = disk.directory / "bounded"
    if kind.disk == "btrfs":
        run("btrfs", "quota", "enable", disk.directory)
        run("btrfs", "subvolume", "create", directory)
    else:
        directory.mkdir()
        os.chown(directory, NOBODY, NOBODY)
    if kind.scope == "project":
        _join_project(directory)
    quota = Quota(kind, disk, directory)
    quota.limit(0)
    return quota


@functools.cache
def working() -> tuple[tuple[QuotaKind, ...], tuple[QuotaKind, ...]]:
    """Try every kind once; return those that this kernel has, and those that it has not."""
    enter_namespace()
    found: list[QuotaKind] = []
    missing: list[QuotaKind] = []
    for kind in KINDS:
        mounts = Mounts()
        try:
            make(mounts, kind)
        except OSError:
            missing.append(kind)
        else:
            found.append(kind)
        finally:
            mounts.close()
    return tuple(found), tuple(missing)


def _set_limit(directory: Path, kind: int, number: int, limit_bytes: int) -> None:
    limits = _LIMITS.pack(limit_bytes // 1024, limit_bytes // 1024, 0, 0, 0, 0, 0, 0, _BYTE_LIMITS)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        command = ctypes.c_uint(_Q_SETQUOTA << 8 | kind)
        if libc.syscall(_SYS_QUOTACTL_FD, fd, command, number, limits) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"quotactl: {os.strerror(code)}")
    finally:
        os.close(fd)


def _join_project(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fields = list(_FSXATTR.unpack(fcntl.ioctl(fd, _FSGETXATTR, bytes(_FSXATTR.size))))
        fields[0] |= _PROJECT_INHERITED
        fields[3] = _PROJECT
        fcntl.ioctl(fd, _FSSETXATTR, _FSXATTR.pack(*fields))
    finally:
        os.close(fd)
