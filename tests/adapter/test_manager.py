"""kvfs under vLLM's own TieringOffloadingManager, made by the spec as in a server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seal_parts import flip_bit
from vllm.v1.kv_offload.base import Medium, OffloadKey, ReqContext, ScheduleEndContext
from vllm_parts import CHUNK_BYTES, WAIT_S, keys_of, make_spec, wait_for_scan


class Scheduler:
    """The calls that vLLM's scheduler makes on the manager."""

    def __init__(self, root: Path, **spec_options: Any) -> None:
        tiers = [{"type": "kvfs", "root_dir": str(root), "n_read_threads": 2, "n_write_threads": 2}]
        tiers[0].update(spec_options.pop("tier", {}))
        self.spec = make_spec(extra={"secondary_tiers": tiers}, **spec_options)
        self.manager = self.spec.get_manager()
        # vLLM has a lock here since 0.33.
        self.lock = getattr(self.manager, "lock", contextlib.nullcontext())
        self.rows = np.asarray(self.manager.primary_tier.get_kv_memoryview())

    def step(self) -> None:
        with self.lock:
            self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))

    def store(self, keys: list[OffloadKey], context: ReqContext, fill: int) -> None:
        """Write chunks into the primary tier and let them cascade."""
        with self.lock:
            output = self.manager.prepare_store(keys, context)
            assert output is not None
            self.rows[output.store_spec.chunk_ids] = fill
            self.manager.complete_store(keys, context)
        self.settle()

    def settle(self) -> None:
        """Step until no transfer is under way."""
        deadline = time.monotonic() + WAIT_S
        while self.manager.has_pending_work():
            assert time.monotonic() < deadline, "transfers did not end in time"
            self.step()

    def verdict(self, key: OffloadKey, context: ReqContext) -> str:
        """Look up step by step until the chunk can be read or is missed."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with self.lock:
                name = self.manager.lookup(key, context).name
            if name not in ("RETRY", "HIT_PENDING"):
                return name
            assert time.monotonic() < deadline, f"still {name}"
            self.step()

    def request(self, name: str) -> ReqContext:
        context = ReqContext(req_id=name)
        with self.lock:
            self.manager.on_new_request(context)
        return context

    def close(self) -> None:
        del self.rows
        self.manager.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Scheduler]]:
    started: list[Scheduler] = []

    def make(**options: Any) -> Scheduler:
        scheduler = Scheduler(tmp_path / "root", **options)
        started.append(scheduler)
        return scheduler

    yield make
    for scheduler in started:
        if hasattr(scheduler, "rows"):
            scheduler.close()


def test_chunks_survive_a_restart_through_cascade_and_promotion(start: Callable[..., Scheduler]) -> None:
    keys = keys_of(4)
    first = start()
    first.store(keys, first.request("a"), fill=42)
    first.close()

    second = start()
    context = second.request("b")
    assert [second.verdict(key, context) for key in keys] == ["HIT"] * 4
    with second.lock:
        spec = second.manager.prepare_load(keys, context)
        assert (second.rows[spec.chunk_ids] == 42).all()
        second.manager.complete_load(keys, context)


def test_damaged_chunk_is_a_miss_and_the_request_does_not_loop(start: Callable[..., Scheduler]) -> None:
    keys = keys_of(3)
    first = start()
    first.store(keys, first.request("a"), fill=1)
    namespace = first.manager.secondary_tiers[0]._engine.namespace
    first.close()

    second = start()
    context = second.request("b")
    # Known to be there, then gone when it is loaded.
    wait_for_scan(second.manager.secondary_tiers[0])
    Path(namespace.chunk_path(keys[2])).unlink()
    assert [second.verdict(key, context) for key in keys] == ["HIT", "HIT", "MISS"]


def test_request_is_promoted_without_a_step_of_retry(start: Callable[..., Scheduler]) -> None:
    keys = keys_of(4)
    first = start()
    first.store(keys, first.request("a"), fill=1)
    first.close()
    second = start()
    wait_for_scan(second.manager.secondary_tiers[0])
    context = second.request("b")
    with second.lock:
        # The first question starts the promotion, and the end of this very step submits it.
        assert [second.manager.lookup(key, context).name for key in keys] == ["HIT_PENDING"] * 4
        assert second.manager.lookup(keys_of(1, first=9)[0], context).name == "MISS"
    second.step()
    second.settle()
    with second.lock:
        assert [second.manager.lookup(key, context).name for key in keys] == ["HIT"] * 4


def test_events_arrive_through_the_manager(start: Callable[..., Scheduler]) -> None:
    scheduler = start(events=True, tier={"enable_kv_events": True})
    keys = keys_of(2)
    scheduler.store(keys, scheduler.request("a"), fill=1)
    events = [event for event in scheduler.manager.take_events() if event.medium is Medium.STORAGE]
    assert [event.keys for event in events] == [keys]


def test_reset_cache_drains_the_tier_and_keeps_the_files(start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    keys = keys_of(4)
    context = scheduler.request("a")
    with scheduler.lock:
        output = scheduler.manager.prepare_store(keys, context)
        scheduler.rows[output.store_spec.chunk_ids] = 9
        scheduler.manager.complete_store(keys, context)
        scheduler.manager.reset_cache()
        # vLLM 0.33 holds promotions until the workers have reported.
        getattr(scheduler.manager, "on_reset_flushed", lambda: None)()
    namespace = scheduler.manager.secondary_tiers[0]._engine.namespace
    assert [Path(namespace.chunk_path(key)).stat().st_size for key in keys] == [CHUNK_BYTES] * 4
    assert [scheduler.verdict(key, context) for key in keys] == ["HIT"] * 4


def test_manager_shutdown_releases_the_primary_tier(start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    scheduler.store(keys_of(1), scheduler.request("a"), fill=1)
    view = scheduler.manager.primary_tier.get_kv_memoryview()
    scheduler.close()
    with pytest.raises(ValueError, match="released"):
        view.tobytes()


def test_metrics_of_the_manager_count_bytes_of_this_tier(start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    scheduler.store(keys_of(3), scheduler.request("a"), fill=1)
    stats = scheduler.manager.get_stats()
    assert str(3 * CHUNK_BYTES) in str(stats.data)


@pytest.mark.parametrize("bad", [{0}, {2}, {4}, {0, 4}, {1, 2, 3}], ids=lambda bad: "-".join(map(str, bad)))
def test_damaged_chunks_of_a_promotion_cost_themselves_alone(
    start: Callable[..., Scheduler], bad: set[int]
) -> None:
    keys = keys_of(5)
    first = start()
    for number, key in enumerate(keys):
        first.store([key], first.request(f"store {number}"), fill=number)
    namespace = first.manager.secondary_tiers[0]._engine.namespace
    first.close()
    for number in bad:
        flip_bit(Path(namespace.chunk_path(keys[number])), CHUNK_BYTES - 1)

    second = start()
    wait_for_scan(second.manager.secondary_tiers[0])
    context = second.request("load")
    with second.lock:
        assert [second.manager.lookup(key, context).name for key in keys] == ["HIT_PENDING"] * 5
    second.step()
    second.settle()
    with second.lock:
        verdicts = [second.manager.lookup(key, context).name for key in keys]
        assert verdicts == ["MISS" if number in bad else "HIT" for number in range(5)]
        good = [number for number in range(5) if number not in bad]
        kept = [keys[number] for number in good]
        spec = second.manager.prepare_load(kept, context)
        assert second.rows[spec.chunk_ids].tolist() == [[number] * CHUNK_BYTES for number in good]
        second.manager.complete_load(kept, context)
    assert second.manager.secondary_tiers[0]._engine.stats()["damaged_chunks"] == len(bad)
