"""Questions of scale, a process per run: kvfs's start over many files, and a very large index."""

import importlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np

from harness.micro import chunks
from harness.micro.drivers import DriverError
from harness.micro.lookup_cases import CHUNK_BYTES
from harness.micro.lookup_driver import Tier, ask, base_path_of
from harness.micro.lookup_requests import LookupAnswer, LookupRequest
from harness.micro.victim import Victim
from kvfs.jobs import HIT

# What kvfs leaves behind when it is closed, so that the next start need not scan.
SNAPSHOT_NAME: Final = "kvfs.index"

_FILE_SEED: Final = 3
_MAKING_THREADS: Final = 8
_POLL_S: Final = 0.0005
_TIMEOUT_S: Final = 120.0
_CHECKED_KEYS: Final = 2000

_KEY_BYTES: Final = 36
_BLOCK_KEYS: Final = 100_000
_SAMPLED_BLOCKS: Final = 8
_SYNTHETIC_SEED: Final = 4
_ABSENT_SEED: Final = 5
# Calls of a prefix that ends at its first key.
_PREFIX_KEYS: Final = 512


def make_files(base_path: Path, count: int) -> None:
    """Make files of a chunk's size for `count` keys. They have no content: a scan reads none. Blocks."""

    def make(numbers: range) -> None:
        for number in numbers:
            path = chunks.path_of(str(base_path), chunks.key_of.__wrapped__(_FILE_SEED, number))
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                os.ftruncate(descriptor, CHUNK_BYTES)
            finally:
                os.close(descriptor)

    with ThreadPoolExecutor(_MAKING_THREADS) as pool:
        # Taking the results raises what a thread raised.
        list(pool.map(make, (range(first, count, _MAKING_THREADS) for first in range(_MAKING_THREADS))))


class _Start:
    """A tier that starts over the files, and what it takes until it knows them."""

    def __init__(self, request: LookupRequest) -> None:
        self._request = request
        buffer = chunks.PrimaryBuffer(1, chunks.Content(CHUNK_BYTES, _FILE_SEED), CHUNK_BYTES)
        self._started_s = time.perf_counter()
        self.tier = Tier(request.root, buffer.view, request.tier, request.mode, request.io)
        self.startup_ms = (time.perf_counter() - self._started_s) * 1e3

    def await_that(self, holds: Callable[[dict[str, int]], bool]) -> float:
        """Return the seconds from before the construction until the engine's counts are so.

        Raises:
            DriverError: That takes too long.
        """
        while not holds(stats := self.tier.stats()):
            if time.perf_counter() - self._started_s > _TIMEOUT_S:
                raise DriverError(f"the index was not filled within {_TIMEOUT_S:.0f} s: {stats}")
            time.sleep(_POLL_S)
        return time.perf_counter() - self._started_s

    def check(self) -> dict[str, int]:
        """Prove that the index has every file, by its count and by asking for some; return the counts.

        Raises:
            DriverError: It has not.
        """
        stats = self.tier.stats()
        files = self._request.files
        numbers = range(0, files, max(1, files // _CHECKED_KEYS))
        asked = ask(self.tier.manager, [chunks.key_of(_FILE_SEED, number) for number in numbers], "check")
        if stats["index_keys"] != files or asked.missing is not None or asked.retry_steps:
            raise DriverError(
                f"{files} files are there, {stats['index_keys']} in the index; of {len(numbers)} that were "
                f"asked for {'some were' if asked.missing else 'none was'} missing, after "
                f"{asked.retry_steps} steps with a RETRY"
            )
        return stats


def start(request: LookupRequest) -> LookupAnswer:
    """Start without a snapshot: how long the constructor takes, then the scan, then the memory."""
    _snapshot_of(request).unlink(missing_ok=True)
    started = _Start(request)
    try:
        scan_s = started.await_that(lambda stats: bool(stats["scan_complete"]))
        stats = started.check()
        return LookupAnswer(
            {
                "startup_ms": [round(started.startup_ms, 4)],
                "scan_files_per_s": [round(stats["scanned_files"] / scan_s, 1)],
                "index_bytes_per_key": [round(stats["index_bytes"] / stats["index_keys"], 3)],
            },
            started.tier.facts(),
        )
    finally:
        started.tier.close()


def gaps(request: LookupRequest) -> LookupAnswer:
    """Let a Python thread tick while the scan runs, then beside the same engine at rest."""
    _snapshot_of(request).unlink(missing_ok=True)
    started = _Start(request)
    try:
        victim = Victim()
        victim.start()
        started.await_that(lambda stats: bool(stats["scan_complete"]))
        busy_s = victim.stop()
        started.check()
        victim = Victim()
        victim.start()
        time.sleep(request.victim_s)
        idle_s = victim.stop()
        return LookupAnswer(
            {
                "victim_gap_us": [round(gap * 1e6) for gap in busy_s],
                "victim_gap_idle_us": [round(gap * 1e6) for gap in idle_s],
            },
            started.tier.facts(),
        )
    finally:
        started.tier.close()


def restart(request: LookupRequest) -> LookupAnswer:
    """Start from the snapshot that the run before has left: how long until every key is a hit."""
    snapshot = _snapshot_of(request)
    if not snapshot.exists():
        raise DriverError(f"the last run left no {snapshot.name} when it closed its tier")
    snapshot_bytes = snapshot.stat().st_size
    started = _Start(request)
    try:
        hits_s = started.await_that(lambda stats: stats["index_keys"] >= request.files)
        started.check()
        facts = started.tier.facts() | {"snapshot_bytes": snapshot_bytes}
        return LookupAnswer({"restart_ms": [round(hits_s * 1e3, 4)]}, facts)
    finally:
        started.tier.close()


def _snapshot_of(request: LookupRequest) -> Path:
    return Path(base_path_of(request.root), SNAPSHOT_NAME)


class _KeyIndex(Protocol):
    """`kvfs_ext.KeyIndex`: the index without an engine."""

    @property
    def memory_bytes(self) -> int: ...
    def insert(self, keys: bytes, key_size_bytes: int) -> None: ...
    def lookup(self, key: bytes) -> int: ...
    def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int: ...
    def __len__(self) -> int: ...


def index(request: LookupRequest) -> LookupAnswer:
    """Fill an index with synthetic keys and ask it, one thread: what it takes at that size.

    The clock of the questions is the thread's CPU time; Python's loop around `lookup` is in it.
    """
    key_index = cast("_KeyIndex", importlib.import_module("kvfs_ext").KeyIndex(negative_ttl_s=1.0))
    insert_s = most_bytes_per_key = 0.0
    for number in range(_blocks(request.keys)):
        packed = _block(_SYNTHETIC_SEED, number, request.keys)
        started_s = time.perf_counter()
        key_index.insert(packed, _KEY_BYTES)
        insert_s += time.perf_counter() - started_s
        # While it is small, its fixed part is most of it.
        if 10 * len(key_index) >= request.keys:
            most_bytes_per_key = max(most_bytes_per_key, key_index.memory_bytes / len(key_index))
    if len(key_index) != request.keys:
        raise DriverError(f"{request.keys} keys were inserted, the index says {len(key_index)}")
    absent = _block(_ABSENT_SEED, 0, _BLOCK_KEYS)
    metrics = {
        "insert_keys_per_s": request.keys / insert_s,
        "index_bytes_per_key": key_index.memory_bytes / len(key_index),
        "index_bytes_per_key_max": most_bytes_per_key,
        "lookup_hit_ns": _lookup_ns(key_index, _split(b"".join(_sampled(request.keys, 0))), hits=True),
        "lookup_miss_ns": _lookup_ns(key_index, _split(absent), hits=False),
        "prefix_hit_ns_per_key": _prefix_hit_ns(key_index, _sampled(request.keys, 1)),
        "prefix_miss_ns": _prefix_miss_ns(key_index, absent),
    }
    return LookupAnswer(
        {name: [round(value, 3)] for name, value in metrics.items()},
        {"engine": "extension", "key_bytes": _KEY_BYTES, "memory_bytes": key_index.memory_bytes},
    )


def _blocks(keys: int) -> int:
    return -(-keys // _BLOCK_KEYS)


def _block(seed: int, number: int, keys: int) -> bytes:
    """Return the packed keys of a block; the last one of `keys` may be shorter."""
    count = min(_BLOCK_KEYS, keys - number * _BLOCK_KEYS)
    return np.random.Generator(np.random.SFC64([seed, number])).bytes(count * _KEY_BYTES)


def _sampled(keys: int, offset: int) -> list[bytes]:
    """Return some blocks; another offset gives others, where there are more than a few."""
    count = _blocks(keys)
    step = max(1, count // _SAMPLED_BLOCKS)
    return [_block(_SYNTHETIC_SEED, number, keys) for number in range(offset % step, count, step)]


def _split(packed: bytes) -> list[bytes]:
    return [packed[first : first + _KEY_BYTES] for first in range(0, len(packed), _KEY_BYTES)]


def _lookup_ns(key_index: _KeyIndex, keys: Sequence[bytes], *, hits: bool) -> float:
    lookup = key_index.lookup
    started_ns = time.thread_time_ns()
    for key in keys:
        lookup(key)
    used_ns = time.thread_time_ns() - started_ns
    wrong = sum((lookup(key) == HIT) is not hits for key in keys)
    if wrong:
        raise DriverError(f"{wrong} of {len(keys)} keys: the index is wrong about whether they are there")
    return used_ns / len(keys)


def _prefix_hit_ns(key_index: _KeyIndex, blocks: Sequence[bytes]) -> float:
    started_ns = time.thread_time_ns()
    found = sum(key_index.lookup_prefix(block, _KEY_BYTES) for block in blocks)
    used_ns = time.thread_time_ns() - started_ns
    expected = sum(len(block) for block in blocks) // _KEY_BYTES
    if found != expected:
        raise DriverError(f"{expected} keys are in the index, their prefixes have {found}")
    return used_ns / found


def _prefix_miss_ns(key_index: _KeyIndex, absent: bytes) -> float:
    size_bytes = _PREFIX_KEYS * _KEY_BYTES
    prompts = [absent[first : first + size_bytes] for first in range(0, len(absent), size_bytes)]
    started_ns = time.thread_time_ns()
    found = sum(key_index.lookup_prefix(prompt, _KEY_BYTES) for prompt in prompts)
    used_ns = time.thread_time_ns() - started_ns
    if found:
        raise DriverError(f"{found} keys that were never inserted are in the index")
    return used_ns / len(prompts)
