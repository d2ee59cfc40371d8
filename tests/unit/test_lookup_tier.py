"""The function that answers a tier's lookups: the engine's verdicts, for the request that is asking."""

from __future__ import annotations

import errno
import gc
import itertools
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from polling import await_that
from tier_lookup import DEADLINE_S, Request, TierLookup

from kvfs.jobs import MISS

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

TTL_S = 0.05


@pytest.fixture
def shared(start_rig: StartRig, storage: Path) -> TierLookup:
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=TTL_S)
    assert rig.await_stats(scan_complete=1)
    return TierLookup(rig)


def test_tier_lookup_answers_with_the_objects_it_was_given(shared: TierLookup) -> None:
    there, absent = shared.rig.key(1), shared.rig.key(2)
    shared.rig.place(there)
    answers = tuple(object() for _ in range(3))
    lookups = shared.rig.engine.tier_lookup(*answers)
    ask: Any = lookups.ask
    assert all(ask(key, Request()) is answers[2] for key in (there, absent))
    lookups.end_step()
    assert shared.rig.engine.drain(DEADLINE_S)
    assert ask(there, Request()) is answers[1]
    assert ask(key=absent, req_context=Request()) is answers[0]


def test_request_is_the_same_however_its_name_is_made(shared: TierLookup) -> None:
    known, unknown = shared.rig.key(1), shared.rig.key(2)
    shared.rig.store([known], [0])
    assert shared.ask(unknown, Request(b"name".decode())) == "retry"
    # It waits, and is not looked at; another one is.
    assert [shared.ask(known, Request(name)) for name in (b"name".decode(), "another")] == ["retry", "hit"]


def test_same_request_begins_anew_after_a_step(shared: TierLookup) -> None:
    known, unknown = shared.rig.key(1), shared.rig.key(2)
    shared.rig.store([known], [0])
    assert [shared.ask(key, Request()) for key in (unknown, known)] == ["retry", "retry"]
    shared.end_step()
    assert [shared.ask(key, Request()) for key in (known, unknown)] == ["hit", "miss"]


def test_answer_counts_for_whoever_has_waited_for_it(shared: TierLookup) -> None:
    key = shared.rig.key(1)
    assert [shared.ask(key, Request(name)) for name in ("a", "b")] == ["retry", "retry"]
    shared.end_step()
    time.sleep(2 * TTL_S)
    assert [shared.ask(key, Request(name)) for name in ("a", "b", "c")] == ["miss", "miss", "retry"]


def test_whoever_has_his_answer_waits_no_more(shared: TierLookup) -> None:
    key = shared.rig.key(1)
    assert shared.ask(key, Request()) == "retry"
    shared.end_step()
    assert shared.ask(key, Request()) == "miss"
    # Neither after the end of that step,
    shared.lookups.end_step()
    time.sleep(2 * TTL_S)
    assert shared.ask(key, Request()) == "retry"
    shared.end_step()
    assert shared.ask(key, Request()) == "miss"
    # nor when none has ended for a long time.
    time.sleep(2 * TTL_S)
    assert [shared.ask(key, Request()) for _ in range(2)] == ["miss", "retry"]


def test_wait_is_noted_anew_in_each_step(shared: TierLookup) -> None:
    first, second = shared.rig.key(1), shared.rig.key(2)
    assert shared.ask(first, Request()) == "retry"
    shared.end_step()
    # An answer for the first, none for the second: it waits on.
    assert [shared.ask(key, Request()) for key in (first, second)] == ["miss", "retry"]
    shared.end_step()
    assert shared.lookups
    assert shared.ask(second, Request()) == "miss"
    shared.end_step()
    assert not shared.lookups


def test_denied_keys_are_a_miss_for_their_request_alone(shared: TierLookup) -> None:
    denied, other = shared.rig.key(1), shared.rig.key(2)
    shared.rig.store([denied, other], [0, 1])
    assert shared.ask(denied, Request()) == "hit"
    shared.lookups.deny([denied], "a")
    assert [shared.ask(key, Request()) for key in (denied, other)] == ["miss", "hit"]
    assert shared.ask(denied, Request("b")) == "hit"
    assert shared.ask(denied, Request()) == "miss"
    shared.lookups.forget("a")
    assert shared.ask(denied, Request()) == "hit"


def test_request_that_waits_has_its_other_keys_asked_about_unseen(patient: TierLookup) -> None:
    known, first, there, absent = (patient.rig.key(number) for number in range(4))
    patient.rig.store([known, there], [0, 1])
    before = patient.rig.engine.stats()["probes"]
    keys = [known, first, there, absent, known]
    assert [patient.ask(key, Request()) for key in keys] == ["hit", "retry", "retry", "retry", "retry"]
    patient.end_step()
    # What was known was not looked for on disk.
    assert patient.rig.engine.stats()["probes"] - before == 2
    assert [patient.ask(key, Request()) for key in (known, there)] == ["hit", "hit"]
    assert [patient.ask(key, Request()) for key in (first, absent)] == ["miss", "miss"]


def test_keys_that_are_asked_unseen_take_one_step_however_many(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(1000)]
    for key in keys[::2]:
        patient.rig.place(key)
    assert [patient.ask(key, Request()) for key in keys] == ["retry"] * len(keys)
    patient.end_step()
    assert [patient.ask(key, Request()) for key in keys] == ["hit", "miss"] * (len(keys) // 2)


def test_another_request_is_answered_although_one_waits(shared: TierLookup) -> None:
    known, unknown = shared.rig.key(1), shared.rig.key(2)
    shared.rig.store([known], [0])
    assert [shared.ask(key, Request("a")) for key in (unknown, known)] == ["retry", "retry"]
    assert shared.ask(known, Request("b")) == "hit"
    assert shared.ask(known, Request("a")) == "hit"


def test_denied_key_is_a_miss_in_a_request_that_waits(shared: TierLookup) -> None:
    denied, unknown = shared.rig.key(1), shared.rig.key(2)
    shared.lookups.deny([denied], "a")
    assert [shared.ask(key, Request()) for key in (unknown, denied)] == ["retry", "miss"]


def test_first_question_is_answered_before_all_that_earlier_requests_asked_unseen(
    start_rig: StartRig, storage: Path
) -> None:
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=3600.0)
    assert rig.await_stats(scan_complete=1)
    tier = TierLookup(rig)
    early = 0
    for number in range(5):
        asked = [rig.key(number << 20 | each) for each in range(20_000)]
        for key in asked[1:]:
            tier.ask(key, Request(f"long-{number}"))
        tier.ask(asked[0], Request(f"short-{number}"))
        rig.engine.submit_probes()
        deadline = time.monotonic() + DEADLINE_S
        while rig.engine.lookup(asked[0]) != MISS and time.monotonic() < deadline:
            time.sleep(0.0001)
        early += rig.engine.lookup(asked[-1]) != MISS
        assert rig.engine.drain(DEADLINE_S)
    # Whoever looks may have been kept from his core until all were answered, but not each time.
    assert early > 0


def test_hits_of_a_request_that_has_waited_are_hits_again(patient: TierLookup) -> None:
    known = [patient.rig.key(number) for number in range(3)]
    unknown = [patient.rig.key(number) for number in range(10, 14)]
    patient.rig.store(known, [0, 1, 2])
    for asked, expected in [
        ([*known, unknown[0]], "hit hit hit retry"),
        # Keys that are equal and not the same.
        ([*map(bytes, map(bytearray, known)), unknown[0], unknown[1]], "hit hit hit miss retry"),
        # Others between them, in another order, one twice, and the first ones only.
        ([known[0], unknown[1], known[2], unknown[2]], "hit miss hit retry"),
        ([known[2], known[0], known[0], unknown[3]], "hit hit hit retry"),
        ([known[2]], "hit"),
    ]:
        assert [patient.ask(key, Request()) for key in asked] == expected.split()
        patient.end_step()


@pytest.mark.parametrize("asked_in_between", [0, 1])
def test_hit_that_is_lost_while_its_request_waits_is_none(patient: TierLookup, asked_in_between: int) -> None:
    keys = [patient.rig.key(number) for number in range(3)]
    patient.rig.store(keys[:2], [0, 1])
    assert [patient.ask(key, Request()) for key in keys] == ["hit", "hit", "retry"]
    patient.end_step()
    before = [patient.ask(key, Request()) for key in keys[:asked_in_between]]
    assert before == ["hit"] * asked_in_between
    patient.rig.path(keys[1]).unlink()
    assert patient.rig.load([keys[1]], [4]).outcomes == [errno.ENOENT]
    rest = keys[asked_in_between:2]
    assert [patient.ask(key, Request()) for key in rest] == ["hit", "retry"][asked_in_between:]


def test_hit_that_was_evicted_while_its_request_waits_is_none(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=3600.0, capacity_bytes=12 * 8192)
    assert rig.await_stats(scan_complete=1, space_counted=1)
    tier = TierLookup(rig)
    first, unknown = rig.key(0), rig.key(99)
    rig.store([first], [0])
    assert [tier.ask(key, Request()) for key in (first, unknown)] == ["hit", "retry"]
    numbers = itertools.count(1)

    def is_evicted_by_the_next() -> bool:
        rig.store([rig.key(next(numbers))], [1])
        return not rig.path(first).exists()

    assert await_that(is_evicted_by_the_next)
    tier.end_step()
    # The index lets go of a key before its file goes.
    assert tier.ask(first, Request()) == "retry"


def test_nothing_is_kept_of_a_request_that_has_ended(patient: TierLookup) -> None:
    known, unknown = patient.rig.key(1), patient.rig.key(2)
    patient.rig.store([known], [0])
    patient.ask(patient.rig.key(3), Request("b"))
    before = sys.getrefcount(known)
    assert [patient.ask(key, Request("a")) for key in (known, unknown)] == ["hit", "retry"]
    patient.end_step()
    assert patient.lookups
    patient.lookups.forget("a")
    patient.ask(unknown, Request("b"))
    assert sys.getrefcount(known) == before


def test_whoever_asks_without_ending_his_step_gets_his_answer(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(3)]
    patient.rig.place(keys[2])
    assert [patient.ask(key, Request()) for key in keys] == ["retry"] * 3
    patient.rig.engine.submit_probes()
    assert patient.rig.engine.drain(DEADLINE_S)
    assert [patient.ask(key, Request()) for key in keys] == ["miss", "miss", "hit"]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        pytest.param("key", TypeError, id="text"),
        pytest.param(None, TypeError, id="none"),
        pytest.param(b"1234", ValueError, id="short"),
        pytest.param(bytes(256), ValueError, id="long"),
    ],
)
def test_what_is_no_key_is_refused(shared: TierLookup, key: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        shared.ask(key, Request())


@pytest.mark.parametrize(
    ("count", "named"),
    [
        pytest.param(0, [], id="none"),
        pytest.param(1, [], id="one"),
        pytest.param(3, [], id="three"),
        pytest.param(1, ["key"], id="twice"),
        pytest.param(1, ["context"], id="unknown"),
        pytest.param(2, ["req_context"], id="one-more"),
        pytest.param(0, ["key", "key_size"], id="one-unknown"),
    ],
)
def test_other_arguments_are_refused(shared: TierLookup, count: int, named: list[str]) -> None:
    arguments: list[object] = [shared.rig.key(1), Request(), 0]
    ask: Any = shared.ask
    with pytest.raises(TypeError):
        ask(*arguments[:count], **dict.fromkeys(named, shared.rig.key(1)))
    assert ask(req_context=Request(), key=shared.rig.key(1)) == "retry"


def test_errors_of_the_request_come_through(shared: TierLookup) -> None:
    key = shared.rig.key(1)

    class Broken:
        @property
        def req_id(self) -> str:
            raise KeyError("broken")

    class Incomparable(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise OverflowError("incomparable")

        __ne__ = __eq__
        __hash__ = str.__hash__

    with pytest.raises(KeyError, match="broken"):
        shared.ask(key, Broken())
    with pytest.raises(AttributeError, match="req_id"):
        shared.ask(key, object())  # type: ignore[arg-type]
    assert shared.ask(key, Request()) == "retry"
    with pytest.raises(OverflowError, match="incomparable"):
        shared.ask(key, Request(Incomparable("b")))
    # Nothing of it is left over.
    assert shared.ask(key, Request()) == "retry"


def test_tier_lookup_keeps_its_engine_and_is_freed_with_the_last_reference(shared: TierLookup) -> None:
    class Answer:
        pass

    retry = Answer()
    gone = weakref.ref(retry)
    lookups = shared.rig.engine.tier_lookup(Answer(), Answer(), retry)
    ask = lookups.ask
    del lookups, retry
    assert isinstance(ask(shared.rig.key(1), Request()), Answer)
    gc.disable()
    try:
        del ask
        # No cycle: nobody has to look for it.
        assert gone() is None
    finally:
        gc.enable()


def test_tier_lookup_answers_after_the_engine_was_closed(shared: TierLookup) -> None:
    key = shared.rig.key(1)
    shared.rig.store([key], [0])
    shared.rig.engine.close()
    assert [shared.ask(key, Request()), shared.ask(shared.rig.key(2), Request())] == ["hit", "retry"]
