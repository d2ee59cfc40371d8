"""Real vLLM specs, tiers and keys for the adapter's tests; nothing of vLLM is replaced."""

from __future__ import annotations

import itertools
import mmap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    # What vLLM's own imports warn about is not ours to fail on.
    warnings.simplefilter("ignore")
    from vllm.plugins import load_general_plugins
    from vllm.v1.kv_offload.base import OffloadKey, ReqContext, ScheduleEndContext, make_offload_key
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    # The entry point of the installed wheel makes "kvfs" known, as in a server.
    load_general_plugins()

CHUNK_BYTES = 8192
NUM_CHUNKS = 8
WAIT_S = 20.0

_engine_ids = itertools.count()
_job_ids = itertools.count()


def make_spec(
    *,
    model: str = "org/model",
    tp_size: int = 1,
    replicated_layout: bool = False,
    events: bool = False,
    parallelism_agnostic: bool = True,
    extra: dict[str, Any] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    num_chunks: int = NUM_CHUNKS,
    blocks_per_chunk: int = 1,
    rank: int = 0,
    layers: tuple[str, ...] = ("layer.0",),
) -> TieringOffloadingSpec:
    """Make a real TieringOffloadingSpec of a small model."""
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=layers, group_id=0),),
        worker_kv_bytes_per_block=chunk_bytes // blocks_per_chunk // (1 if replicated_layout else tp_size),
        enable_kv_cache_events=events,
        extra_config={"cpu_bytes_to_use": chunk_bytes * num_chunks, **(extra or {})},
        engine_id=f"kvfs-test-{next(_engine_ids)}",
        model=OffloadingModelConfig(name=model, dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk),
        parallel=OffloadingParallelConfig(
            rank=rank,
            world_size=tp_size,
            tp_size=tp_size,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=parallelism_agnostic,
        ),
        replicated_layout=replicated_layout,
    )
    return TieringOffloadingSpec(config)


class Tier:
    """A tier made by vLLM's factory, its primary tier, and the calls that vLLM makes in a step."""

    def __init__(
        self,
        root: Path,
        tier_type: str = "kvfs",
        *,
        spec_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        # Page-aligned like vLLM's region: the stock tier knows no other way to use O_DIRECT.
        self.memory = mmap.mmap(-1, NUM_CHUNKS * CHUNK_BYTES)
        self.rows = np.frombuffer(self.memory, dtype=np.int8).reshape(NUM_CHUNKS, CHUNK_BYTES)
        self.view = self.rows.data
        self.spec = make_spec(**(spec_options or {}))
        config = {
            "type": tier_type,
            "root_dir": str(root),
            "n_read_threads": 2,
            "n_write_threads": 2,
            # Half of so small a primary tier would hold back little of what tests store at once.
            **({"max_queued_store_bytes": 1 << 30} if tier_type == "kvfs" else {}),
            **options,
        }
        self.manager: SecondaryTierManager = SecondaryTierFactory.create_secondary_tier(
            config, self.view, self.spec
        )
        self.base = Path(self._base_path())

    def _base_path(self) -> str:
        mapper = getattr(self.manager, "file_mapper", None)
        if mapper is not None:
            return f"{mapper.base_path}_r{mapper.rank}"
        return str(self.manager._engine.namespace.base_path)

    def path(self, key: OffloadKey) -> Path:
        """Return the file of a chunk."""
        digits = key[:-4].hex()
        return self.base / digits[:3] / f"{digits[3:5]}_g{int.from_bytes(key[-4:], 'big')}" / f"{digits}.bin"

    def job(self, keys: list[OffloadKey], chunk_ids: list[int], *, promotion: bool) -> TransferJob:
        """Make a job with an id of its own."""
        return TransferJob(
            job_id=next(_job_ids),
            keys=keys,
            chunk_ids=np.array(chunk_ids, dtype=np.int32),
            is_promotion=promotion,
            req_context=ReqContext(req_id="request"),
        )

    def run(self, job: TransferJob) -> Any:
        """Submit a job, wait for it and return its one result."""
        (self.manager.submit_load if job.is_promotion else self.manager.submit_store)(job)
        self.manager.drain_jobs()
        (result,) = list(self.manager.get_finished_jobs())
        assert result.job_id == job.job_id
        return result

    def store(self, keys: list[OffloadKey], chunk_ids: list[int]) -> Any:
        """Store rows under keys and return the result."""
        return self.run(self.job(keys, chunk_ids, promotion=False))

    def load(self, keys: list[OffloadKey], chunk_ids: list[int]) -> Any:
        """Load keys into rows and return the result."""
        return self.run(self.job(keys, chunk_ids, promotion=True))

    def step(self) -> None:
        """End a scheduler step."""
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))

    def verdict(self, key: OffloadKey, request_id: str = "request") -> str:
        """Ask as the scheduler does, step by step, until there is a verdict; return its name."""
        context = ReqContext(req_id=request_id)
        deadline = time.monotonic() + WAIT_S
        while (result := self.manager.lookup(key, context)).name == "RETRY":
            assert time.monotonic() < deadline, "no verdict in time"
            self.step()
            # Waits for kvfs's questions as for its transfers; the stock tier's thread needs a moment.
            self.manager.drain_jobs()
            time.sleep(0.001)
        return result.name

    def finish(self, request_id: str = "request") -> None:
        """End a request."""
        self.manager.on_request_finished(ReqContext(req_id=request_id))


def wait_for_scan(tier: SecondaryTierManager) -> None:
    """Wait until a kvfs tier has seen every chunk that is there."""
    deadline = time.monotonic() + WAIT_S
    while not tier._engine.stats()["scan_complete"]:
        assert time.monotonic() < deadline, "the scan did not end in time"
        time.sleep(0.001)


def keys_of(count: int, *, first: int = 0, hash_bytes: int = 32, group: int = 0) -> list[OffloadKey]:
    """Make keys whose hashes differ in their first bytes."""
    return [
        make_offload_key(((first + i) * 0x9E3779B1 % 2**32).to_bytes(4, "big") + bytes(hash_bytes - 4), group)
        for i in range(count)
    ]
