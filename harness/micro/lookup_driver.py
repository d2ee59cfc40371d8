"""vLLM's tiers as its scheduler has them: made from a real spec, asked in its steps, kept busy with jobs.

The steps are those of one request: `TieringOffloadingManager` takes what has finished once a step, the
connector's scheduler asks for key after key until one is missing, going on past RETRY, and tells the tier
when the step ends; while an answer is RETRY, the request waits for the next step and is asked about anew.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# Without its extension vLLM looks up in Python in silence; that would be an easy opponent.
import vllm.fs_io_C  # noqa: F401
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

# Made by its name, and imported here, before runs are forked.
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager  # noqa: F401
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from harness.micro.drivers import IO_PYTHON, DriverError
from harness.micro.lookup_cases import BUSY_JOBS, CHUNK_BYTES, OWNER, STOCK_MODE

_POLL_S: Final = 0.001
_TIMEOUT_S: Final = 60.0
_NO_REQUESTS: Final = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())
_MODEL: Final = "kvfs/micro"
_TOKENS_PER_CHUNK: Final = 16


def spec_of(rows: int) -> TieringOffloadingSpec:
    """Return vLLM's configuration of a model whose chunks have `CHUNK_BYTES`."""
    return TieringOffloadingSpec(
        OffloadingConfig(
            groups=(
                OffloadingGroupConfig(
                    tokens_per_block=_TOKENS_PER_CHUNK, layer_names=("layer.0",), group_id=0
                ),
            ),
            worker_kv_bytes_per_block=CHUNK_BYTES,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": CHUNK_BYTES * rows},
            engine_id="kvfs-micro",
            model=OffloadingModelConfig(name=_MODEL, dtype="bfloat16"),
            cache=OffloadingCacheConfig(tokens_per_hash=_TOKENS_PER_CHUNK, blocks_per_chunk=1),
            parallel=OffloadingParallelConfig(
                rank=0,
                world_size=1,
                tp_size=1,
                pp_size=1,
                pcp_size=1,
                dcp_size=1,
                data_parallel_index=0,
                data_parallel_size=1,
                data_parallel_rank_local=None,
                is_parallelism_agnostic=True,
            ),
            replicated_layout=False,
        )
    )


def base_path_of(root: str) -> str:
    """Return where both tiers keep the chunks of `spec_of` below a root."""
    mapper = FileMapper.from_offloading_spec(
        root_dir=root, offloading_spec=spec_of(1), blocks_per_file=1, parallel_agnostic=True
    )
    return f"{mapper.base_path}_r{mapper.rank}"


def import_kvfs(io: str) -> None:
    """Import kvfs's tier with the engine that an I/O path means, and make it known to vLLM; once a process.

    Raises:
        DriverError: The extension is missing where it is wanted.
    """
    os.environ["KVFS_DISABLE_EXT"] = "1" if io == IO_PYTHON else "0"
    # After the variable is set: the choice is made at the first use.
    from kvfs import backend  # noqa: PLC0415
    from kvfs.vllm_adapter import plugin, tier  # noqa: F401, PLC0415

    plugin.register()
    active, reason = backend.describe()
    wanted = "fallback" if io == IO_PYTHON else "extension"
    if active != wanted:
        raise DriverError(f"the {wanted} is wanted, but kvfs's {active} is active: {reason}")


class Tier:
    """A tier of either kind, with its threads started.

    Args:
        root: Its `root_dir`.
        view: The primary tier, int8, shape (rows, CHUNK_BYTES).
        tier: vLLM's name of the tier; `import_kvfs` comes before "kvfs".
        mode: How kvfs shares its directory, or "stock".
        io: The I/O back end to ask for.
    """

    def __init__(self, root: str, view: memoryview, tier: str, mode: str, io: str) -> None:
        options: dict[str, object] = {"type": tier, "root_dir": root}
        if mode != STOCK_MODE:
            options["index_mode"] = mode
            options["io_engine"] = "auto" if io == IO_PYTHON else io
        self._mode = mode
        rows = view.shape[0] if view.shape else 0
        self.manager: SecondaryTierManager = SecondaryTierFactory.create_secondary_tier(
            options, view, spec_of(rows)
        )

    def stats(self) -> dict[str, int]:
        """Return the counts of kvfs's engine; the stock tier has none."""
        return {} if self._mode == STOCK_MODE else dict(self._engine.stats())

    @property
    def _engine(self) -> Any:  # noqa: ANN401  kvfs's ChunkEngine, which this module cannot import yet
        return self.manager._engine  # noqa: SLF001

    def await_scan(self) -> dict[str, int]:
        """Wait until kvfs knows what lies in its directory, as a server does that has run for a while.

        Returns:
            Its counts then.

        Raises:
            DriverError: That takes too long, or kvfs is not in the mode that was asked for.
        """
        stats = self.stats()
        if self._mode == STOCK_MODE:
            return stats
        deadline = time.monotonic() + _TIMEOUT_S
        while not stats["scan_complete"]:
            if time.monotonic() > deadline:
                raise DriverError(f"the index was not complete within {_TIMEOUT_S:.0f} s: {stats}")
            time.sleep(_POLL_S)
            stats = self.stats()
        if bool(stats["owner"]) is not (self._mode == OWNER):
            raise DriverError(
                f"index_mode {self._mode!r} was asked for, but the engine has owner={stats['owner']}"
            )
        return stats

    def facts(self) -> dict[str, object]:
        """Return what records say about the tier."""
        if self._mode == STOCK_MODE:
            return {"engine": "extension"}
        from kvfs import backend  # noqa: PLC0415  see import_kvfs

        io_engine = self._engine.io_engine
        return {"engine": backend.describe()[0], "io_engine": io_engine, "engine_stats": self.stats()}

    def close(self) -> None:
        """End the threads."""
        self.manager.shutdown()


@dataclass(frozen=True)
class Asked:
    """What one request took.

    Attributes:
        cpu_ns: Of this thread, in the tier's calls and the loop around them; the model's time is none of it,
            nor what taking jobs takes that have ended beside.
        wall_s: From the first question until the verdict, with the model's time.
        own_s: The same without the model's time.
        retry_steps: Steps that ended without a verdict.
        missing: The first key that is not there, None if all are.
        finished: Jobs that the tier reported meanwhile.
    """

    cpu_ns: int
    wall_s: float
    own_s: float
    retry_steps: int
    missing: bytes | None
    finished: list[Any]


def ask(
    manager: SecondaryTierManager, keys: Sequence[bytes], request_id: str, step_s: float = _POLL_S
) -> Asked:
    """Look a prompt's keys up, in as many steps as it takes, and end the request.

    Args:
        manager: The tier.
        keys: The prompt's.
        request_id: New for each request.
        step_s: How long the model computes between two steps.

    Raises:
        DriverError: There is no verdict in time.
    """
    context = ReqContext(req_id=request_id)
    manager.on_new_request(context)
    # The scheduler does so just before it asks.
    for number, key in enumerate(keys, start=1):
        context.set_offload_key_position(OffloadKey(key), number * _TOKENS_PER_CHUNK)
    finished: list[Any] = []
    cpu_ns = retry_steps = 0
    slept_s = 0.0
    started_s = time.perf_counter()
    while True:
        finished.extend(manager.get_finished_jobs())
        step_cpu_ns = time.thread_time_ns()
        missing, undecided = _prefix(manager.lookup, keys, context)
        wall_s = time.perf_counter() - started_s
        manager.on_schedule_end(_NO_REQUESTS)
        cpu_ns += time.thread_time_ns() - step_cpu_ns
        if not undecided:
            break
        retry_steps += 1
        if wall_s > _TIMEOUT_S:
            raise DriverError(f"no verdict on {len(keys)} keys after {retry_steps} steps")
        sleeping_since_s = time.perf_counter()
        time.sleep(step_s)
        slept_s += time.perf_counter() - sleeping_since_s
    end_cpu_ns = time.thread_time_ns()
    manager.on_request_finished(context)
    cpu_ns += time.thread_time_ns() - end_cpu_ns
    return Asked(cpu_ns, wall_s, wall_s - slept_s, retry_steps, missing, finished)


def _prefix(
    lookup: Callable[[bytes, ReqContext], LookupResult], keys: Sequence[bytes], context: ReqContext
) -> tuple[bytes | None, bool]:
    """Ask until a key is missing; return that key, and whether some answer is still to come."""
    hit, retry = LookupResult.HIT, LookupResult.RETRY
    undecided = False
    for key in keys:
        result = lookup(key, context)
        if result is hit:
            continue
        if result is not retry:
            return key, undecided
        undecided = True
    return None, undecided


class Backlog:
    """Loads that are kept in flight through a tier, each into rows of its own.

    Args:
        manager: The tier.
        keys: Chunks that are there, more than a job has.
        chunks_per_job: How many of them each job loads.
    """

    def __init__(self, manager: SecondaryTierManager, keys: Sequence[bytes], chunks_per_job: int) -> None:
        self._manager = manager
        self._keys = keys
        self._size = chunks_per_job
        self._job_ids = itertools.count()
        self._slots: dict[int, int] = {}
        self._free = list(range(BUSY_JOBS))
        # What the last job of each slot loaded: pairs (row, chunk's number).
        self.loaded: dict[int, list[tuple[int, int]]] = {}

    def top_up(self) -> None:
        """Submit as many jobs as have ended. Does not block."""
        while self._free:
            slot = self._free.pop()
            job_id = next(self._job_ids)
            numbers = [(job_id * self._size + i) % len(self._keys) for i in range(self._size)]
            rows = range(slot * self._size, (slot + 1) * self._size)
            self._slots[job_id] = slot
            self.loaded[slot] = list(zip(rows, numbers, strict=True))
            self._manager.submit_load(
                TransferJob(
                    job_id=job_id,
                    keys=[self._keys[number] for number in numbers],
                    chunk_ids=np.array(rows, dtype=np.int32),
                    is_promotion=True,
                    req_context=ReqContext(req_id="loads"),
                )
            )

    def take(self, finished: Sequence[Any]) -> int:
        """Note which jobs have ended; return how many are still in flight.

        Raises:
            DriverError: One of them failed.
        """
        for result in finished:
            if not result.success:
                raise DriverError(f"a load of {self._size} chunks beside the lookups failed: {result}")
            self._free.append(self._slots.pop(result.job_id))
        return len(self._slots)

    def drain(self) -> None:
        """Wait until no job is in flight."""
        self._manager.drain_jobs()
        left = self.take(list(self._manager.get_finished_jobs()))
        if left:
            raise DriverError(f"{left} loads beside the lookups were never reported")
