"""Drive kvfs through the door that its vLLM adapter uses, with the I/O back end of choice."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.micro import cases, chunks, pagecache
from harness.micro.drivers import IO_PYTHON, DriverError, Finished
from kvfs import backend
from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.paths import Namespace

# Nothing is shed: a case measures how its whole backlog drains, and the stock tier sheds nothing either.
_NO_LIMIT_BYTES: Final = 1 << 62
_SCAN_TIMEOUT_S: Final = 120.0
_SCAN_POLL_S: Final = 0.001


class KvfsDriver:
    """kvfs's engine, native or in Python."""

    def __init__(self, root: Path, view: memoryview, threads: int, io: str, checksum: str) -> None:
        options: dict[str, object] = {
            "root_dir": str(root),
            "n_read_threads": threads,
            "n_write_threads": threads,
            "max_queued_store_bytes": _NO_LIMIT_BYTES,
            "checksum": checksum,
        }
        if io != IO_PYTHON:
            # Forced, so that a machine that does not have it refuses instead of measuring another one.
            options["io_engine"] = io
        self._backend = _require_backend("fallback" if io == IO_PYTHON else "extension")
        self._root = root
        self._namespace = Namespace(str(root), chunks.FIELDS)
        self._submitting_s: dict[int, float] = {}
        self._engine = ChunkEngine(self._namespace, view, TierConfig.from_options(options))
        self._await_scan()

    @property
    def base_path(self) -> str:
        """Where the chunks' directories lie."""
        return self._namespace.base_path

    def _await_scan(self) -> None:
        """Wait until the engine has read what is there, as one that has served for a while has done."""
        deadline = time.perf_counter() + _SCAN_TIMEOUT_S
        while not self._engine.stats()["scan_complete"]:
            if time.perf_counter() > deadline:
                raise DriverError(f"kvfs has not read {self.base_path} within {_SCAN_TIMEOUT_S:.0f} s")
            time.sleep(_SCAN_POLL_S)

    def submit(self, op: str, job_id: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Hand the job to the engine."""
        started = time.perf_counter()
        if op == cases.STORE:
            self._engine.submit_store(job_id, keys, rows)
        else:
            self._engine.submit_load(job_id, keys, rows)
        self._submitting_s[job_id] = time.perf_counter() - started

    def finished(self) -> list[Finished]:
        """Take what the engine reports. Its times start when it accepted the job, so submitting is added."""
        done = []
        for completion in self._engine.poll():
            failed = [outcome for outcome in completion.outcomes if outcome]
            if failed:
                raise DriverError(
                    f"kvfs failed {len(failed)} of {len(completion.outcomes)} chunks of a {completion.kind} "
                    f"job, the first with {os.strerror(failed[0])}: {completion.detail}"
                )
            submitting_s = self._submitting_s.pop(completion.job_id)
            latency_s = submitting_s + completion.queue_s + completion.transfer_s
            done.append(Finished(completion.job_id, latency_s))
        return done

    def wait(self) -> None:
        """Wait without the GIL."""
        self._engine.drain()

    def facts(self) -> dict[str, object]:
        """Return what records say about this arm."""
        stats = self._engine.stats()
        direct = stats["direct_fallbacks"] == 0 and pagecache.takes_o_direct(self._root)
        return {
            "engine": self._backend,
            "io_engine": self._engine.io_engine,
            "o_direct": direct,
            "engine_stats": stats,
        }

    def close(self) -> None:
        """End the engine's threads."""
        self._engine.close()


def make(root: Path, view: memoryview, threads: int, io: str, checksum: str) -> KvfsDriver:
    """Return kvfs's engine with its threads started.

    Raises:
        DriverError: The extension is missing where it is wanted, or active where it is not.
        OSError: The engine refuses the back end on this machine.
        ValueError: The configuration refuses it.
    """
    return KvfsDriver(root, view, threads, io, checksum)


def _require_backend(wanted: str) -> str:
    active, reason = backend.describe()
    if active != wanted:
        raise DriverError(f"the {wanted} is wanted, but kvfs's {active} is active: {reason}")
    return active
