"""The behaviour that vLLM holds its own tier to, held by kvfs's, on real files."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import Locality, Medium
from vllm_parts import CHUNK_BYTES, NUM_CHUNKS, Tier, keys_of

MakeTier = Callable[..., Tier]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_job_of_chunks_round_trips_into_other_rows(make_tier: MakeTier, count: int) -> None:
    tier = make_tier()
    keys = keys_of(count)
    tier.rows[:] = np.random.default_rng(count).integers(-128, 128, tier.rows.shape, dtype=np.int8)
    stored = tier.rows.copy()
    result = tier.store(keys, list(range(count)))
    assert result.success
    assert result.transfer_bytes == count * CHUNK_BYTES
    tier.rows[:] = 0
    targets = list(reversed(range(NUM_CHUNKS)))[:count]
    result = tier.load(keys, targets)
    assert result.success
    assert result.successful_keys is None
    for source, target in enumerate(targets):
        assert np.array_equal(tier.rows[target], stored[source])


@pytest.mark.parametrize("hash_bytes", [8, 32, 64])
@pytest.mark.parametrize("group", [0, 3])
def test_key_of_any_hash_length_and_group_is_stored_at_its_path(
    tier: Tier, hash_bytes: int, group: int
) -> None:
    (key,) = keys_of(1, hash_bytes=hash_bytes, group=group)
    assert tier.store([key], [2]).success
    assert tier.path(key).read_bytes() == tier.rows[2].tobytes()


def test_load_of_missing_file_gives_one_failed_result(tier: Tier) -> None:
    result = tier.load(keys_of(1), [0])
    assert not result.success
    assert result.successful_keys is None


@pytest.mark.parametrize("chunk_id", [NUM_CHUNKS, -1, 2**31 - 1])
@pytest.mark.parametrize("direction", ["store", "load"])
def test_chunk_id_outside_primary_tier_gives_one_failed_result(
    tier: Tier, chunk_id: int, direction: str
) -> None:
    keys = keys_of(1)
    tier.store(keys, [0])
    result = getattr(tier, direction)(keys, [chunk_id])
    assert not result.success


def test_good_load_leaves_file(tier: Tier) -> None:
    (key,) = keys_of(1)
    tier.store([key], [0])
    assert tier.load([key], [1]).success
    assert tier.path(key).stat().st_size == CHUNK_BYTES


def test_load_through_link_loop_fails_and_leaves_it(tier: Tier) -> None:
    (key,) = keys_of(1)
    path = tier.path(key)
    path.parent.mkdir(parents=True)
    path.symlink_to(path.name)
    assert not tier.load([key], [0]).success
    assert path.is_symlink()


@pytest.mark.parametrize("bad", [0, 1, 2], ids=["first", "middle", "last"])
def test_load_with_one_damaged_chunk_keeps_all_others(tier: Tier, bad: int) -> None:
    keys = keys_of(3)
    tier.store(keys, [0, 1, 2])
    assert [tier.verdict(key) for key in keys] == ["HIT"] * 3
    os.truncate(tier.path(keys[bad]), 10)
    result = tier.load(keys, [3, 4, 5])
    good = [i for i in range(3) if i != bad]
    assert not result.success
    assert list(result.successful_keys) == [keys[i] for i in good]
    assert [tier.verdict(key) for key in keys] == ["MISS" if i == bad else "HIT" for i in range(3)]
    for i in good:
        assert np.array_equal(tier.rows[3 + i], tier.rows[i])


def test_store_of_chunk_that_is_there_succeeds_with_zero_bytes(tier: Tier) -> None:
    (key,) = keys_of(1)
    assert tier.store([key], [0]).transfer_bytes == CHUNK_BYTES
    again = tier.store([key], [0])
    assert again.success
    assert again.transfer_bytes == 0


def test_drain_waits_for_work_in_flight(tier: Tier) -> None:
    jobs = [tier.job(keys_of(4, first=4 * i), [0, 1, 2, 3], promotion=False) for i in range(50)]
    for job in jobs:
        tier.manager.submit_store(job)
    tier.manager.drain_jobs()
    results = list(tier.manager.get_finished_jobs())
    assert sorted(result.job_id for result in results) == sorted(job.job_id for job in jobs)
    assert list(tier.manager.get_finished_jobs()) == []


def test_shutdown_ends_threads_and_reports_what_it_cancelled(make_tier: MakeTier) -> None:
    before = _threads()
    tier = make_tier(n_read_threads=1, n_write_threads=1)
    jobs = [tier.job(keys_of(8, first=8 * i), list(range(8)), promotion=False) for i in range(100)]
    for job in jobs:
        tier.manager.submit_store(job)
    tier.manager.shutdown()
    assert _threads() == before
    results = list(tier.manager.get_finished_jobs())
    assert sorted(result.job_id for result in results) == sorted(job.job_id for job in jobs)
    assert not all(result.success for result in results)
    tier.view.release()
    tier.manager.shutdown()


def test_primary_view_is_pinned_until_shutdown(make_tier: MakeTier) -> None:
    tier = make_tier()
    with pytest.raises(BufferError):
        tier.view.release()
    tier.manager.shutdown()
    tier.view.release()
    with pytest.raises(ValueError, match="released"):
        tier.view.tobytes()


def test_events_name_the_keys_of_each_good_store_in_order(make_tier: MakeTier) -> None:
    tier = make_tier(enable_kv_events=True, locality="LOCAL", spec_options={"events": True})
    keys = keys_of(3)
    tier.store(keys, [0, 1, 2])
    tier.load(keys, [3, 4, 5])
    (event,) = list(tier.manager.take_events())
    assert event.keys == keys
    assert (event.medium, event.locality, event.removed) == (Medium.STORAGE, Locality.LOCAL, False)
    assert list(tier.manager.take_events()) == []


def test_partly_failed_store_emits_no_event_but_stores_the_rest(make_tier: MakeTier) -> None:
    tier = make_tier(enable_kv_events=True, spec_options={"events": True})
    keys = keys_of(3)
    tier.path(keys[1]).mkdir(parents=True)
    assert not tier.store(keys, [0, 1, 2]).success
    assert list(tier.manager.take_events()) == []
    assert [tier.path(key).is_file() for key in keys] == [True, False, True]


@pytest.mark.parametrize(
    ("limit_bytes", "kept"),
    [
        pytest.param(3 * CHUNK_BYTES, 3, id="three-chunks"),
        pytest.param(1, 1, id="less-than-a-chunk"),
        # vLLM reads null from a configuration file as None.
        pytest.param(None, NUM_CHUNKS // 2, id="default-half-the-primary-tier"),
    ],
)
def test_store_with_sheds_succeeds_with_the_bytes_and_event_of_what_was_stored(
    make_tier: MakeTier, limit_bytes: int | None, kept: int
) -> None:
    tier = make_tier(enable_kv_events=True, spec_options={"events": True}, max_queued_store_bytes=limit_bytes)
    keys = keys_of(NUM_CHUNKS)
    result = tier.store(keys, list(range(NUM_CHUNKS)))
    assert result.success
    assert result.successful_keys is None
    assert result.transfer_bytes == kept * CHUNK_BYTES
    (event,) = list(tier.manager.take_events())
    assert event.keys == keys[:kept]
    assert [tier.verdict(key) for key in keys] == ["HIT"] * kept + ["MISS"] * (NUM_CHUNKS - kept)
    # Nothing of it is held against the chunks: later there is room for them.
    tier.finish()
    for key in keys[kept:]:
        assert tier.store([key], [0]).transfer_bytes == CHUNK_BYTES
        assert tier.verdict(key) == "HIT"


def test_stores_that_find_the_queue_full_succeed_with_events_of_the_stored_keys_alone(
    make_tier: MakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier(enable_kv_events=True, spec_options={"events": True}, max_queued_store_bytes=1)
    keys = keys_of(400)
    jobs = [tier.job(keys[i : i + 2], [0, 1], promotion=False) for i in range(0, 400, 2)]
    with caplog.at_level("WARNING", "kvfs"):
        for job in jobs:
            tier.manager.submit_store(job)
        tier.manager.drain_jobs()
        results = {result.job_id: result for result in tier.manager.get_finished_jobs()}
    assert sorted(results) == [job.job_id for job in jobs]
    assert all(result.success for result in results.values())
    stored = [[key for key in job.keys if tier.path(key).exists()] for job in jobs]
    # With room for one, the second key of a job is always shed, and both where the one was taken.
    assert all(kept in ([], list(job.keys)[:1]) for kept, job in zip(stored, jobs, strict=True))
    assert [] in stored
    assert any(stored)
    transferred = [results[job.job_id].transfer_bytes for job in jobs]
    assert transferred == [len(kept) * CHUNK_BYTES for kept in stored]
    events = [list(event.keys) for event in tier.manager.take_events()]
    assert sorted(events) == sorted(kept for kept in stored if kept)
    warnings = [record for record in caplog.records if "does not keep up with stores" in record.message]
    assert len(warnings) == 1
    assert "max_queued_store_bytes" in warnings[0].message
    assert tier.manager._engine.stats()["shed_stores"] == 400 - len(events)


def test_events_stay_off_without_global_events(make_tier: MakeTier, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "kvfs"):
        tier = make_tier(enable_kv_events=True)
    assert "enable_kv_cache_events" in caplog.text
    tier.store(keys_of(1), [0])
    assert list(tier.manager.take_events()) == []


def test_replicated_layout_written_with_tp_2_is_read_with_tp_4(make_tier: MakeTier) -> None:
    writer = make_tier(spec_options={"tp_size": 2, "replicated_layout": True})
    reader = make_tier(spec_options={"tp_size": 4, "replicated_layout": True})
    assert writer.base == reader.base
    keys = keys_of(2)
    writer.rows[:] = 7
    assert writer.store(keys, [0, 1]).success
    assert reader.load(keys, [4, 5]).success
    assert np.array_equal(reader.rows[4:6], writer.rows[0:2])


def test_no_python_thread_runs_when_extension_is_active(make_tier: MakeTier) -> None:
    from kvfs import backend  # noqa: PLC0415

    make_tier()
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvfs")]
    assert bool(names) == (backend.describe()[0] == "fallback")


def _threads() -> int:
    """Count this process's threads, native ones too, that kvfs started."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        # Others end when they like.
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text())
    python = sum(thread.name.startswith("kvfs") for thread in threading.enumerate())
    return max(python, sum(name.startswith("kvfs") for name in names))
