"""One process of the soak: it stores, loads and looks up without end, checks every byte, and reports."""

import errno
import json
import mmap
import os
import random
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from harness.soak.chunks import KEY_SIZE_BYTES, content_of, key_of
from kvfs import backend
from kvfs.jobs import HIT, CompletionLike

_ROWS: Final = 32
_JOBS_MAX: Final = 4
_ROWS_A_JOB: Final = _ROWS // _JOBS_MAX
_REPORT_PERIOD_S: Final = 0.5
_WAIT_S: Final = 0.002
_LATENCIES_MAX: Final = 4000
_SETTLE_TIMEOUT_S: Final = 60.0
# Popular keys come more often: that is the power of a number from 0 to 1.
_SKEW: Final = 4.0
# Of prompts of which a part is there.
_LOADS_SHARE: Final = 0.5
_STATS: Final = (
    "evicted_chunks",
    "damaged_chunks",
    "removed_files",
    "reclaimed_temporaries",
    "capacity_sheds",
)


@dataclass(frozen=True)
class Job:
    """What a worker is told.

    Attributes:
        base: The namespace's directory.
        root: What the capacity is for.
        capacity_bytes: The capacity.
        chunk_size_bytes: Size of a chunk.
        keys: How many different keys there are.
        seed: Of what it does.
        verify: Load what is there once, and end.
    """

    base: str
    root: str
    capacity_bytes: int
    chunk_size_bytes: int
    keys: int
    seed: int
    verify: bool = False

    def line(self) -> str:
        """Return it as an argument of the worker's command line."""
        return json.dumps(asdict(self))


def main(arguments: Sequence[str]) -> int:
    """Work on the job that the argument is until standard input says stop, or ends."""
    worker = _Worker(Job(**json.loads(arguments[0])))
    if worker.job.verify:
        worker.verify()
    else:
        worker.run()
    return 0


class _Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        self._random = random.Random(job.seed)
        self._flat = memoryview(mmap.mmap(-1, _ROWS * job.chunk_size_bytes))
        self._engine = backend.load().Engine(
            job.base,
            self._flat.cast("B", (_ROWS, job.chunk_size_bytes)),
            2,
            2,
            True,
            capacity_bytes=job.capacity_bytes,
            space_root=job.root,
        )
        self._jobs: dict[int, tuple[list[bytes], int, bool]] = {}
        self._free = list(range(0, _ROWS, _ROWS_A_JOB))
        self._next_id = 0
        self._counts: Counter[str] = Counter()
        self._latencies: dict[str, list[float]] = {"store": [], "load": []}
        self._damaged: list[str] = []
        self._ordered: list[bytes] = []
        self._input = b""

    def run(self) -> None:
        """Work until told to stop."""
        report_at = 0.0
        while self._read_orders():
            if self._free:
                self._submit()
            self._engine.drain(_WAIT_S)
            for done in self._engine.poll():
                self._take(done)
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + _REPORT_PERIOD_S
                self._report()
            time.sleep(_WAIT_S)
        self._engine.close()
        self._report()

    def verify(self) -> None:
        """Load all that is there, and report."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            stats = self._engine.stats()
            if stats["scan_complete"] and stats["space_counted"]:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the scan of {self.job.base} does not end: {stats}")
            time.sleep(_WAIT_S)
        present = [key for key in map(key_of, range(self.job.keys)) if self._engine.lookup(key) == HIT]
        for first in range(0, len(present), _ROWS_A_JOB):
            self._begin("load", present[first : first + _ROWS_A_JOB])
            self._engine.drain()
            for done in self._engine.poll():
                self._take(done)
        self._engine.close()
        self._report()

    def _read_orders(self) -> bool:
        """Take keys that are to be loaded next; False when it is time to stop."""
        while select.select([0], [], [], 0)[0]:
            data = os.read(0, 65536)
            if not data:
                return False
            *lines, self._input = (self._input + data).split(b"\n")
            for line in lines:
                if line == b"stop":
                    return False
                self._ordered.append(bytes.fromhex(line.decode()))
        return True

    def _submit(self) -> None:
        if self._ordered:
            self._begin("load", [self._ordered.pop(0)], ordered=True)
            return
        count = self._random.randint(1, _ROWS_A_JOB)
        first = int(self._random.random() ** _SKEW * self.job.keys)
        keys = [key_of((first + i) % self.job.keys) for i in range(count)]
        present = [key for key in keys if self._engine.ask(key, time.monotonic()) == HIT]
        self._engine.submit_probes()
        self._counts["lookups"] += count
        if present:
            self._engine.touch(b"".join(present), KEY_SIZE_BYTES)
        if len(present) == count or (present and self._random.random() < _LOADS_SHARE):
            self._begin("load", present)
        else:
            self._begin("store", keys)

    def _begin(self, kind: str, keys: list[bytes], *, ordered: bool = False) -> None:
        row = self._free.pop()
        self._jobs[self._next_id] = (keys, row, ordered)
        rows = list(range(row, row + len(keys)))
        for key, each in zip(keys, self._rows(keys, row), strict=True):
            each[:] = content_of(key, len(each)) if kind == "store" else bytes(len(each))
        submit = self._engine.submit_store if kind == "store" else self._engine.submit_load
        submit(self._next_id, b"".join(keys), KEY_SIZE_BYTES, rows)
        self._next_id += 1

    def _rows(self, keys: list[bytes], row: int) -> Iterator[memoryview]:
        size = self.job.chunk_size_bytes
        for i in range(len(keys)):
            yield self._flat[(row + i) * size : (row + i + 1) * size]

    def _take(self, done: CompletionLike) -> None:
        keys, row, ordered = self._jobs.pop(done.job_id)
        self._free.append(row)
        latencies = self._latencies[done.kind]
        if len(latencies) < _LATENCIES_MAX:
            latencies.append((done.queue_s + done.transfer_s) * 1e3)
        for key, each, outcome in zip(keys, self._rows(keys, row), done.outcomes, strict=True):
            name = done.kind + "s"
            if outcome == 0 and done.kind == "load" and each != content_of(key, len(each)):
                name = "wrong"
            elif outcome == errno.EAGAIN and done.kind == "store":
                name = "sheds"
            elif outcome == errno.ENOENT and done.kind == "load":
                name = "gone"
            elif outcome == errno.EBADMSG and done.kind == "load":
                name = "damaged"
                self._damaged.append(key.hex())
            elif outcome != 0:
                name = "errors"
                print(done.detail, file=sys.stderr, flush=True)
            self._counts[name] += 1
            self._counts[f"ordered {name}"] += ordered

    def _report(self) -> None:
        """Print what there was until now; latencies (in ms) and damaged keys since the last report."""
        stats = self._engine.stats()
        self._take_evicted()
        counts: Mapping[str, int] = self._counts | {name: stats[name] for name in _STATS}
        report = {
            "pid": os.getpid(),
            "counts": counts,
            "latencies": self._latencies,
            "damaged": self._damaged,
        }
        print(json.dumps(report), flush=True)
        self._latencies = {kind: [] for kind in self._latencies}
        self._damaged = []

    def _take_evicted(self) -> None:
        """Take what vLLM's adapter takes, too, so that it does not pile up."""
        self._counts["taken evictions"] += len(self._engine.take_evicted())
