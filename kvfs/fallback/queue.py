"""Which op runs next: lookups, loads and stores that wait, and what of them may be in flight at once."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvfs.fallback.job import Job

# What a job gets before the next one has its turn. Shorter jobs run one after the other, which ends the
# first of them sooner than if all took turns.
_TURN_BYTES: Final = 32 << 20
_TURN_OPS: Final = 16
# Each load or store in flight has a file open, and processes often may have no more than 1024.
_INFLIGHT_OPS_MAX: Final = 256
# Part of the write budget and of the threads that stores keep beside loads.
_SHARE_BESIDE_LOADS: Final = 8
# One thread in so many is kept from stores, which may all hang in a slow file system.
_THREADS_PER_RESERVED: Final = 4


@dataclass(frozen=True, slots=True)
class ByteLimits:
    """What may be in flight and what may wait, in bytes; the engine's arguments of the same names.

    One chunk always may, however large. None lets any number of stores wait.
    """

    max_inflight_read_bytes: int
    max_inflight_write_bytes: int
    max_queued_store_bytes: int | None


class JobQueue:
    """Jobs that wait, with the rules of docs/engine.md, "What runs next".

    Not thread-safe: the caller holds the engine's lock. No call blocks.
    """

    def __init__(self, limits: ByteLimits, chunk_size_bytes: int, n_threads: int) -> None:
        def chunks(size_bytes: int) -> int:
            return max(1, size_bytes // chunk_size_bytes)

        # Threads, one an op, bound these, too.
        queued = limits.max_queued_store_bytes
        stores = min(_INFLIGHT_OPS_MAX, chunks(limits.max_inflight_write_bytes))
        self._loads_max = min(_INFLIGHT_OPS_MAX, chunks(limits.max_inflight_read_bytes))
        self._stores_max = min(stores, n_threads - n_threads // _THREADS_PER_RESERVED)
        # Few, so that a load finds a disk that is nearly idle, and never none, so that stores go on.
        share = min(stores // _SHARE_BESIDE_LOADS, n_threads // _SHARE_BESIDE_LOADS)
        self._stores_beside_loads_max = max(1, share)
        self._queued_stores_max = sys.maxsize if queued is None else chunks(queued)
        self._turn_ops_max = max(_TURN_OPS, chunks(_TURN_BYTES))
        self._queues: dict[str, deque[Job]] = {kind: deque() for kind in ("lookup", "load", "store")}
        self._queued_stores = 0
        self._in_flight = dict.fromkeys(self._queues, 0)
        # The most ops of each kind that were in flight at once.
        self.peaks = dict.fromkeys(self._queues, 0)

    def push(self, job: Job) -> int:
        """Take a job in and return how many of its ops, counted from the first, have room.

        The others are shed and will never be claimed.
        """
        accepted = len(job.outcomes)
        if job.kind == "store":
            accepted = min(accepted, self._queued_stores_max - self._queued_stores)
            self._queued_stores += accepted
        job.claimable_ops = accepted
        if accepted:
            self._queues[job.kind].append(job)
        return accepted

    def next_kind(self) -> str | None:
        """Return the kind of the op that is to run next; None when none waits or budgets are used up."""
        loads, stores = self._in_flight["load"], self._in_flight["store"]
        if self._queues["lookup"]:
            return "lookup"
        if self._queues["load"] and loads < self._loads_max and (stores or not self._queues["store"]):
            return "load"
        beside_loads = loads or self._queues["load"]
        stores_max = self._stores_beside_loads_max if beside_loads else self._stores_max
        return "store" if self._queues["store"] and stores < stores_max else None

    def claim(self, kind: str) -> tuple[Job, int]:
        """Take the next op of a kind, which `next_kind` named."""
        queue = self._queues[kind]
        job = queue[0]
        op = job.next_op
        job.next_op += 1
        job.turn_ops += 1
        if job.next_op == job.claimable_ops:
            queue.popleft()
        elif job.turn_ops >= self._turn_ops_max:
            job.turn_ops = 0
            queue.rotate(-1)
        if kind == "store":
            self._queued_stores -= 1
        self._in_flight[kind] += 1
        self.peaks[kind] = max(self.peaks[kind], self._in_flight[kind])
        return job, op

    def release(self, kind: str) -> None:
        """Give back the room of an op that was claimed and has ended."""
        self._in_flight[kind] -= 1

    def take_all(self) -> Iterator[tuple[Job, int]]:
        """Take out every op that nobody has claimed."""
        self._queued_stores = 0
        for queue in self._queues.values():
            while queue:
                job = queue.popleft()
                for op in range(job.next_op, job.claimable_ops):
                    yield job, op
