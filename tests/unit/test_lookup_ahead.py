"""Keys of a request that are known beforehand and looked up several at a time: each has its own answer."""

from __future__ import annotations

import errno
import sys
from typing import Any

import pytest
from tier_lookup import Request, TierLookup


# Fewer than are looked up together at first, as many, more, and more than twice.
@pytest.mark.parametrize("count", [3, 4, 36, 100])
def test_keys_that_are_known_beforehand_are_answered_each_as_it_is(patient: TierLookup, count: int) -> None:
    keys = [patient.rig.key(number) for number in range(count)]
    for known in (count // 2, count):
        patient.rig.store(keys[:known], [0] * known)
        for name in ("a", "b"):
            asked = [patient.ask(key, Request.of(keys, name)) for key in keys]
            assert asked == ["hit"] * known + ["retry"] * (count - known)
        patient.end_step()
        # What it waits for and what it knows since its last step.
        answers = [patient.ask(key, Request.of(keys, "a")) for key in keys]
        assert answers == ["hit"] * known + ["miss"] * (count - known)
        patient.lookups.forget("a")


@pytest.mark.parametrize("asked_before", range(0, 50, 7))
def test_hit_that_is_lost_while_its_request_asks_is_none(patient: TierLookup, asked_before: int) -> None:
    keys = [patient.rig.key(number) for number in range(50)]
    patient.rig.store(keys, [0] * len(keys))
    request = Request.of(keys)
    assert [patient.ask(key, request) for key in keys[:asked_before]] == ["hit"] * asked_before
    lost = keys[asked_before]
    patient.rig.path(lost).unlink()
    assert patient.rig.load([lost], [4]).outcomes == [errno.ENOENT]
    assert patient.ask(lost, request) == "retry"


def test_keys_may_be_asked_about_in_any_order(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(50)]
    there = set(keys[:10] + keys[20:])
    patient.rig.store(list(there), [0] * len(there))
    # As a sliding window asks, and without those that the primary tier has.
    for order in (keys[::-1], keys[5:], keys[9:] + keys[:9], keys[::3]):
        request = Request.of(keys)
        for key in order:
            patient.lookups.forget(request.req_id)
            assert (patient.ask(key, request) == "hit") == (key in there)
        # In one step, up to the first that it has to wait for or that was found to be absent since.
        request = Request.of(keys, "b")
        first = next(place for place, key in enumerate(order) if key not in there)
        answers = [patient.ask(key, request) for key in order[: first + 1]]
        assert answers[:-1] == ["hit"] * first
        assert answers[-1] != "hit"
        patient.lookups.forget("b")


def test_keys_that_are_known_beforehand_may_change_and_need_not_be_keys(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(20)]
    patient.rig.store(keys, [0] * len(keys))
    strange: list[Any] = ["text", None, b"1234", bytes(255), keys[0] + b"more"]
    for known in ([*keys[:3], *strange, *keys[3:]], strange, []):
        assert [patient.ask(key, Request.of(known)) for key in keys] == ["hit"] * len(keys)
        patient.lookups.forget("a")
    # Equal ones instead of the same, some gone, and one more with each question.
    request = Request.of([bytes(bytearray(key)) for key in keys])
    assert [patient.ask(key, request) for key in keys] == ["hit"] * len(keys)
    patient.lookups.forget("a")
    for change in (
        dict.clear,
        dict.popitem,
        lambda known: known.update(Request.of(keys)._offload_key_positions),
    ):
        request = Request.of(keys)
        for key in keys:
            assert patient.ask(key, request) == "hit"
            if request._offload_key_positions:
                change(request._offload_key_positions)
        patient.lookups.forget("a")


@pytest.mark.parametrize("known", [None, [], "keys", 5])
def test_request_without_its_keys_is_answered_all_the_same(patient: TierLookup, known: object) -> None:
    keys = [patient.rig.key(number) for number in range(3)]
    patient.rig.store(keys[:2], [0, 1])
    request = Request(_offload_key_positions=known)  # type: ignore[arg-type]
    assert [patient.ask(key, request) for key in keys] == ["hit", "hit", "retry"]
    del request._offload_key_positions
    patient.lookups.forget("a")
    assert [patient.ask(key, request) for key in keys] == ["hit", "hit", "retry"]


def test_denied_key_is_a_miss_although_it_is_known_beforehand(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(5)]
    patient.rig.store(keys, [0] * 5)
    patient.lookups.deny([keys[2]], "a")
    assert [patient.ask(key, Request.of(keys)) for key in keys] == ["hit", "hit", "miss", "hit", "hit"]


def test_nothing_is_kept_of_a_request_whose_keys_were_known_beforehand(patient: TierLookup) -> None:
    keys = [patient.rig.key(number) for number in range(20)]
    patient.rig.store(keys, [0] * len(keys))
    request = Request.of(keys)
    before = [sys.getrefcount(each) for each in (*keys, request._offload_key_positions)]
    assert patient.ask(keys[0], request) == "hit"
    patient.lookups.forget("a")
    assert [sys.getrefcount(each) for each in (*keys, request._offload_key_positions)] == before
