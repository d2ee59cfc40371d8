"""Which file systems are taken for this machine's alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfs import filesystems


@pytest.fixture(params=["plain", "with space", "back\\slash"])
def mounted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A mount point whose name the mount table has to escape."""
    point = tmp_path / request.param
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_kernel_memory_is_local_and_process_files_are_not() -> None:
    assert filesystems.is_local("/dev/shm")
    assert not filesystems.is_local("/proc/self")


def test_directory_that_is_not_there_yet_is_where_its_parent_is() -> None:
    assert filesystems.is_local("/dev/shm/kvfs-not-there/at/all")
    assert not filesystems.is_local("/proc/kvfs-not-there/at/all")


@pytest.mark.needs_root
def test_mount_is_found_whatever_its_name(mounted: Path) -> None:
    assert filesystems.is_local(str(mounted))
    assert filesystems.is_local(str(mounted / "below"))


@pytest.mark.needs_root
def test_bind_mount_is_what_lies_behind_it(tmp_path: Path) -> None:
    point = tmp_path / "bound"
    point.mkdir()
    subprocess.run(["mount", "--bind", "/proc", str(point)], check=True)
    try:
        assert not filesystems.is_local(str(point / "kvfs-not-there"))
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert not filesystems.is_local(str(link / "self"))


def test_unreadable_mount_table_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_MOUNTS", tmp_path / "nothing")
    assert not filesystems.is_local("/dev/shm")
