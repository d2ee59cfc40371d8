"""One job of the Python engine: what was asked, how far its ops are, and what became of each key."""

from __future__ import annotations

import time

from kvfs.jobs import SUCCESS, Completion


class Job:
    """One job's bookkeeping; the caller holds the engine's lock."""

    __slots__ = (
        "accepted_at",
        "bytes_moved",
        "chunk_ids",
        "claimable_ops",
        "detail",
        "failed_op",
        "first_use",
        "job_id",
        "key_size_bytes",
        "keys",
        "kind",
        "next_op",
        "outcomes",
        "started_at",
        "turn_ops",
        "unfinished",
    )

    def __init__(
        self, job_id: int, kind: str, keys: bytes, key_size_bytes: int, chunk_ids: list[int]
    ) -> None:
        self.job_id = job_id
        self.kind = kind
        self.keys = keys
        self.key_size_bytes = key_size_bytes
        self.chunk_ids = chunk_ids
        self.outcomes = [SUCCESS] * (len(keys) // key_size_bytes)
        self.unfinished = len(self.outcomes)
        # The queue's: the first op that nobody has claimed, the end of those that can be, and how many were
        # claimed since the job last made room for another.
        self.next_op = 0
        self.claimable_ops = 0
        self.turn_ops = 0
        # The first key's, see KeyIndex.take_uses.
        self.first_use = 0
        self.bytes_moved = 0
        self.accepted_at = time.monotonic()
        self.started_at: float | None = None
        self.failed_op = len(self.outcomes)
        self.detail = ""

    def key(self, op: int) -> bytes:
        """Return the key of an op."""
        return self.keys[op * self.key_size_bytes : (op + 1) * self.key_size_bytes]

    def finish_op(self, op: int, outcome: int, problem: str, bytes_moved: int) -> None:
        """Record an op's end; `problem` continues the sentence "load failed for chunk 1 of 3"."""
        self.outcomes[op] = outcome
        self.bytes_moved += bytes_moved
        self.unfinished -= 1
        # That a chunk is absent is a lookup's answer, not its failure.
        if outcome != SUCCESS and op < self.failed_op and self.kind != "lookup":
            self.failed_op = op
            self.detail = f"{self.kind} failed for chunk {op + 1} of {len(self.outcomes)} {problem}"

    def completion(self) -> Completion:
        """Return what became of the job, which ends now."""
        ended_at = time.monotonic()
        started_at = ended_at if self.started_at is None else self.started_at
        return Completion(
            job_id=self.job_id,
            kind=self.kind,
            outcomes=self.outcomes,
            bytes_moved=self.bytes_moved,
            queue_s=started_at - self.accepted_at,
            transfer_s=ended_at - started_at,
            detail=self.detail,
        )
