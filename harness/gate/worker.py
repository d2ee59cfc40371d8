"""Serve bursts of one wheel: imports and engines once, then one burst a request.

`main([DIRECTORY])` reads requests from standard input, one JSON line each, and answers each with one. The
`kvfs` that it measures is the first on its path; all else is the harness of the tree that runs the gate.
"""

import ctypes
import dataclasses
import gc
import hashlib
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.errors import HarnessError
from harness.gate.cases import Burst, Case
from harness.micro import chunks, directories, pagecache
from harness.micro.cases import LOAD, LOOKUP, STORE
from harness.micro.channel import Channel, read_line
from harness.micro.requests import READY, WorkerError
from kvfs import backend
from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.jobs import CompletionLike
from kvfs.paths import Namespace

_CONTENT_SEED: Final = 1
_THREADS: Final = 1
_KEYS_PER_JOB: Final = 64
# Few directories, that are there before the clock runs: making them is no part of what is compared.
_LEAVES: Final = 8
_NO_LIMIT_BYTES: Final = 1 << 62
_SCAN_TIMEOUT_S: Final = 60.0
_DRAIN_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.001
# The engine's threads go back to sleep, which is CPU time of the burst.
_SETTLE_S: Final = 0.002
# Of the stored files so many are read back in each burst; all are counted.
_FILES_READ_BACK: Final = 4
_ENOENT: Final = 2
# Of each operation the call that every chunk makes once, which `gate -- --slowdown` slows down; a store makes
# one of two, depending on the file system.
_SLOWED_CALLS: Final = {
    LOAD: ("openat",),
    STORE: ("openat_nameless", "openat_create"),
    LOOKUP: ("fstatat",),
}


def key_of(kind: int, number: int) -> bytes:
    """Return a key whose directory is one of few."""
    digest = hashlib.sha256(f"{kind}/{number}".encode()).digest()
    return bytes((number % _LEAVES, 0, 0)) + digest[3:] + bytes(4)


class Bench:
    """One engine on a directory of its own, for one operation.

    Args:
        root: A directory that does not exist.
        case: What it does.
    """

    def __init__(self, root: Path, case: Case) -> None:
        root.mkdir(parents=True)
        self._case = case
        self._content = chunks.Content(case.chunk_bytes, _CONTENT_SEED)
        self._buffer = chunks.PrimaryBuffer(case.chunks, self._content, case.chunk_bytes)
        self._keeps_names = directories.keeps_names(root)
        self._base_path = (namespace := Namespace(str(root), chunks.FIELDS)).base_path
        options: dict[str, object] = {
            "root_dir": str(root),
            "n_read_threads": _THREADS,
            "n_write_threads": _THREADS,
            "max_queued_store_bytes": _NO_LIMIT_BYTES,
        }
        self._engine = ChunkEngine(namespace, self._buffer.view, TierConfig.from_options(options))
        self._stored = 0
        self._buffer.reset(0)
        self._await_scan()
        self._keys = self._new_keys()
        self._run_jobs(STORE, self._keys)
        self._paths = [chunks.path_of(self._base_path, key) for key in self._keys]
        pagecache.drop(self._paths)
        self._absent = self._new_keys()

    @property
    def io_engine(self) -> str:
        """How the engine loads."""
        return self._engine.io_engine

    def _await_scan(self) -> None:
        deadline = time.monotonic() + _SCAN_TIMEOUT_S
        while not self._engine.stats()["scan_complete"]:
            if time.monotonic() > deadline:
                raise WorkerError(f"kvfs has not read {self._base_path} within {_SCAN_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _new_keys(self) -> list[bytes]:
        """Return keys that nothing was stored under."""
        first = self._stored
        self._stored += self._case.chunks
        return [key_of(0, number) for number in range(first, self._stored)]

    def _run_jobs(self, op: str, keys: Sequence[bytes]) -> list[CompletionLike]:
        """Do all of an operation at once, in jobs; return what became of them. Blocks."""
        engine = self._engine
        jobs = range(0, len(keys), _KEYS_PER_JOB)
        for first in jobs:
            some = keys[first : first + _KEYS_PER_JOB]
            if op == LOOKUP:
                engine.submit_lookup(first, some)
            else:
                submit = engine.submit_store if op == STORE else engine.submit_load
                submit(first, some, range(first, first + len(some)))
        if not engine.drain(_DRAIN_TIMEOUT_S):
            raise WorkerError(f"{op}: jobs have not ended within {_DRAIN_TIMEOUT_S:.0f} s")
        done = sorted(engine.poll(), key=lambda completion: completion.job_id)
        if [completion.job_id for completion in done] != list(jobs):
            raise WorkerError(f"{op}: {len(jobs)} jobs were submitted, {len(done)} reported")
        return done

    def burst(self) -> Burst:
        """Do one burst, and prove that it did what it says. Blocks.

        Raises:
            WorkerError: It did something else.
        """
        case = self._case
        keys = self._keys
        if case.op == STORE:
            keys = self._new_keys()
        elif case.op == LOOKUP:
            keys = [key for pair in zip(self._keys, self._absent, strict=True) for key in pair] * case.rounds
        else:
            self._buffer.blank(case.chunks)
        gc.collect()
        device = pagecache.storage_bytes()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        done = self._run_jobs(case.op, keys)
        wall_s = time.perf_counter() - wall_s
        time.sleep(_SETTLE_S)
        cpu_s = time.process_time() - cpu_s
        after = pagecache.storage_bytes()
        outcomes = [outcome for completion in done for outcome in completion.outcomes]
        moved_bytes = sum(completion.bytes_moved for completion in done)
        checked = self._check(keys, outcomes)
        device_bytes = after.read - device.read + after.written - device.written
        return Burst(wall_s, cpu_s, len(outcomes), moved_bytes, checked, device_bytes)

    def _check(self, keys: Sequence[bytes], outcomes: Sequence[int]) -> int:
        """Return how many chunks were compared.

        Raises:
            WorkerError: One is wrong.
        """
        op, name = self._case.op, self._case.name
        expected = [0, _ENOENT] * (len(keys) // 2) if op == LOOKUP else [0] * len(keys)
        if list(outcomes) != expected:
            pairs = zip(outcomes, expected, strict=False)
            wrong = sum(outcome != right for outcome, right in pairs) + abs(len(outcomes) - len(expected))
            raise WorkerError(f"{name}: {wrong} of {len(expected)} outcomes are wrong")
        if op == LOOKUP:
            return len(keys)
        if op == LOAD:
            wrong_rows = self._buffer.wrong_rows((row, row) for row in range(len(keys)))
            if wrong_rows:
                raise WorkerError(f"{name}: {len(wrong_rows)} of {len(keys)} chunks hold wrong bytes")
            return len(keys)
        files = [(chunks.path_of(self._base_path, key), row) for row, key in enumerate(keys)]
        some = files[:: max(1, len(files) // _FILES_READ_BACK)]
        missing = [path for path, _ in files if path.stat().st_size != self._case.chunk_bytes]
        wrong_files = chunks.wrong_files(self._content, some)
        if missing or wrong_files:
            raise WorkerError(
                f"{name}: {len(missing)} files have another size, {len(wrong_files)} wrong bytes"
            )
        self._discard([path for path, _ in files])
        return len(some)

    def _discard(self, paths: Sequence[Path]) -> None:
        if self._keeps_names:
            directories.empty(paths)
        else:
            for path in paths:
                path.unlink()

    def page_cache(self) -> float:
        """Return how much of the files that are loaded lies in the page cache, 0 to 1."""
        return pagecache.resident_bytes(self._paths) / (self._case.chunk_bytes * self._case.chunks)

    def close(self) -> None:
        """End the engine's threads."""
        self._engine.close()


class Slowness:
    """The switch of a build with faults: so much computing before the one call that each chunk makes."""

    def __init__(self) -> None:
        import kvfs_ext  # noqa: PLC0415  the wheel that is measured may have none

        library = ctypes.CDLL(kvfs_ext.__file__)
        try:
            self._add = library.kvfs_faults_add
        except AttributeError:
            raise WorkerError(
                "this wheel has no switch to slow it down: it was built without faults"
            ) from None
        numbers = (ctypes.c_uint64, ctypes.c_uint64)
        self._add.argtypes = [ctypes.c_char_p, *numbers, ctypes.c_char_p, ctypes.c_int, *numbers]
        self._reset, self._pause = library.kvfs_faults_reset, library.kvfs_faults_pause

    def set(self, op: str, delay_ns: int) -> None:
        """Slow each chunk of an operation down, and no other one."""
        self._reset()
        self._pause(0)
        for call in _SLOWED_CALLS[op]:
            if not self._add(call.encode(), 0, 0, b"spin", 0, 0, delay_ns):
                raise WorkerError("this wheel's switch cannot slow it down: it is older than the gate")


class Server:
    """Answers requests with the engines that they need."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._benches: dict[Case, Bench] = {}
        self._slowness: Slowness | None = None

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Do what a request says: `do` is "open", "burst", "slow" or "close", `case` which bench is meant."""
        case = Case(**request["case"])  # type: ignore[arg-type]  # our own line
        if request["do"] == "open":
            bench = self._benches[case] = Bench(self._root / case.name.replace(" ", "-"), case)
            # Every thread, buffer and directory has been used once.
            bench.burst()
            name, reason = backend.describe()
            place = str(Path(backend.__file__).parents[1])
            return {"io_engine": bench.io_engine, "backend": name, "reason": reason, "kvfs": place}
        if request["do"] == "slow":
            self._slowness = self._slowness or Slowness()
            self._slowness.set(case.op, int(str(request["delay_ns"])))
            return {}
        if request["do"] == "close":
            bench = self._benches.pop(case)
            resident = bench.page_cache()
            bench.close()
            return {"resident": resident}
        return dataclasses.asdict(self._benches[case].burst())


def main(arguments: list[str]) -> int:
    """Serve until standard input ends."""
    channel = Channel()
    server = Server(Path(arguments[0]))
    gc.freeze()
    channel.say_status(READY)
    while line := read_line():
        try:
            answer = server.answer(json.loads(line))
        except (HarnessError, OSError, ValueError, TypeError) as error:
            traceback.print_exc()
            channel.say_error(f"{error}")
        else:
            channel.say(json.dumps(answer).encode() + b"\n")
    return 0
