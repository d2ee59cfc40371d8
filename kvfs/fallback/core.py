"""The state and the threads of the Python engine: jobs, probes, and what is known of keys."""

from __future__ import annotations

import errno
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from kvfs.fallback import files
from kvfs.fallback.answers import answer
from kvfs.fallback.chunks import Chunks
from kvfs.fallback.evictor import Evictor
from kvfs.fallback.index import KeyIndex, State
from kvfs.fallback.job import Job
from kvfs.fallback.names import chunk_names
from kvfs.fallback.operations import Operations
from kvfs.fallback.ownership import Ownership
from kvfs.fallback.pause import StorePause
from kvfs.fallback.primary import PrimaryTier
from kvfs.fallback.probes import Checks, ProbeQueue, Question
from kvfs.fallback.queue import ByteLimits, JobQueue
from kvfs.fallback.scan import Scan
from kvfs.fallback.snapshot import clear_whole_mark
from kvfs.fallback.space import Space
from kvfs.jobs import EXPIRED, HIT, MISS, RETRY, SHED, SUCCESS, Completion

# For an engine that was dropped; the extension has the same.
_DROPPED_TIMEOUT_S: Final = 10.0
_COUNTED: Final = (
    "damaged_chunks",
    "direct_fallbacks",
    "duplicate_stores",
    "healed_files",
    "paused_stores",
    "removed_files",
    "shed_stores",
    "unverified_loads",
    "verified_loads",
)


class Core:
    """The engine's state and threads. Apart from `Engine`, so that the threads do not keep that one alive.

    It takes over what it is given, but not if it raises.

    Args:
        chunks: The namespace.
        ownership: Its place among the engines there.
        space: What it may store.
        primary: The primary tier.
        n_threads: Threads for jobs and probes.
        use_o_direct: Whether to try O_DIRECT.
        limits: What may be in flight and wait.
        negative_ttl_s: How long an absence is believed.

    Raises:
        OSError: There are too few threads.
    """

    def __init__(
        self,
        chunks: Chunks,
        ownership: Ownership,
        space: Space,
        primary: PrimaryTier,
        n_threads: int,
        use_o_direct: bool,
        limits: ByteLimits,
        negative_ttl_s: float,
    ) -> None:
        self._chunks = chunks
        self._ownership = ownership
        self._space = space
        self._primary = primary
        self._chunk_size_bytes = primary.chunk_size_bytes
        self._operations = Operations(chunks, primary, use_o_direct)
        self._owner_pid = os.getpid()
        clear_whole_mark(chunks.base_path)
        self._index = KeyIndex(negative_ttl_s)
        self._checks = Checks()
        # Not before the ownership is settled: what others store after the scan has to be noticed by that.
        self._scan = Scan(chunks.base_path, self._chunk_size_bytes, self._index, ownership)
        self._evictor = Evictor(chunks, self._chunk_size_bytes, self._index, space, self._scan.again)
        self._scan.on_removed = self._evictor.note_removed
        chunks.on_directory_made = space.made_directory
        self._pause = StorePause()
        self._lock = threading.Lock()  # guards all that follows, and the jobs
        self._work_available = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._queue = JobQueue(limits, self._chunk_size_bytes, n_threads)
        self._probes = ProbeQueue()
        self._completions: list[Completion] = []
        self._inflight_jobs = 0
        self._closed = False
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._closing = threading.Lock()  # held while joining: a second close() waits for the first
        self._threads = [
            threading.Thread(target=self._run, name=f"kvfs-io-{index}", daemon=True)
            for index in range(n_threads)
        ]
        self._threads.append(threading.Thread(target=self._scan.run, name="kvfs-scan", daemon=True))
        if space.enabled:
            self._threads.append(threading.Thread(target=self._evictor.run, name="kvfs-space", daemon=True))
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            # End those that run, then report; RuntimeError alone would hide what kind of failure it is.
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close(None)
            raise OSError(errno.EAGAIN, f"the system gave fewer threads than asked for: {error}") from error

    def submit(self, job_id: int, kind: str, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job and split it into ops."""
        self._check_process()
        job = Job(job_id, kind, keys, key_size_bytes, chunk_ids)
        job.first_use = self._index.take_uses(len(job.outcomes))
        paused = kind == "store" and bool(job.outcomes) and not self._pause.admits()
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed; make a new one to submit jobs")
            if not job.outcomes:
                self._completions.append(job.completion())
                return
            self._inflight_jobs += 1
            if kind == "load":
                for op in range(len(job.outcomes)):
                    self._index.begin_load(job.key(op), job.first_use - op)
            problem = "because the disk takes none now" if paused else "because the queue was full"
            for op in range(0 if paused else self._queue.push(job), len(job.outcomes)):
                self._counts["paused_stores" if paused else "shed_stores"] += 1
                self._finish_op(job, op, SHED, problem, files.OpReport())
            self._wake_up()

    def lookup(self, key: bytes, waiting_since_s: float = math.inf) -> int:
        """Return the verdict on a key; an absence found since then counts, however old it is."""
        self._check_process()
        # First: what the scan adds after we have looked would be missed.
        scanned = self._scan.complete
        entry = self._index.find(key)
        state = None if entry is None else entry.state
        if state is State.PRESENT:
            return HIT
        if state is State.ASKED:
            return RETRY
        if scanned and self._ownership.confirm():
            # The file of a load that failed may still be there, which says nothing about other writers.
            if state is not State.FORGOTTEN:
                self._checks.add(key)
            return MISS
        if entry is not None and state is State.ABSENT:
            return MISS if entry.at >= waiting_since_s or self._index.believes(entry) else EXPIRED
        return RETRY

    def ask(self, key: bytes, waiting_since_s: float) -> tuple[int, bool]:
        """Return the verdict on a key, and whether a question was collected because there is none."""
        verdict = self.lookup(key, waiting_since_s)
        return (verdict, False) if verdict in (MISS, HIT) else (RETRY, self.probe(key))

    def lookup_prefix(self, keys: Iterable[bytes]) -> int:
        """Count the hits before the first key that is none."""
        self._check_process()
        return self._index.count_present(keys)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that keys were used now."""
        self._check_process()
        self._index.touch(keys)

    def probe(self, key: bytes) -> bool:
        """Collect the question whether a chunk is there; False where that is known, or asked already."""
        self._check_process()
        with self._lock:
            entry = self._index.find(key)
            known = entry is not None and entry.state in (State.PRESENT, State.ASKED)
            return not known and self._collect(key)

    def ask_unseen(self, key: bytes) -> None:
        """Collect the question whether a chunk is there, whatever is known."""
        self._check_process()
        with self._lock:
            self._collect(key, unseen=True)

    def submit_probes(self) -> None:
        """Give the questions to the threads."""
        self._check_process()
        with self._lock:
            if not self._closed:
                self._hand_over_probes()

    def take_evicted(self) -> list[bytes]:
        """Take the keys of evicted chunks."""
        self._check_process()
        return self._evictor.take_evicted()

    def poll(self) -> list[Completion]:
        """Take the completions."""
        self._check_process()
        with self._lock:
            finished, self._completions = self._completions, []
            return finished

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until jobs and probes have ended."""
        self._check_process()
        with self._lock:
            return self._idle.wait_for(self._is_idle, timeout_s)

    def stats(self) -> dict[str, int]:
        """Count."""
        self._check_process()
        with self._lock:
            return {
                **self._counts,
                **self._index.stats(),
                **self._space.stats(),
                **self._evictor.stats(),
                "scanned_files": self._scan.files,
                "reclaimed_temporaries": self._scan.reclaimed,
                "scan_complete": int(self._scan.complete),
                "owner": int(self._ownership.owner),
                "seals": int(self._chunks.seals.active),
                "checks": self._checks.asked,
                "peak_inflight_read_bytes": self._queue.peaks["load"] * self._chunk_size_bytes,
                "peak_inflight_write_bytes": self._queue.peaks["store"] * self._chunk_size_bytes,
                "inflight_jobs": self._inflight_jobs,
            }

    def close(self, timeout_s: float | None) -> int:
        """End everything; see `Engine.close`."""
        if os.getpid() != self._owner_pid:
            # A forked child has none of the threads, and their locks may be held for ever.
            return 0
        with self._closing:
            with self._lock:
                self._closed = True
                self._probes.drop()
                self._notify_if_idle()
                for job, op in self._queue.take_all():
                    problem = "because the engine was closed before it started"
                    self._finish_op(job, op, errno.ECANCELED, problem, files.OpReport())
                self._work_available.notify_all()
            self._scan.stop()
            self._evictor.stop()
            if not self._join(timeout_s):
                with self._lock:
                    # It may be the scan that hangs, or an eviction.
                    return max(1, self._inflight_jobs)
            # Nothing of ours is stored any more.
            self._ownership.release()
            self._evictor.finish()
            self._space.close()
            self._primary.release()
            return 0

    def close_dropped(self) -> None:
        """Close for an `Engine` that was dropped, from whichever thread the collector runs in."""
        if threading.current_thread() in self._threads:
            # Possibly with the lock held; and a thread cannot join itself.
            threading.Thread(target=self.close_dropped, name="kvfs-close", daemon=True).start()
        else:
            self.close(_DROPPED_TIMEOUT_S)

    def _join(self, timeout_s: float | None) -> bool:
        """Wait for the threads; False when `timeout_s` passed first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return not self._threads

    def _check_process(self) -> None:
        if os.getpid() != self._owner_pid:
            raise RuntimeError(
                "this engine belongs to the process that was forked; make a new one in this process"
            )

    def _run(self) -> None:
        while work := self._claim():
            work()
            # Idle threads keep no job, and with it nothing of the caller's, alive.
            del work

    def _claim(self) -> Callable[[], None] | None:
        """Wait for something to do and take it; None once the engine is closed."""
        with self._lock:
            while not self._closed:
                kind = self._queue.next_kind()
                if self._probes.waiting:
                    questions = self._probes.claim()
                    self._wake_up()
                    return functools.partial(self._answer, questions)
                if kind is None:
                    self._work_available.wait()
                    continue
                job, op = self._queue.claim(kind)
                self._wake_up()
                if job.started_at is None:
                    job.started_at = time.monotonic()
                return functools.partial(self._run_op, job, op)
        return None

    def _wake_up(self) -> None:
        """Wake a thread if there is something for it; it wakes the next one. The caller holds the lock."""
        if self._probes.waiting or self._queue.next_kind() is not None:
            self._work_available.notify()

    def _collect(self, key: bytes, *, unseen: bool = False) -> bool:
        """Needs the lock."""
        if self._closed or not self._probes.collect(key, unseen=unseen):
            return False
        if self._probes.due:
            self._hand_over_probes()
        return True

    def _hand_over_probes(self) -> None:
        """Give the threads the questions that were collected. The caller holds the lock."""
        self._probes.hand_over(self._checks.take())
        self._wake_up()

    def _answer(self, questions: list[Question]) -> None:
        answer(questions, self._chunks, self._chunk_size_bytes, self._index, self._ownership)
        with self._lock:
            self._probes.release(len(questions))
            self._notify_if_idle()

    def _run_op(self, job: Job, op: int) -> None:
        report = files.OpReport()
        is_store = job.kind == "store"
        if is_store:
            self._index.begin_store(job.key(op))
        if is_store and not self._space.reserve():
            outcome, problem = SHED, "because there is no room"
        else:
            outcome, problem = self._operations.execute(job, op, report)
            if is_store:
                self._note_store(outcome, is_new=report.bytes_moved > 0)
        with self._lock:
            self._queue.release(job.kind)
            self._finish_op(job, op, outcome, problem, report)
            if is_store:
                self._index.end_store(job.key(op))

    def _note_store(self, outcome: int, *, is_new: bool) -> None:
        """Keep or give back a store's room, and let its end pause stores or let them go on."""
        if outcome == SUCCESS and is_new:
            self._space.stored()
        else:
            self._space.cancelled()
        # That a chunk is there already says nothing about the next store.
        if outcome != SUCCESS or is_new:
            self._pause.note(outcome)

    def _finish_op(self, job: Job, op: int, outcome: int, problem: str, report: files.OpReport) -> None:
        """Record an op's end, and the job's with its last op. The caller holds the lock."""
        job.finish_op(op, outcome, problem, report.bytes_moved)
        self._note_outcome(job, op, outcome)
        self._counts["duplicate_stores"] += report.duplicate
        self._counts["healed_files"] += report.healed
        self._counts["removed_files"] += report.removed
        if report.removed or report.healed:
            first, second, _ = chunk_names(job.key(op))
            self._evictor.note_removed(first, second, report.removed_bytes)
        self._counts["damaged_chunks"] += report.damaged
        if job.kind == "load" and outcome == SUCCESS:
            self._counts["verified_loads" if report.verified else "unverified_loads"] += 1
        if report.direct_refused_at is not None:
            self._counts["direct_fallbacks"] += 1
        if not job.unfinished:
            self._completions.append(job.completion())
            self._inflight_jobs -= 1
            self._notify_if_idle()

    def _note_outcome(self, job: Job, op: int, outcome: int) -> None:
        """Let the index know what became of an op, before anybody can poll that."""
        if job.kind == "store" and outcome == SUCCESS:
            self._index.put(job.key(op), job.first_use - op)
        elif job.kind == "load":
            if outcome != SUCCESS:
                self._index.forget(job.key(op))
            self._index.end_load(job.key(op))

    def _is_idle(self) -> bool:
        return not self._inflight_jobs and not self._probes.unanswered

    def _notify_if_idle(self) -> None:
        """Wake those that drain once there is nothing to wait for. The caller holds the lock."""
        if self._is_idle():
            self._idle.notify_all()
