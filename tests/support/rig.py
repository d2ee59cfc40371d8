"""An engine with its primary tier, as behaviour tests use it: submit, wait, look at the outcomes."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from kvfs.jobs import CompletionLike, IoBackend

# Nothing here takes longer; what does has hung.
DRAIN_TIMEOUT_S = 60.0


def content(seed: int, size_bytes: int) -> bytes:
    """Return bytes that depend on the seed alone."""
    return random.Random(seed).randbytes(size_bytes)


class Tier:
    """A primary tier in anonymous memory: page-aligned, or off by `offset_bytes`."""

    def __init__(self, num_chunks: int, chunk_size_bytes: int, offset_bytes: int = 0) -> None:
        self.num_chunks = num_chunks
        self.chunk_size_bytes = chunk_size_bytes
        size_bytes = num_chunks * chunk_size_bytes
        self.memory = mmap.mmap(-1, size_bytes + offset_bytes)
        self._flat = memoryview(self.memory)[offset_bytes : offset_bytes + size_bytes]
        self.view = self._flat.cast("B", (num_chunks, chunk_size_bytes))

    def row(self, chunk_id: int) -> bytes:
        start = chunk_id * self.chunk_size_bytes
        return bytes(self._flat[start : start + self.chunk_size_bytes])

    def fill(self, chunk_id: int, seed: int) -> bytes:
        """Fill a row with the seed's content and return it."""
        data = content(seed, self.chunk_size_bytes)
        start = chunk_id * self.chunk_size_bytes
        self._flat[start : start + self.chunk_size_bytes] = data
        return data


class EngineOptions(TypedDict, total=False):
    """What an engine can be given beside its threads and `use_o_direct`."""

    io_engine: str
    max_inflight_read_bytes: int
    max_inflight_write_bytes: int
    max_queued_store_bytes: int | None
    index_mode: str
    negative_ttl_s: float
    checksum: str
    file_mode: int
    dir_mode: int
    capacity_bytes: int | None
    min_free_bytes: int | None
    space_root: str | None


class Rig:
    """An engine on a namespace, with its primary tier."""

    def __init__(
        self,
        io: IoBackend,
        base: Path,
        *,
        num_chunks: int = 8,
        chunk_size_bytes: int = 4096,
        threads: tuple[int, int] = (2, 2),
        use_o_direct: bool = True,
        offset_bytes: int = 0,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.base = base
        self.tier = Tier(num_chunks, chunk_size_bytes, offset_bytes)
        self.engine = io.Engine(str(base), self.tier.view, threads[0], threads[1], use_o_direct, **options)
        self._next_job_id = 0

    @staticmethod
    def key(number: int, hash_size_bytes: int = 32, group: int = 0) -> bytes:
        return content(number, hash_size_bytes) + group.to_bytes(4, "big")

    def path(self, key: bytes) -> Path:
        """Return the path that docs/engine.md gives a key."""
        digits = key[:-4].hex()
        group = int.from_bytes(key[-4:], "big")
        return self.base / digits[0:3] / f"{digits[3:5]}_g{group}" / f"{digits}.bin"

    def files(self) -> list[Path]:
        """Return all files of the namespace but the engine's own three."""
        own = {self.base / name for name in ("kvfs.lock", "kvfs.index", "kvfs.space")}
        return sorted(path for path in self.base.rglob("*") if path.is_file() and path not in own)

    def submit(self, kind: str, keys: Sequence[bytes], chunk_ids: Sequence[int] = ()) -> int:
        """Submit a job of equally long keys and return its id."""
        job_id = self._next_job_id
        self._next_job_id += 1
        packed, key_size_bytes = b"".join(keys), len(keys[0]) if keys else 36
        if kind == "lookup":
            self.engine.submit_lookup(job_id, packed, key_size_bytes)
        elif kind == "load":
            self.engine.submit_load(job_id, packed, key_size_bytes, list(chunk_ids))
        else:
            self.engine.submit_store(job_id, packed, key_size_bytes, list(chunk_ids))
        return job_id

    def finish(self) -> dict[int, CompletionLike]:
        """Wait for all jobs and return their completions, which no job may have twice."""
        assert self.engine.drain(DRAIN_TIMEOUT_S)
        completions = self.engine.poll()
        by_id = {completion.job_id: completion for completion in completions}
        assert len(by_id) == len(completions)
        return by_id

    def ask(self, keys: Sequence[bytes]) -> None:
        """Ask the disk about keys and wait for the answers."""
        for key in keys:
            self.engine.probe(key)
        self.engine.submit_probes()
        assert self.engine.drain(DRAIN_TIMEOUT_S)

    def verdicts(self, keys: Sequence[bytes]) -> list[int]:
        return [self.engine.lookup(key) for key in keys]

    def await_stats(self, **expected: int) -> bool:
        """Poll until `stats()` says what is expected; False when it does not within the bound."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            stats = self.engine.stats()
            if all(stats[name] == value for name, value in expected.items()):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)

    def place(self, key: bytes) -> Path:
        """Put a chunk on disk without the engine's knowledge, and return its path."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(self.tier.chunk_size_bytes))
        return path

    def _run(self, kind: str, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        job_id = self.submit(kind, keys, chunk_ids)
        completions = self.finish()
        assert list(completions) == [job_id]
        assert completions[job_id].kind == kind
        assert len(completions[job_id].outcomes) == len(keys)
        return completions[job_id]

    def store(self, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        return self._run("store", keys, chunk_ids)

    def load(self, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        return self._run("load", keys, chunk_ids)

    def lookup(self, keys: Sequence[bytes]) -> CompletionLike:
        return self._run("lookup", keys, ())
