"""Questions to the disk: when they are asked, which answers count, and how long an absence is believed."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY, IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

DEADLINE_S = 30.0
# So many questions are handed over without being told to.
BATCH = 64


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1, 5 * BATCH + 7])
def test_every_64th_question_hands_over_what_there_is(
    start_scanned: StartRig, unknown: int, count: int
) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(count)]
    for key in keys[::2]:
        rig.place(key)
    for key in keys:
        rig.engine.probe(key)
    # Waits for those that were handed over, and for no others.
    assert rig.engine.drain(DEADLINE_S)
    rig.lookup([rig.key(1000)])
    handed_over = count - count % BATCH
    assert rig.engine.stats()["probes"] == handed_over
    answers = [HIT if number % 2 == 0 else MISS for number in range(count)]
    assert rig.verdicts(keys) == answers[:handed_over] + [unknown] * (count - handed_over)
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.verdicts(keys) == answers
    assert rig.engine.stats()["inflight_jobs"] == 0


def test_drain_waits_for_the_questions_that_were_handed_over(start_scanned: StartRig) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(50)]
    for _ in range(100):
        for key in keys:
            rig.engine.probe(key)
        rig.engine.submit_probes()
        assert rig.engine.drain(DEADLINE_S)
        assert RETRY not in rig.verdicts(keys)
    # Of no job anybody was told.
    assert list(rig.engine.poll()) == []
    assert rig.engine.stats()["probes"] == 100 * 50


def test_question_that_is_collected_twice_goes_to_the_disk_once_if_that_has_the_chunk(
    start_scanned: StartRig, unknown: int
) -> None:
    rig = start_scanned()
    rig.place(rig.key(1))
    for _ in range(BATCH - 1):
        rig.engine.probe(rig.key(1))
    assert rig.engine.lookup(rig.key(1)) == unknown
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.lookup(rig.key(1)) == HIT
    assert rig.engine.stats()["probes"] == 1


def test_questions_that_nobody_takes_up_do_not_pile_up(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(
        tmp_path,
        index_mode="shared",
        num_chunks=1,
        chunk_size_bytes=1 << 20,
        threads=(1, 1),
        negative_ttl_s=60,
    )
    rig.store([rig.key(0)], [0])
    # The threads are busy for a while, and every step asks the same.
    rig.submit("load", [rig.key(0)] * 200, [0] * 200)
    keys = [rig.key(number) for number in range(1, 1001)]
    for _ in range(100):
        for key in keys:
            rig.engine.probe(key)
    rig.engine.submit_probes()
    assert rig.engine.drain(60)
    assert rig.verdicts(keys) == [MISS] * 1000


def test_key_that_is_present_is_no_question(start_scanned: StartRig) -> None:
    rig = start_scanned()
    rig.store([rig.key(1)], [0])
    rig.engine.probe(rig.key(1))
    # A store that has ended between a lookup and its question stays the hit that it is.
    assert rig.engine.lookup(rig.key(1)) == HIT
    assert rig.engine.stats()["probes"] == 0


def test_absence_is_asked_about_again(start_scanned: StartRig) -> None:
    rig = start_scanned()
    key = rig.key(1)
    for _ in range(3):
        rig.ask([key])
        assert rig.engine.lookup(key) == MISS
        path = rig.place(key)
        assert rig.engine.lookup(key) == MISS
        rig.ask([key])
        assert rig.engine.lookup(key) == HIT
        path.unlink()
        assert rig.load([key], [0]).outcomes == [errno.ENOENT]
    assert rig.engine.stats()["probes"] == 6


def test_answer_after_a_store_changes_nothing(start_scanned: StartRig) -> None:
    rig = start_scanned()
    key = rig.key(1)
    rig.engine.probe(key)
    assert rig.store([key], [0]).outcomes == [0]
    assert rig.engine.lookup(key) == HIT
    # The question is older than the store, whatever it will find.
    rig.path(key).unlink()
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.lookup(key) == HIT
    assert rig.engine.stats()["index_keys"] == 1


@pytest.mark.parametrize("present", [True, False])
def test_question_that_is_handed_over_after_a_failed_load_is_answered_by_the_disk(
    start_scanned: StartRig, unknown: int, present: bool
) -> None:
    rig = start_scanned(num_chunks=1)
    key = rig.key(1)
    rig.engine.probe(key)
    assert rig.load([key], [1]).outcomes == [errno.EINVAL]
    assert rig.engine.lookup(key) == unknown
    if present:
        rig.place(key)
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.lookup(key) == (HIT if present else MISS)


@pytest.mark.parametrize("busy_with", ["store", "load"])
def test_questions_are_answered_before_all_other_work(start_scanned: StartRig, busy_with: str) -> None:
    rig = start_scanned(num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    rig.store([rig.key(0)], [0])
    keys = [rig.key(number if busy_with == "store" else 0) for number in range(500)]
    asked = [rig.key(number) for number in range(1000, 1010)]
    rig.submit(busy_with, keys, [0] * 500)
    for key in asked:
        rig.engine.probe(key)
    rig.engine.submit_probes()
    deadline = time.monotonic() + DEADLINE_S
    while rig.engine.stats()["probes"] < 10 or RETRY in rig.verdicts(asked):
        assert time.monotonic() < deadline
    # 500 MiB are not done yet. The questions' own end may not be noted, though they are answered.
    assert rig.engine.stats()["inflight_jobs"] in (1, 2)
    assert rig.engine.poll() == []
    assert rig.verdicts(asked) == [MISS] * 10
    assert rig.engine.drain(60)


@pytest.mark.parametrize("ttl_s", [0.02, 0.2])
def test_absence_is_believed_for_its_time_to_live_and_no_longer(
    start_rig: StartRig, tmp_path: Path, ttl_s: float
) -> None:
    rig = start_rig(tmp_path, index_mode="shared", negative_ttl_s=ttl_s)
    key = rig.key(1)
    for _ in range(3):
        rig.ask([key])
        answered_at = time.monotonic()
        deadline = answered_at + DEADLINE_S
        while True:
            looked_at = time.monotonic()
            verdict = rig.engine.lookup(key)
            if verdict == EXPIRED:
                break
            assert verdict == MISS
            assert looked_at - answered_at < ttl_s
            assert looked_at < deadline
        # It stays that until somebody asks.
        assert rig.verdicts([key] * 2) == [EXPIRED] * 2


def test_absence_is_believed_from_the_look_at_the_disk_on(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, index_mode="shared", negative_ttl_s=3600.0)
    keys = [rig.key(number) for number in range(300)]
    rig.ask(keys)
    assert rig.verdicts(keys) == [MISS] * 300
    rig.store(keys[:1], [0])
    assert rig.verdicts(keys) == [HIT] + [MISS] * 299


def test_absence_to_the_owner_ends_with_the_chunk(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, index_mode="owner", negative_ttl_s=0.01)
    assert rig.await_stats(scan_complete=1)
    rig.ask([rig.key(1)])
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        assert rig.engine.lookup(rig.key(1)) == MISS
    rig.store([rig.key(1)], [0])
    assert rig.engine.lookup(rig.key(1)) == HIT


def test_questions_from_many_threads_are_all_answered(start_scanned: StartRig) -> None:
    rig = start_scanned(negative_ttl_s=0)
    keys = [rig.key(number) for number in range(200)]
    for key in keys[::2]:
        rig.place(key)

    def ask(first: int) -> None:
        for _ in range(5):
            for key in keys[first:] + keys[:first]:
                rig.engine.probe(key)
                rig.engine.lookup(key)
            rig.engine.submit_probes()

    askers = [threading.Thread(target=ask, args=(50 * number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(DEADLINE_S)
        assert not asker.is_alive()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.verdicts(keys[::2]) == [HIT] * 100
    assert HIT not in rig.verdicts(keys[1::2])
    assert RETRY not in rig.verdicts(keys)


@pytest.mark.parametrize(
    ("ttl_s", "error"),
    [
        pytest.param(-1, ValueError, id="negative"),
        pytest.param(-1e-9, ValueError, id="just-negative"),
        pytest.param(float("nan"), ValueError, id="nan"),
        pytest.param(float("inf"), ValueError, id="infinite"),
        pytest.param("1", TypeError, id="str"),
        pytest.param(None, TypeError, id="none"),
        pytest.param(True, TypeError, id="bool"),
        pytest.param([1.0], TypeError, id="list"),
    ],
)
def test_engine_bad_negative_ttl_raises_and_leaves_nothing(
    io: IoBackend, tmp_path: Path, ttl_s: float, error: type[Exception]
) -> None:
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    threads_before = threading.active_count()
    with pytest.raises(
        error, match=r"^negative_ttl_s must be a (finite )?number of seconds.*, got"
    ) as caught:
        io.Engine(str(tmp_path / "ns"), buffer, 1, 1, negative_ttl_s=ttl_s)
    assert caught.value is not None
    assert threading.active_count() == threads_before
    assert not (tmp_path / "ns").exists()
    buffer.release()
    memory.extend(b"would raise BufferError")


@pytest.mark.parametrize("ttl_s", [0, 1, 0.0, 1e-9, 1e9, 1.7e308, np.float64(0.5)], ids=repr)
def test_engine_takes_any_finite_negative_ttl(start_rig: StartRig, tmp_path: Path, ttl_s: float) -> None:
    rig = start_rig(tmp_path, index_mode="shared", negative_ttl_s=ttl_s)
    rig.ask([rig.key(1)])
    assert rig.engine.lookup(rig.key(1)) in ((MISS,) if ttl_s >= 1e9 else (MISS, EXPIRED))
