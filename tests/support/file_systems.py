"""Small real file systems for tests, in a mount namespace of their own: nothing is left, however a run ends.

The process that calls `enter_namespace` sees what it mounts, and nobody else does. When it ends, be it by
SIGKILL, the kernel takes the namespace, its mounts and their loop devices away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuse_mount import FuseMount

MIB: Final = 1 << 20
# As small as tests need or mkfs takes; an image is a sparse file, so that only what is written costs room.
SIZE_BYTES_MIN: Final = {"ext4": 32 * MIB, "xfs": 300 * MIB, "btrfs": 112 * MIB, "tmpfs": 32 * MIB}
ALL: Final = ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse")
# Those with a device of 4 KiB sectors below them.
LARGE_SECTORS: Final = ("ext4-4k", "xfs-4k")
_MKFS: Final = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
_TOOL_TIMEOUT_S: Final = 60
_UNMOUNT_TIMEOUT_S: Final = 20.0
_CLONE_NEWNS: Final = 0x00020000
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN.
_IOC_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = (2).to_bytes(4, sys.byteorder)
_namespace: list[int] = []


def enter_namespace() -> None:
    """Give this process a mount namespace of its own, once; other processes then do not see its mounts.

    Raises:
        OSError: It may not have one: it is not root, or in a container without that right.
    """
    if _namespace:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a mount namespace ({os.strerror(code)}): these tests mount")
    # What is mounted from now on does not appear where the rest of the system is.
    run("mount", "--make-rprivate", "/")
    _namespace.append(os.getpid())


def run(*command: str | Path) -> str:
    """Run a tool of the system and return what it printed.

    Raises:
        OSError: It failed; the message has its output.
    """
    # Debian's places for them are not on every user's PATH.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=_TOOL_TIMEOUT_S,
        env={**os.environ, "PATH": path},
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Disk:
    """One mounted file system.

    Attributes:
        kind: One of `ALL`, or of `LARGE_SECTORS`.
        directory: Its root, empty for the test but for what mkfs makes.
        store: Where its bytes lie without a layer in between; what fills it up goes there.
        fuse: The process behind it, if it is a FUSE file system.
    """

    kind: str
    directory: Path
    store: Path
    fuse: FuseMount | None = None

    def fresh(self) -> Path:
        """Make and return an empty directory that all users can enter."""
        directory = Path(tempfile.mkdtemp(prefix="case-", dir=self.directory))
        directory.chmod(0o755)
        return directory

    def fill_up(self, leave_bytes: int) -> Path:
        """Leave this much room; the filler, whose path is returned, has all the rest."""
        filler = self.store / "filler"
        fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            size_bytes = _take_all_room(fd)
            os.ftruncate(fd, max(size_bytes - leave_bytes, 0))
            os.fsync(fd)
        finally:
            os.close(fd)
        # Room that was given back may be usable only after this (btrfs).
        run("sync", "-f", self.store)
        return filler

    def make_room(self) -> None:
        """Remove the filler, and wait until its room can be used."""
        (self.store / "filler").unlink(missing_ok=True)
        run("sync", "-f", self.store)

    def remount(self, option: str) -> None:
        """Make it read-only ("ro") or writable ("rw") while it is used."""
        run("mount", "-o", f"remount,{option}", self.directory)

    def die(self) -> None:
        """Let an ext4 or xfs answer everything with EIO from now on, as if its device were gone."""
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)


class Mounts:
    """Makes file systems in a directory of its own, and takes all of them away at the end."""

    def __init__(self) -> None:
        enter_namespace()
        self._stack = contextlib.ExitStack()
        # pytest's own temporary directories are closed to other users, which some tests become.
        self._root = Path(tempfile.mkdtemp(prefix="kvfs-disks-"))
        self._root.chmod(0o755)
        self._stack.callback(shutil.rmtree, self._root)
        self._made = 0

    def make(self, kind: str, size_bytes: int = 0, options: str = "", mkfs: Sequence[str] = ()) -> Disk:
        """Make and mount a file system of at least this size.

        Args:
            kind: One of `ALL`, or of `LARGE_SECTORS`.
            size_bytes: How large, of what is below it for overlay and FUSE.
            options: More mount options.
            mkfs: More arguments of mkfs.

        Raises:
            OSError: This system cannot do that; the message says what failed.
        """
        match kind:
            case "tmpfs":
                size = f"size={max(size_bytes, SIZE_BYTES_MIN[kind])}"
                directory = self._mount("tmpfs", "none", f"{size},{options}" if options else size)
                return Disk(kind, directory, directory)
            case "overlay":
                return self.overlay(self.make("ext4", size_bytes).directory)
            case "fuse":
                return self._fuse(self.make("ext4", size_bytes).directory)
            case _:
                name, _, sectors = kind.partition("-")
                image = self._image(name, size_bytes)
                if sectors:
                    return self._on_large_sectors(kind, name, image)
                run(*_MKFS[name], *mkfs, image)
                directory = self._mount(name, str(image), f"loop,{options}" if options else "loop")
                # The loop device keeps it; a run that is killed leaves no image behind.
                image.unlink()
                return Disk(kind, directory, directory)

    def close(self) -> None:
        """Unmount everything, last things first, and remove the images."""
        self._stack.close()

    def on_close(self, call: Callable[[], None]) -> None:
        """Have something done before what was mounted until now is unmounted."""
        self._stack.callback(call)

    def _new_directory(self) -> Path:
        self._made += 1
        directory = self._root / f"{self._made}"
        directory.mkdir()
        return directory

    def _image(self, name: str, size_bytes: int) -> Path:
        image = self._new_directory() / f"{name}.image"
        with image.open("wb") as file:
            file.truncate(max(size_bytes, SIZE_BYTES_MIN[name]))
        return image

    def _mount(self, name: str, source: str, options: str) -> Path:
        directory = self._new_directory()
        run("mount", "-t", name, "-o", options, source, directory)
        self._stack.callback(_unmount, directory)
        directory.chmod(0o755)
        return directory

    def overlay(self, base: Path) -> Disk:
        """Mount `base`/lower and `base`/upper, which are made if they are missing, as one file system."""
        for name in ("lower", "upper", "work"):
            (base / name).mkdir(exist_ok=True)
        options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        return Disk("overlay", self._mount("overlay", "overlay", options), base)

    def _fuse(self, base: Path) -> Disk:
        shown = base / "shown"
        shown.mkdir()
        mount_point = self._new_directory()
        fuse = FuseMount(mount_point, shown)
        self._stack.callback(fuse.reap)
        self._stack.callback(_unmount, mount_point)
        self._stack.callback(fuse.end)
        return Disk("fuse", mount_point, base, fuse)

    def _on_large_sectors(self, kind: str, name: str, image: Path) -> Disk:
        device = run("losetup", "--find", "--show", "--sector-size", "4096", "--direct-io=on", image).strip()
        try:
            run(*_MKFS[name], device)
            directory = self._mount(name, device, "rw")
        finally:
            # While it is mounted this only says that the device goes with the mount.
            run("losetup", "--detach", device)
            image.unlink()
        return Disk(kind, directory, directory)


def _unmount(directory: Path) -> None:
    deadline = time.monotonic() + _UNMOUNT_TIMEOUT_S
    while True:
        try:
            run("umount", directory)
        except OSError:
            # Something that was closed a moment ago may still be on its way.
            if time.monotonic() > deadline:
                run("umount", "--lazy", directory)
                raise
            time.sleep(0.01)
        else:
            return


def _take_all_room(fd: int) -> int:
    """Let a file grow until nothing is left, without writing where that can be had; return its size."""
    size_bytes, step = 0, 256 * MIB
    while step >= 4096:
        try:
            os.posix_fallocate(fd, size_bytes, step)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            step //= 2
        else:
            size_bytes += step
    return size_bytes
