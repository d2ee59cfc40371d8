"""Limits in the tier: removed events for what is evicted, and the end of a server whose disk hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import Locality, Medium, OffloadKey
from vllm_parts import CHUNK_BYTES, NUM_CHUNKS, WAIT_S, Tier, keys_of

from kvfs.vllm_adapter import tier as tier_module

MakeTier = Callable[..., Tier]
COST = CHUNK_BYTES + 4096


def _await_count(tier: Tier) -> None:
    deadline = time.monotonic() + WAIT_S
    while not tier.manager._engine.stats()["space_counted"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _store_until_evicted(tier: Tier) -> list[OffloadKey]:
    """Store chunks until some are evicted, and return all keys that were stored."""
    _await_count(tier)
    stored: list[OffloadKey] = []
    deadline = time.monotonic() + WAIT_S
    while not tier.manager._engine.stats()["evicted_chunks"]:
        assert time.monotonic() < deadline
        keys = keys_of(NUM_CHUNKS, first=len(stored))
        assert tier.store(keys, list(range(NUM_CHUNKS))).success
        stored += keys
    return stored


@pytest.mark.parametrize("name", ["capacity_bytes", "max_bytes"])
def test_evicted_chunks_are_reported_as_removed_after_they_were_stored(
    make_tier: MakeTier, name: str
) -> None:
    tier = make_tier(
        enable_kv_events=True, locality="LOCAL", spec_options={"events": True}, **{name: f"{64 * COST}B"}
    )
    keys = _store_until_evicted(tier)
    present: set[OffloadKey] = set()
    removed: list[OffloadKey] = []
    deadline = time.monotonic() + WAIT_S
    while not removed:
        assert time.monotonic() < deadline
        for event in tier.manager.take_events():
            assert (event.medium, event.locality) == (Medium.STORAGE, Locality.LOCAL)
            if event.removed:
                removed += event.keys
                present -= set(event.keys)
            else:
                present |= set(event.keys)
    assert set(removed) <= set(keys)
    assert len(set(removed)) == len(removed)
    assert not present & set(removed)
    for key in removed:
        assert not tier.path(key).exists()
    assert tier.verdict(removed[0]) == "MISS"


def test_without_events_nothing_is_kept_or_reported(make_tier: MakeTier) -> None:
    tier = make_tier(capacity_bytes=64 * COST)
    _store_until_evicted(tier)
    assert list(tier.manager.take_events()) == []


def test_capacity_too_small_for_the_chunks_is_refused(make_tier: MakeTier) -> None:
    with pytest.raises(ValueError, match=f"capacity_bytes must be at least {4 * (CHUNK_BYTES + 2 * 4096)}"):
        make_tier(capacity_bytes="10KiB")


def test_without_a_limit_the_start_warns_once(make_tier: MakeTier, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "kvfs"):
        make_tier()
        assert len([record for record in caplog.records if "no limit is set" in record.getMessage()]) == 1
        caplog.clear()
        make_tier(min_free_bytes="1MB", spec_options={"model": "org/other"})
        assert "no limit is set" not in caplog.text


def test_shutdown_of_a_tier_whose_disk_hangs_returns_and_says_what_it_leaves(
    make_tier: MakeTier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tier = make_tier()
    caplog.clear()
    waited: list[float | None] = []

    def leaves_some(timeout_s: float | None = None) -> int:
        waited.append(timeout_s)
        return 3

    with monkeypatch.context() as patched, caplog.at_level("ERROR", "kvfs"):
        patched.setattr(tier.manager._engine, "close", leaves_some)
        tier.manager.shutdown()
    assert waited == [tier_module._SHUTDOWN_TIMEOUT_S]
    (record,) = caplog.records
    message = record.getMessage()
    assert "3 unfinished jobs" in message
    assert str(tier.base) in message
    assert "memory stays pinned" in message
    caplog.clear()
    tier.manager.shutdown()
    assert caplog.records == []
