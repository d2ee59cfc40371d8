"""The Python engine's index and probes by themselves: what is purged, and answers that surely come late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfs import fallback
from kvfs.fallback.chunks import Chunks
from kvfs.fallback.index import Entry, KeyIndex, State
from kvfs.jobs import HIT, MISS, RETRY

DEADLINE_S = 30.0
TTL_S = 5.0
# Beyond the time to live and however long an absence is remembered after it.
LONG_S = 1000.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(clock: Clock) -> KeyIndex:
    return KeyIndex(TTL_S, clock)


def _key(number: int) -> bytes:
    return number.to_bytes(36, "big")


def _known(index: KeyIndex, keys: list[bytes]) -> list[State | None]:
    entries = [index.find(key) for key in keys]
    return [None if entry is None else entry.state for entry in entries]


def _find_absent(index: KeyIndex, key: bytes, looked_at: float) -> None:
    asked = index.ask(key, looked_at)
    assert asked is not None
    index.answer(key, asked, present=False, looked_at=looked_at)


def test_absences_and_failed_loads_do_not_pile_up(index: KeyIndex, clock: Clock) -> None:
    for number in range(10_000):
        if number % 2:
            _find_absent(index, _key(number), clock.now)
        else:
            index.forget(_key(number))
        clock.now += 0.1
    # What is older than the time to live and a step of any length has gone, and nothing else.
    known = [number for number in range(10_000) if index.find(_key(number)) is not None]
    assert known == list(range(10_000 - len(known), 10_000))
    assert TTL_S / 0.1 < len(known) < 300
    assert index.stats()["index_bytes"] < 1_000_000


def test_absence_that_is_over_is_remembered_for_the_request_that_waits(index: KeyIndex, clock: Clock) -> None:
    _find_absent(index, _key(1), clock.now)
    clock.now += TTL_S
    index.forget(_key(2))
    entry = index.find(_key(1))
    assert entry is not None
    assert not index.believes(entry)
    clock.now -= TTL_S / 2
    assert index.believes(entry)


def test_nothing_is_purged_while_the_scan_runs(index: KeyIndex, clock: Clock) -> None:
    index.scanning = True
    for number in range(0, 100, 2):
        _find_absent(index, _key(number), clock.now)
        index.forget(_key(number + 1))
    clock.now += LONG_S
    index.forget(_key(1000))
    for number in range(100):
        index.add(_key(number))
    assert _known(index, [_key(number) for number in range(100)]) == [State.ABSENT, State.FORGOTTEN] * 50
    index.scanning = False
    # One in, two out.
    for number in range(2000, 2060):
        index.forget(_key(number))
    assert _known(index, [_key(number) for number in range(100)]) == [None] * 100


def test_key_that_came_back_is_not_purged_for_what_it_was(index: KeyIndex, clock: Clock) -> None:
    keys = [_key(number) for number in range(4)]
    for key in keys:
        index.forget(key)
    index.put(keys[0])
    index.ask(keys[1], clock.now)
    clock.now += LONG_S
    index.forget(keys[2])
    for number in range(100, 110):
        index.forget(_key(number))
    assert _known(index, keys) == [State.PRESENT, State.ASKED, State.FORGOTTEN, None]


def test_absence_counts_from_the_look_at_the_disk(index: KeyIndex, clock: Clock) -> None:
    looked_at = clock.now
    asked = index.ask(_key(1), looked_at)
    assert asked is not None
    clock.now += TTL_S
    index.answer(_key(1), asked, present=False, looked_at=looked_at)
    entry = index.find(_key(1))
    assert entry is not None
    assert not index.believes(entry)


def test_answer_of_an_older_question_changes_nothing(index: KeyIndex, clock: Clock) -> None:
    older = index.ask(_key(1), clock.now)
    index.forget(_key(1))
    newer = index.ask(_key(1), clock.now)
    assert older is not None
    assert newer is not None
    index.answer(_key(1), older, present=True, looked_at=clock.now)
    assert _known(index, [_key(1)]) == [State.ASKED]
    index.answer(_key(1), newer, present=False, looked_at=clock.now)
    index.answer(_key(1), older, present=True, looked_at=clock.now)
    assert _known(index, [_key(1)]) == [State.ABSENT]
    # Of a key that was purged since.
    index.answer(_key(2), newer, present=True, looked_at=clock.now)
    assert _known(index, [_key(2)]) == [None]


def test_absence_found_since_the_question_answers_it(index: KeyIndex, clock: Clock) -> None:
    _find_absent(index, _key(1), clock.now)
    assert index.ask(_key(1), clock.now - 1) is None
    assert _known(index, [_key(1)]) == [State.ABSENT]
    assert index.ask(_key(1), clock.now) is not None
    assert index.stats()["probes"] == 2


def test_bytes_follow_the_keys(index: KeyIndex, clock: Clock) -> None:
    empty = index.stats()["index_bytes"]
    for number in range(1000):
        index.put(_key(number))
    full = index.stats()["index_bytes"]
    assert full - empty > 1000 * 36
    for number in range(1000):
        index.forget(_key(number))
    clock.now += LONG_S
    for number in range(1000):
        index.forget(_key(number % 2 + 5000))
    assert index.stats()["index_bytes"] < full
    assert index.stats()["index_keys"] == 0


class HungDisk:
    """Holds the first look for each key until it is told to go on, with the answer already found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()
        self._looked_at: set[bytes] = set()
        self._lookup = Chunks.lookup

        def wait(chunks: Chunks, key: bytes, chunk_size_bytes: int) -> int:
            return self._wait(chunks, key, chunk_size_bytes)

        monkeypatch.setattr(Chunks, "lookup", wait)

    def _wait(self, chunks: Chunks, key: bytes, chunk_size_bytes: int) -> int:
        answer = self._lookup(chunks, key, chunk_size_bytes)
        if key not in self._looked_at:
            self._looked_at.add(key)
            self.entered.release()
            assert self.go_on.wait(DEADLINE_S)
        return answer


@pytest.fixture
def hung_disk(monkeypatch: pytest.MonkeyPatch) -> HungDisk:
    return HungDisk(monkeypatch)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[fallback.Engine]:
    buffer = memoryview(bytearray(4096)).cast("B", (1, 4096))
    engine = fallback.Engine(str(tmp_path), buffer, 4, 4, index_mode="shared", negative_ttl_s=3600.0)
    yield engine
    engine.close()


def test_owner_does_not_miss_what_the_scan_finds_last(tmp_path: Path) -> None:
    buffer = memoryview(bytearray(4096)).cast("B", (1, 4096))
    engine = fallback.Engine(str(tmp_path), buffer, 1, 1, index_mode="owner")
    core = engine._core
    deadline = time.monotonic() + DEADLINE_S
    while not engine.stats()["scan_complete"]:
        assert time.monotonic() < deadline
    assert engine.lookup(_key(1)) == MISS

    class LastKeys(KeyIndex):
        """Has the scan end just after somebody has looked."""

        def find(self, key: bytes) -> Entry | None:
            entry = super().find(key)
            self.add(key)
            core._scan.complete = True
            return entry

    core._index = LastKeys(TTL_S)
    core._scan.complete = False
    assert engine.lookup(_key(2)) == RETRY
    assert engine.lookup(_key(2)) == HIT
    engine.close()


def _await_jobs(engine: fallback.Engine) -> None:
    """Wait for jobs alone, which `drain` does not."""
    deadline = time.monotonic() + DEADLINE_S
    while engine.stats()["inflight_jobs"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_answers_that_come_late_change_nothing(engine: fallback.Engine, hung_disk: HungDisk) -> None:
    stored, failed, asked_again, absent = keys = [_key(number) for number in range(4)]
    for key in keys:
        engine.probe(key)
        engine.submit_probes()
        # The disk has said that nothing is there, but nobody knows yet.
        assert hung_disk.entered.acquire(timeout=DEADLINE_S)
    assert not engine.drain(0)
    assert [engine.lookup(key) for key in keys] == [RETRY] * 4
    engine.submit_store(1, stored, 36, [0])
    engine.submit_load(2, failed + asked_again, 36, [0, 0])
    _await_jobs(engine)
    assert not engine.drain(0)
    engine.probe(asked_again)
    engine.probe(absent)
    # It is being asked, and that is no second question.
    engine.submit_probes()
    assert engine.stats()["probes"] == 4
    assert [engine.lookup(key) for key in keys] == [HIT, RETRY, RETRY, RETRY]
    hung_disk.go_on.set()
    assert engine.drain(DEADLINE_S)
    assert [engine.lookup(key) for key in keys] == [HIT, RETRY, MISS, MISS]
    assert engine.stats()["probes"] == 5


def test_close_waits_for_the_looks_that_have_begun_and_drops_the_others(
    engine: fallback.Engine, hung_disk: HungDisk
) -> None:
    for number in range(200):
        engine.probe(_key(number))
    engine.submit_probes()
    for _ in range(4):
        assert hung_disk.entered.acquire(timeout=DEADLINE_S)
    closer = threading.Thread(target=engine.close)
    closer.start()
    assert not engine.drain(0.05)
    assert closer.is_alive()
    hung_disk.go_on.set()
    closer.join(DEADLINE_S)
    assert not closer.is_alive()
    assert engine.drain(DEADLINE_S)
    verdicts = [engine.lookup(_key(number)) for number in range(200)]
    assert 4 <= verdicts.count(MISS) < 200
    assert HIT not in verdicts
