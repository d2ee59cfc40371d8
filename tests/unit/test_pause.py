"""Disks that take no stores: those pause and go on by themselves, and loads go on meanwhile."""

from __future__ import annotations

import errno
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that, until_admitted

from kvfs.fallback.pause import StorePause

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, Rig, StartRig

CHUNK = 65536


class Disk:
    """A file system that can be made full or read-only, with an engine on it."""

    def __init__(self, start_rig: StartRig, directory: Path, trouble: str) -> None:
        self.directory = directory
        self.code = errno.ENOSPC if trouble == "full" else errno.EROFS
        self.rig: Rig = start_rig(directory / "ns", num_chunks=2, chunk_size_bytes=CHUNK)
        self.chunk = self.rig.tier.fill(0, seed=1)
        self._filler = directory / "filler"

    def break_down(self) -> None:
        if self.code == errno.EROFS:
            self._remount("ro")
            return
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - always raised, to end the loop

    def recover(self) -> None:
        if self.code == errno.EROFS:
            self._remount("rw")
        else:
            self._filler.unlink()

    def _remount(self, option: str) -> None:
        command = ["mount", "-o", f"remount,{option}", str(self.directory)]
        subprocess.run(command, check=True, timeout=30)


@pytest.fixture(params=["full", "read-only"])
def disk(request: pytest.FixtureRequest, start_rig: StartRig, mount: Mount) -> Disk:
    return Disk(start_rig, mount("tmpfs", options="size=4m"), request.param)


@pytest.mark.needs_root
def test_after_a_failure_later_jobs_are_shed_at_once_and_loads_go_on(disk: Disk) -> None:
    rig = disk.rig
    stored = rig.key(0)
    assert rig.store([stored], [0]).outcomes == [0]
    disk.break_down()
    begun = time.monotonic()
    assert rig.store([rig.key(1)], [0]).outcomes == [disk.code]
    shed = rig.store([rig.key(2), rig.key(3)], [0, 0])
    if time.monotonic() - begun < 1:
        assert shed.outcomes == [errno.EAGAIN] * 2
        assert "the disk takes none now" in shed.detail
        assert rig.engine.stats()["paused_stores"] == 2
    assert rig.load([stored], [1]).outcomes == [0]
    assert rig.tier.row(1) == disk.chunk
    assert rig.lookup([stored, rig.key(2)]).outcomes == [0, errno.ENOENT]
    # A job without chunks is no reason to try.
    assert rig.store([], []).outcomes == []
    disk.recover()
    assert until_admitted(lambda: rig.store([rig.key(2)], [0])).outcomes == [0]
    assert time.monotonic() - begun >= 1
    # From then on all go through.
    assert rig.store([rig.key(3)], [0]).outcomes == [0]


@pytest.mark.needs_root
def test_while_it_stays_broken_one_job_is_tried_after_longer_and_longer_pauses(disk: Disk) -> None:
    rig = disk.rig
    disk.break_down()
    tried_at: list[float] = []

    def try_one() -> bool:
        (code,) = rig.store([rig.key(len(tried_at))], [0]).outcomes
        assert code in (disk.code, errno.EAGAIN)
        if code == disk.code:
            tried_at.append(time.monotonic())
        return len(tried_at) == 3

    assert await_that(try_one)
    first, second, third = tried_at
    assert second - first >= 0.9
    assert third - second >= 1.9
    disk.recover()
    assert until_admitted(lambda: rig.store([rig.key(9)], [0])).outcomes == [0]


@pytest.mark.needs_root
def test_what_is_queued_is_still_tried(disk: Disk) -> None:
    rig = disk.rig
    disk.break_down()
    keys = [rig.key(number) for number in range(20)]
    assert rig.store(keys, [0] * 20).outcomes == [disk.code] * 20
    assert rig.engine.stats()["paused_stores"] == 0


@pytest.mark.needs_root
def test_duplicates_do_not_end_the_pause(disk: Disk) -> None:
    rig = disk.rig
    stored = rig.key(0)
    rig.store([stored], [0])
    disk.break_down()
    assert rig.store([rig.key(1)], [0]).outcomes == [disk.code]
    # The job that is let through has a chunk that is there already, and one that does not fit.
    assert until_admitted(lambda: rig.store([stored], [0])).outcomes == [0]
    assert rig.store([rig.key(1)], [0]).outcomes == [errno.EAGAIN]


@pytest.mark.parametrize("harm", ["row", "directory"])
def test_other_failures_pause_nothing(start_rig: StartRig, storage: Path, harm: str) -> None:
    rig = start_rig(storage, num_chunks=1)
    key = rig.key(1)
    if harm == "directory":
        rig.path(key).mkdir(parents=True)
    for _ in range(5):
        assert rig.store([key], [1 if harm == "row" else 0]).outcomes[0] in (errno.EINVAL, errno.EISDIR)
        assert rig.store([rig.key(2)], [0]).outcomes == [0]
    assert rig.engine.stats()["paused_stores"] == 0


def test_pauses_of_the_python_engine_double_up_to_a_minute() -> None:
    now = 0.0
    pause = StorePause(lambda: now)
    assert pause.admits()
    pause.note(errno.EDQUOT)
    lengths = []
    for _ in range(9):
        begun = now
        while not pause.admits():
            now += 0.5
        lengths.append(now - begun)
        pause.note(errno.ENOSPC)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    pause.note(errno.EIO)
    assert not pause.admits()
    pause.note(0)
    assert pause.admits()
    assert pause.admits()
