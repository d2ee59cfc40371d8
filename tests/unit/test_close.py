"""`close` with a time-out, where a disk does not answer: it returns, says what it left, can be repeated."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import DEADLINE_S, await_that, small_buffer

from kvfs import fallback
from kvfs.fallback import files

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig


@pytest.mark.parametrize("timeout_s", [0, 0.0, 5, 60.5, 1e12, None], ids=str)
def test_close_of_an_idle_engine_returns_0_again_and_again(
    start_rig: StartRig, storage: Path, timeout_s: float | None
) -> None:
    rig = start_rig(storage)
    rig.store([rig.key(1)], [0])
    assert rig.await_stats(scan_complete=1)
    assert await_that(lambda: rig.engine.close(timeout_s) == 0)
    assert rig.engine.close(timeout_s) == 0
    assert rig.engine.close() == 0
    rig.tier.view.release()


@pytest.mark.parametrize("timeout_s", [-1, -0.5, float("nan")], ids=str)
def test_close_with_an_impossible_time_raises_value_error(
    start_rig: StartRig, tmp_path: Path, timeout_s: float
) -> None:
    rig = start_rig(tmp_path)
    with pytest.raises(ValueError, match="timeout_s"):
        rig.engine.close(timeout_s)
    # And closes nothing.
    assert rig.store([rig.key(1)], [0]).outcomes == [0]


def test_close_with_no_time_returns_soon_and_counts_what_runs(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1, chunk_size_bytes=32 << 20, threads=(1, 1))
    job = rig.submit("store", [rig.key(number) for number in range(4)], [0] * 4)
    unfinished = rig.engine.close(0)
    assert unfinished in (0, 1)
    if unfinished:
        with pytest.raises(BufferError):
            rig.tier.view.release()
    assert rig.engine.close(DEADLINE_S) == 0
    (done,) = rig.engine.poll()
    assert done.job_id == job
    assert set(done.outcomes) <= {0, errno.ECANCELED}
    rig.tier.view.release()


class Hung:
    """Holds every thread that comes by until it is told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def holding(self, function: Callable[..., object]) -> Callable[..., object]:
        def wait(*arguments: object, **options: object) -> object:
            self.entered.release()
            assert self.go_on.wait(DEADLINE_S)
            return function(*arguments, **options)

        return wait


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    """Have the Python engine's stores hang; they go on after the test."""
    hung = Hung()
    monkeypatch.setattr(files, "store", hung.holding(files.store))
    yield hung
    hung.go_on.set()


def test_close_where_the_disk_hangs_returns_in_time_and_ends_when_it_answers(
    hung: Hung, tmp_path: Path
) -> None:
    buffer = small_buffer()
    engine = fallback.Engine(str(tmp_path), buffer, 1, 1)
    for job in range(3):
        engine.submit_store(job, bytes([job]) * 36, 36, [0])
    assert hung.entered.acquire(timeout=DEADLINE_S)
    begun = time.monotonic()
    assert engine.close(0.2) in (1, 2)
    assert 0.2 <= time.monotonic() - begun < DEADLINE_S
    # What has not begun was cancelled; it is known at once.
    cancelled = engine.poll()
    assert [done.outcomes for done in cancelled] == [[errno.ECANCELED]] * len(cancelled)
    with pytest.raises(BufferError):
        buffer.release()
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit_store(9, bytes(36), 36, [0])
    assert engine.stats()["inflight_jobs"] == 3 - len(cancelled)
    hung.go_on.set()
    assert engine.close(DEADLINE_S) == 0
    assert [done.outcomes for done in engine.poll()] == [[0]] * (3 - len(cancelled))
    buffer.release()


def test_engine_that_is_dropped_while_the_disk_hangs_leaves_its_memory_alone(
    hung: Hung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvfs.fallback.core._DROPPED_TIMEOUT_S", 0.1)
    buffer = small_buffer()
    engine = fallback.Engine(str(tmp_path), buffer, 1, 1)
    engine.submit_store(1, bytes(36), 36, [0])
    assert hung.entered.acquire(timeout=DEADLINE_S)
    del engine
    with pytest.raises(BufferError):
        buffer.release()


def test_stats_do_not_wait_for_a_disk_that_does_not_say_what_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Hung()
    engine = fallback.Engine(str(tmp_path), small_buffer(), 1, 1, capacity_bytes=1 << 20)
    monkeypatch.setattr(os, "statvfs", hung.holding(os.statvfs))
    try:
        assert hung.entered.acquire(timeout=DEADLINE_S)
        assert engine.stats()["evicted_chunks"] == 0
        engine.submit_store(1, bytes(36), 36, [0])
        assert engine.poll() == []
        assert engine.lookup(bytes(36)) is not None
        assert engine.take_evicted() == []
        assert engine.close(0.1) >= 1
    finally:
        hung.go_on.set()
    assert engine.close(DEADLINE_S) == 0
