"""Drive vLLM's `fs` tier as its scheduler does: its thread pool, one job a task, its own C extension.

`FileSystemTierManager.submit_store` and `submit_load` make the same paths, offsets and task out of a job.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# Without its extension vLLM falls back to Python in silence; that would be an easy opponent.
import vllm.fs_io_C  # noqa: F401
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.fs.io import (
    batch_load_block,
    batch_store_block,
    probe_o_direct,
)
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

from harness.micro import cases, chunks
from harness.micro.drivers import DriverError, Finished


class StockDriver:
    """vLLM's tier, without the scheduler's side of it."""

    def __init__(self, root: Path, view: memoryview, threads: int) -> None:
        self._view = view
        self._chunk_bytes = view.shape[1] if view.shape else 0
        self._mapper = FileMapper(root_dir=str(root), rank=0, parallel_agnostic=True, **chunks.FIELDS)
        config_dir = Path(self._mapper.get_config_file_path()).parent
        config_dir.mkdir(parents=True, exist_ok=True)
        self._direct = bool(probe_o_direct(str(config_dir)))
        self._submitted: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._pool = DualQueueThreadPool(threads, threads, thread_name_prefix="vllm_kv_py_fs")

    @property
    def base_path(self) -> str:
        """Where the chunks' directories lie."""
        return f"{self._mapper.base_path}_r{self._mapper.rank}"

    def submit(self, op: str, job_id: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Enqueue one task for the whole job."""
        self._submitted[job_id] = time.perf_counter()
        task = partial(
            batch_store_block if op == cases.STORE else batch_load_block,
            [self._mapper.get_file_name(key) for key in keys],
            self._view,
            [row * self._chunk_bytes for row in rows],
            self._chunk_bytes,
            self._direct,
        )
        enqueue = self._pool.enqueue_store if op == cases.STORE else self._pool.enqueue_load
        enqueue(job_id, 1, [partial(self._stamped, job_id, task)])

    def finished(self) -> list[Finished]:
        """Take what the pool reports."""
        done = []
        for job_id, success, _ in self._pool.get_finished():
            if not success:
                raise DriverError(f"vLLM's tier failed job {job_id}; the worker's log says why")
            done.append(Finished(job_id, self._ended.pop(job_id) - self._submitted.pop(job_id)))
        return done

    def wait(self) -> None:
        """Wait as the tier's `drain_jobs` does."""
        self._pool.wait_idle()

    def facts(self) -> dict[str, object]:
        """Return what records say about this arm."""
        return {
            "engine": "extension",
            "o_direct": self._direct,
        }

    def close(self) -> None:
        """End the pool's threads."""
        self._pool.shutdown(wait=True)

    def _stamped(self, job_id: int, task: Callable[[], object]) -> None:
        """Run a task on the pool's thread and note when it ended: the pool times the task alone."""
        task()
        self._ended[job_id] = time.perf_counter()


def make(root: Path, view: memoryview, threads: int, io: str, checksum: str) -> StockDriver:
    """Return vLLM's tier with its threads started; it has but one `io`, and no checksums."""
    del io, checksum
    return StockDriver(root, view, threads)
