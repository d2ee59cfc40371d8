"""One call for whoever asks key by key: a verdict, or a question to the disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

DEADLINE_S = 30.0
TTL_S = 0.05


@pytest.fixture
def shared(start_rig: StartRig, storage: Path) -> Rig:
    """One whose absences stay true for as long as a slow machine takes."""
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=3600.0)
    assert rig.await_stats(scan_complete=1)
    return rig


@pytest.fixture
def forgetful(start_rig: StartRig, storage: Path) -> Rig:
    """One whose absences are soon over."""
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=TTL_S)
    assert rig.await_stats(scan_complete=1)
    return rig


def _answer(rig: Rig) -> None:
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)


def test_owner_asks_nothing(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, index_mode="owner")
    assert rig.await_stats(scan_complete=1)
    rig.store([rig.key(1)], [0])
    assert [rig.engine.ask(rig.key(number)) for number in (1, 2)] == [HIT, MISS]
    assert rig.engine.stats()["probes"] == 0


def test_unknown_key_is_asked_and_answered(shared: Rig) -> None:
    there, absent = shared.key(1), shared.key(2)
    shared.place(there)
    for _ in range(3):
        assert [shared.engine.ask(key) for key in (there, absent)] == [RETRY, RETRY]
    assert shared.engine.stats()["probes"] == 0
    _answer(shared)
    # What is there is no question any more; what is not may have come since, within the clock's resolution.
    assert 2 <= shared.engine.stats()["probes"] <= 4
    asked = shared.engine.stats()["probes"]
    assert [shared.engine.ask(key) for key in (there, absent)] == [HIT, MISS]
    assert shared.engine.stats()["probes"] == asked


def test_absence_that_is_over_is_asked_again(forgetful: Rig) -> None:
    key = forgetful.key(1)
    assert forgetful.engine.ask(key) == RETRY
    _answer(forgetful)
    time.sleep(2 * TTL_S)
    forgetful.place(key)
    assert forgetful.engine.ask(key) == RETRY
    _answer(forgetful)
    assert forgetful.engine.ask(key) == HIT


def test_absence_that_was_waited_for_counts_however_old_it_is(forgetful: Rig) -> None:
    key = forgetful.key(1)
    began_s = time.monotonic()
    assert forgetful.engine.ask(key) == RETRY
    _answer(forgetful)
    time.sleep(2 * TTL_S)
    assert forgetful.engine.ask(key, began_s) == MISS
    assert forgetful.engine.ask(key, waiting_since_s=began_s) == MISS
    # For nobody else, and not for one who began to wait later.
    assert forgetful.engine.ask(key, time.monotonic()) == RETRY


def test_failed_load_is_asked_again(shared: Rig) -> None:
    key = shared.key(1)
    shared.store([key], [0])
    shared.path(key).unlink()
    shared.load([key], [1])
    assert shared.engine.ask(key) == RETRY
    _answer(shared)
    assert shared.engine.ask(key) == MISS


def test_many_questions_go_off_by_themselves(shared: Rig) -> None:
    keys = [shared.key(number) for number in range(64)]
    assert [shared.engine.ask(key) for key in keys] == [RETRY] * 64
    assert shared.engine.drain(DEADLINE_S)
    assert [shared.engine.ask(key, 0.0) for key in keys] == [MISS] * 64


@pytest.mark.parametrize("since_s", [math.inf, math.nan, -1.0, 0, 1e300])
def test_any_number_is_a_time(shared: Rig, since_s: float) -> None:
    assert shared.engine.ask(shared.key(1), since_s) == RETRY


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        pytest.param(lambda rig: rig.engine.ask("key"), TypeError, id="text"),
        pytest.param(lambda rig: rig.engine.ask(None), TypeError, id="none"),
        pytest.param(lambda rig: rig.engine.ask(b"1234"), ValueError, id="short"),
        pytest.param(lambda rig: rig.engine.ask(bytes(256)), ValueError, id="long"),
        pytest.param(lambda rig: rig.engine.ask(bytes(36), "now"), TypeError, id="time-as-text"),
    ],
)
def test_wrong_argument_is_refused(shared: Rig, ask: Callable[[Rig], int], error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(shared)
    assert shared.engine.stats()["probes"] == 0


def test_closed_engine_asks_nothing(shared: Rig) -> None:
    shared.store([shared.key(1)], [0])
    shared.engine.close()
    assert shared.engine.ask(shared.key(1)) == HIT
    assert shared.engine.ask(shared.key(2)) == RETRY
    assert shared.engine.stats()["probes"] == 0
