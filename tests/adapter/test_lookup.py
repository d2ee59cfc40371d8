"""Lookups through the tier: answered in the call as the only writer, within a step beside others."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, ScheduleEndContext
from vllm_parts import CHUNK_BYTES, WAIT_S, Tier, keys_of, wait_for_scan

MakeTier = Callable[..., Tier]
TTL_S = 0.05


def ask(tier: Tier, key: OffloadKey, request_id: str = "request") -> str:
    """Ask once."""
    name: str = tier.manager.lookup(key, ReqContext(req_id=request_id)).name
    return name


def end_step(tier: Tier) -> None:
    """End a step and let the disk answer."""
    tier.step()
    tier.manager.drain_jobs()


@pytest.fixture
def owner(make_tier: MakeTier) -> Tier:
    """The only writer, which knows everything that is there."""
    tier: Tier = make_tier()
    wait_for_scan(tier.manager)
    assert tier.manager._engine.stats()["owner"] == 1
    return tier


@pytest.fixture
def shared(make_tier: MakeTier) -> Tier:
    """One of several writers, whose verdicts of absence hold for a moment."""
    tier: Tier = make_tier(index_mode="shared", negative_ttl_s=TTL_S)
    wait_for_scan(tier.manager)
    return tier


def test_owner_answers_in_the_call(owner: Tier) -> None:
    stored, absent = keys_of(2)
    assert [ask(owner, stored), ask(owner, absent)] == ["MISS", "MISS"]
    owner.store([stored], [0])
    assert [ask(owner, stored), ask(owner, absent)] == ["HIT", "MISS"]


def test_hits_and_questions_run_no_python_code_with_the_extension(shared: Tier) -> None:
    from kvfs import backend  # noqa: PLC0415

    stored, *unknown = keys_of(10)
    shared.store([stored], [0])
    context = ReqContext(req_id="request")
    assert shared.manager.lookup(unknown[0], context).name == "RETRY"
    ran: list[str] = []
    previous = sys.getprofile()
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        for key in (stored, *unknown):
            shared.manager.lookup(key, context)
    finally:
        sys.setprofile(previous)
    assert bool(ran) == (backend.describe()[0] == "fallback")


def test_keys_that_vllm_asks_about_next_are_looked_up_with_the_first_by_the_extension(owner: Tier) -> None:
    from kvfs import backend  # noqa: PLC0415

    keys = keys_of(3)
    owner.store(keys, [0, 1, 2])
    context = ReqContext(req_id="request")
    for number, key in enumerate(keys, start=1):
        context.set_offload_key_position(key, 16 * number)
    known = context._offload_key_positions
    assert list(known) == keys, "vLLM notes the keys of a request elsewhere by now"
    before = sys.getrefcount(known)
    assert owner.manager.lookup(keys[0], context).name == "HIT"
    # Held until the request's step ends.
    assert sys.getrefcount(known) - before == (backend.describe()[0] == "extension")
    assert [owner.manager.lookup(key, context).name for key in keys[1:]] == ["HIT", "HIT"]
    owner.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
    assert sys.getrefcount(known) == before


def test_tier_that_was_asked_can_be_freed(
    make_tier: MakeTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged may hold on to the frames of an exception.
    caplog.set_level("CRITICAL", "kvfs")
    tier, other = make_tier(), make_tier(root=tmp_path / "other")
    ask(tier, *keys_of(1))
    tier.manager.shutdown()
    gone = weakref.ref(tier.manager)
    tier.manager = other.manager
    gc.collect()
    assert gone() is None


def test_owner_knows_after_a_restart_what_is_there(owner: Tier, make_tier: MakeTier) -> None:
    whole, cut = keys_of(2)
    owner.store([whole, cut], [0, 1])
    os.truncate(owner.path(cut), 100)
    owner.manager.shutdown()
    again = make_tier()
    wait_for_scan(again.manager)
    assert [ask(again, whole), ask(again, cut)] == ["HIT", "MISS"]


def test_shared_tier_asks_the_disk_for_what_it_does_not_know_and_takes_one_step(shared: Tier) -> None:
    absent, foreign = keys_of(2)
    shared.path(foreign).parent.mkdir(parents=True)
    shared.path(foreign).write_bytes(bytes(CHUNK_BYTES))
    assert [ask(shared, absent), ask(shared, foreign)] == ["RETRY", "RETRY"]
    end_step(shared)
    assert [ask(shared, absent), ask(shared, foreign)] == ["MISS", "HIT"]


def test_shared_tier_answers_from_memory_what_it_stored(shared: Tier) -> None:
    (key,) = keys_of(1)
    shared.store([key], [0])
    assert ask(shared, key) == "HIT"
    assert shared.manager._engine.stats()["probes"] == 0


def test_step_that_outlasts_the_time_to_live_still_brings_the_answer(shared: Tier) -> None:
    (key,) = keys_of(1)
    for request_id in ("a", "b"):
        assert ask(shared, key, request_id) == "RETRY"
    end_step(shared)
    time.sleep(2 * TTL_S)
    # Both have waited for this answer; who comes later asks anew.
    assert [ask(shared, key, request_id) for request_id in ("a", "b", "c")] == ["MISS", "MISS", "RETRY"]


def test_absence_is_asked_again_after_its_time_to_live(shared: Tier) -> None:
    (key,) = keys_of(1)
    assert shared.verdict(key) == "MISS"
    shared.path(key).parent.mkdir(parents=True)
    shared.path(key).write_bytes(bytes(CHUNK_BYTES))
    deadline = time.monotonic() + WAIT_S
    while shared.verdict(key) != "HIT":
        assert time.monotonic() < deadline, "the chunk of another writer stayed a miss"


def test_store_is_visible_at_once_to_whoever_was_told_miss(shared: Tier) -> None:
    (key,) = keys_of(1)
    assert shared.verdict(key, "a") == "MISS"
    shared.store([key], [0])
    assert [ask(shared, key, "a"), ask(shared, key, "b")] == ["HIT", "HIT"]


def test_late_answer_does_not_override_a_newer_verdict(shared: Tier) -> None:
    # Asked while absent; the question goes off only after the chunk was stored and lost again.
    (key,) = keys_of(1)
    assert ask(shared, key) == "RETRY"
    shared.store([key], [0])
    shared.path(key).unlink()
    end_step(shared)
    assert ask(shared, key) == "HIT"
    assert not shared.load([key], [1]).success
    assert ask(shared, key) == "MISS"


@pytest.mark.parametrize("mode", ["owner", "shared"])
def test_failed_load_is_a_miss_for_its_request_until_that_ends(make_tier: MakeTier, mode: str) -> None:
    tier = make_tier(index_mode=mode)
    wait_for_scan(tier.manager)
    (key,) = keys_of(1)
    tier.store([key], [0])
    assert tier.verdict(key) == "HIT"
    os.truncate(tier.path(key), CHUNK_BYTES // 2)
    assert not tier.load([key], [1]).success
    assert not tier.path(key).exists()
    assert ask(tier, key) == "MISS"
    # The same request is not sent back to the disk: even a chunk stored since stays a miss for it.
    tier.store([key], [0])
    assert [ask(tier, key), ask(tier, key, "another")] == ["MISS", "HIT"]
    tier.finish()
    assert ask(tier, key) == "HIT"


def test_fresh_request_asks_the_disk_after_a_failed_load(shared: Tier) -> None:
    (key,) = keys_of(1)
    shared.store([key], [0])
    shared.path(key).unlink()
    assert not shared.load([key], [1]).success
    shared.path(key).write_bytes(bytes(CHUNK_BYTES))
    assert ask(shared, key, "fresh") == "RETRY"
    end_step(shared)
    assert ask(shared, key, "fresh") == "HIT"


def test_nothing_is_left_of_requests_that_have_ended(shared: Tier) -> None:
    asked, lost, late = keys_of(3)
    shared.store([lost, late], [0, 1])
    shared.path(lost).unlink()
    shared.path(late).unlink()
    assert ask(shared, asked) == "RETRY"
    assert not shared.load([lost], [2]).success
    assert shared.manager._lookup
    # The last load fails when nobody is left to be told.
    job = shared.job([late], [3], promotion=True)
    shared.manager.submit_load(job)
    shared.finish()
    shared.manager.drain_jobs()
    (result,) = list(shared.manager.get_finished_jobs())
    assert not result.success
    assert not shared.manager._lookup
    assert not shared.manager._request_by_load


def test_chunk_of_another_kvfs_is_seen_though_the_first_was_alone(owner: Tier, make_tier: MakeTier) -> None:
    (key,) = keys_of(1)
    assert ask(owner, key) == "MISS"
    other = make_tier()
    assert other.manager._engine.stats()["owner"] == 0
    other.store([key], [0])
    deadline = time.monotonic() + WAIT_S
    while owner.verdict(key) != "HIT":
        assert time.monotonic() < deadline, "the chunk of another kvfs stayed a miss"
    assert owner.manager._engine.stats()["owner"] == 0


def test_miss_that_was_right_leaves_the_owner_alone(owner: Tier) -> None:
    # Stores of its own that end between the answer and the check are no other writer's.
    for number, key in enumerate(keys_of(200)):
        assert ask(owner, key) == "MISS"
        owner.manager.submit_store(owner.job([key], [number % 8], promotion=False))
        owner.step()
    owner.manager.drain_jobs()
    assert owner.manager._engine.stats()["checks"] > 100
    assert owner.manager._engine.stats()["owner"] == 1


def test_touch_takes_known_and_unknown_keys(owner: Tier) -> None:
    stored, absent = keys_of(2)
    owner.store([stored], [0])
    owner.manager.touch([stored, absent], ReqContext(req_id="request"))
    assert [ask(owner, stored), ask(owner, absent)] == ["HIT", "MISS"]
