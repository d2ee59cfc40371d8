"""An engine's life: drain, close, what it holds until then, and one completion a job whatever happens."""

from __future__ import annotations

import errno
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import CompletionLike, EngineLike, IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

DEADLINE_S = 30.0


def _threads() -> set[str]:
    """Return the ids of this process's threads, Python's and others."""
    return {entry.name for entry in Path("/proc/self/task").iterdir()}


def _await(condition: Callable[[], bool]) -> bool:
    """Poll until `condition` holds; False when it does not within the bound."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def test_drain_idle_engine_returns_at_once(start_rig: StartRig, tmp_path: Path) -> None:
    engine = start_rig(tmp_path).engine
    assert engine.drain()
    assert engine.drain(0)
    assert engine.drain(1e12)
    assert list(engine.poll()) == []


@pytest.mark.parametrize("timeout_s", [-1.0, -1, float("nan")], ids=str)
def test_drain_impossible_timeout_raises_value_error(
    start_rig: StartRig, tmp_path: Path, timeout_s: float
) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        start_rig(tmp_path).engine.drain(timeout_s)


def test_drain_busy_engine_times_out_then_gets_there(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    count = 100
    job_id = rig.submit("store", [rig.key(number) for number in range(count)], [0] * count)
    # 100 MiB cannot be on disk yet: nothing of this waits for it.
    assert list(rig.engine.poll()) == []
    assert not rig.engine.drain(0)
    assert not rig.engine.drain(0.001)
    assert rig.engine.stats()["inflight_jobs"] == 1
    assert rig.engine.drain(60)
    assert rig.engine.stats()["inflight_jobs"] == 0
    assert [done.job_id for done in rig.engine.poll()] == [job_id]


def test_drain_runs_without_the_gil(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    drained: list[bool] = []
    rig.submit("store", [rig.key(number) for number in range(50)], [0] * 50)
    drainer = threading.Thread(target=lambda: drained.append(rig.engine.drain(60)))
    drainer.start()
    steps = 0
    while drainer.is_alive():
        steps += 1
        time.sleep(0)
    assert drained == [True]
    assert steps > 10


def test_poll_returns_each_completion_once(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    rig.submit("lookup", [rig.key(1)])
    rig.submit("lookup", [])
    assert rig.engine.drain(30)
    assert sorted(done.job_id for done in rig.engine.poll()) == [0, 1]
    assert list(rig.engine.poll()) == []


def test_500_mixed_jobs_from_four_threads_complete_exactly_once(start_rig: StartRig, storage: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rig = start_rig(storage, num_chunks=16, chunk_size_bytes=512, threads=(3, 3))
    accepted: dict[int, tuple[str, int]] = {}
    lock = threading.Lock()

    def submit_many(worker: int) -> None:
        rng = random.Random(seed + worker)
        for number in range(125):
            job_id = worker * 1000 + number
            keys = [rig.key(rng.randrange(40)) for _ in range(rng.randrange(6))]
            kind = rng.choice(["store", "load", "lookup"])
            with lock:
                accepted[job_id] = (kind, len(keys))
            packed = b"".join(keys)
            if kind == "lookup":
                rig.engine.submit_lookup(job_id, packed, 36)
            else:
                submit = rig.engine.submit_load if kind == "load" else rig.engine.submit_store
                submit(job_id, packed, 36, [rng.randrange(16) for _ in keys])

    workers = [threading.Thread(target=submit_many, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    completions: list[CompletionLike] = []

    def all_polled() -> bool:
        completions.extend(rig.engine.poll())
        return len(completions) >= len(workers) * 125

    assert _await(all_polled)
    for worker in workers:
        worker.join()
    assert rig.engine.drain(30)
    completions.extend(rig.engine.poll())
    assert sorted(done.job_id for done in completions) == sorted(accepted)
    assert {done.job_id: (done.kind, len(done.outcomes)) for done in completions} == accepted
    seen = Counter(outcome for done in completions for outcome in done.outcomes)
    assert set(seen) <= {0, errno.ENOENT}
    assert list(storage.rglob("*.tmp")) == []


def test_close_full_queue_completes_every_job_once(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, num_chunks=4, chunk_size_bytes=65536, threads=(1, 1))
    chunk = rig.tier.fill(0, seed=1)
    jobs = {
        rig.submit("store", [rig.key(3 * job + op) for op in range(3)], [0] * 3): job for job in range(400)
    }
    jobs_of_loads = [rig.submit("load", [rig.key(2000)], [1]) for _ in range(10)]
    rig.engine.close()
    completions = {done.job_id: done for done in rig.finish().values()}
    assert sorted(completions) == sorted([*jobs, *jobs_of_loads])
    cancelled = 0
    for job_id, job in jobs.items():
        for op, outcome in enumerate(completions[job_id].outcomes):
            path = rig.path(rig.key(3 * job + op))
            assert outcome in (0, errno.ECANCELED)
            # Whole, or not there at all.
            assert (path.read_bytes() == chunk) if outcome == 0 else not path.exists()
            cancelled += outcome != 0
        if any(completions[job_id].outcomes):
            assert completions[job_id].detail.startswith("store failed for chunk ")
            assert completions[job_id].detail.endswith(" because the engine was closed before it started")
    assert cancelled > 0
    assert all(completions[job_id].outcomes[0] in (errno.ENOENT, errno.ECANCELED) for job_id in jobs_of_loads)
    assert rig.engine.stats()["inflight_jobs"] == 0
    assert list(storage.rglob("*.tmp")) == []


def test_close_in_the_middle_of_a_job_keeps_what_was_done(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=65536, threads=(2, 2))
    keys = [rig.key(number) for number in range(2000)]
    job_id = rig.submit("store", keys, [0] * 2000)
    assert _await(lambda: rig.path(keys[3]).exists())
    rig.engine.close()
    completions = rig.engine.poll()
    assert [done.job_id for done in completions] == [job_id]
    outcomes = completions[0].outcomes
    assert set(outcomes) == {0, errno.ECANCELED}
    assert [outcome == 0 for outcome in outcomes] == [rig.path(key).exists() for key in keys]
    assert completions[0].bytes_moved == outcomes.count(0) * 65536
    assert list(storage.rglob("*.tmp")) == []


def test_close_ends_a_drain_in_another_thread(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    rig.submit("store", [rig.key(number) for number in range(2000)], [0] * 2000)
    drained: list[bool] = []
    drainer = threading.Thread(target=lambda: drained.append(rig.engine.drain()), daemon=True)
    drainer.start()
    assert _await(lambda: rig.path(rig.key(0)).exists())
    rig.engine.close()
    drainer.join(DEADLINE_S)
    assert drained == [True]


def _submit_until_closed(engine: EngineLike, accepted: list[int], started: threading.Event) -> None:
    # Bounded, since a loop of this kind can keep others from the engine's lock for long.
    for job_id in range(2000):
        try:
            engine.submit_lookup(job_id, bytes(36) * 3, 36)
        except RuntimeError:
            return
        accepted.append(job_id)
        started.set()


def test_close_racing_with_submits_completes_what_was_accepted(start_rig: StartRig, tmp_path: Path) -> None:
    for _ in range(20):
        engine = start_rig(tmp_path).engine
        accepted: list[int] = []
        started = threading.Event()
        submitter = threading.Thread(target=_submit_until_closed, args=(engine, accepted, started))
        submitter.start()
        assert started.wait(DEADLINE_S)
        engine.close()
        submitter.join(DEADLINE_S)
        assert not submitter.is_alive()
        assert sorted(done.job_id for done in engine.poll()) == accepted


def test_close_twice_and_from_many_threads_is_harmless(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1, chunk_size_bytes=1 << 20)
    before = rig.submit("store", [rig.key(number) for number in range(50)], [0] * 50)
    closers = [threading.Thread(target=rig.engine.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(DEADLINE_S)
        assert not closer.is_alive()
    rig.engine.close()
    assert [done.job_id for done in rig.engine.poll()] == [before]
    assert rig.engine.drain()
    assert list(rig.engine.poll()) == []
    assert rig.engine.stats()["inflight_jobs"] == 0


@pytest.mark.parametrize("kind", ["store", "load", "lookup"])
@pytest.mark.parametrize("count", [0, 1], ids=["empty", "one-key"])
def test_submit_after_close_raises_runtime_error(
    start_rig: StartRig, tmp_path: Path, kind: str, count: int
) -> None:
    rig = start_rig(tmp_path)
    rig.engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        rig.submit(kind, [rig.key(1)] * count, [0] * count)
    assert list(rig.engine.poll()) == []


def test_close_releases_the_buffer(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    rig.store([rig.key(1)], [0])
    rig.load([rig.key(1), rig.key(2)], [1, 2])
    # vLLM does this at shutdown.
    with pytest.raises(BufferError):
        rig.tier.view.release()
    rig.engine.close()
    rig.tier.view.release()


def test_engine_starts_its_threads_and_close_ends_them(io: IoBackend, tmp_path: Path) -> None:
    buffer = memoryview(bytearray(64)).cast("B", (8, 8))
    before = _threads()
    engine = io.Engine(str(tmp_path), buffer, 5, 7, True)
    assert _await(lambda: len(_threads() - before) == 12)
    started = _threads() - before
    engine.close()
    # The kernel's entry may outlive the join by a moment.
    assert _await(lambda: not _threads() & started)


def test_engine_dropped_without_close_ends_its_threads_and_releases_the_buffer(
    io: IoBackend, tmp_path: Path
) -> None:
    buffer = memoryview(bytearray(64)).cast("B", (8, 8))
    before = _threads()
    engine = io.Engine(str(tmp_path), buffer, 2, 2, True)
    engine.submit_lookup(1, bytes(36), 36)
    started = _threads() - before
    del engine
    gc.collect()
    assert _await(lambda: not _threads() & started)
    buffer.release()


def test_engines_opened_and_closed_often_leave_nothing(io: IoBackend, tmp_path: Path) -> None:
    buffer = memoryview(bytearray(64)).cast("B", (8, 8))
    before = _threads()
    for _ in range(50):
        engine = io.Engine(str(tmp_path), buffer, 2, 2, True)
        engine.submit_lookup(1, bytes(36) * 10, 36)
        engine.close()
        assert len(engine.poll()) == 1
    assert _await(lambda: _threads() <= before)
    buffer.release()
