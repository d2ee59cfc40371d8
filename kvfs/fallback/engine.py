"""Level 2: the engine, with Python threads that share the ops of all jobs."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from kvfs.fallback import files
from kvfs.fallback.checks import (
    check_bool,
    check_byte_limit,
    check_ints,
    check_io_engine,
    check_job_id,
    check_keys,
    check_lengths,
    check_path,
    check_threads,
    flat_view,
    type_error,
)
from kvfs.fallback.job import Job
from kvfs.fallback.queue import ByteLimits, JobQueue
from kvfs.jobs import SHED, SUCCESS, Completion
from kvfs.paths import make_directories

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_DIMENSIONS: Final = 2
# A direct transfer that is refused at this alignment would be refused at any.
_DIRECT_ALIGNMENT_MAX: Final = 4096


class _Core:
    """The engine's state and threads. Apart from `Engine`, so that the threads do not keep that one alive."""

    def __init__(
        self, base_path: str, buffer: Buffer, n_threads: int, use_o_direct: bool, limits: ByteLimits
    ) -> None:
        self._base_path = base_path
        self._view, self._num_chunks, self._chunk_size_bytes = _bind(buffer)
        # Only the address; the view keeps the memory where it is.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))
        self._direct = use_o_direct
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()  # guards all that follows, and the jobs
        self._work_available = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._queue = JobQueue(limits, self._chunk_size_bytes, n_threads)
        self._completions: list[Completion] = []
        self._inflight_jobs = 0
        self._closed = False
        self._counts = dict.fromkeys(
            ("direct_fallbacks", "duplicate_stores", "healed_files", "removed_files", "shed_stores"), 0
        )
        self._closing = threading.Lock()  # held while joining: a second close() waits for the first
        self._threads = [
            threading.Thread(target=self._run, name=f"kvfs-io-{index}", daemon=True)
            for index in range(n_threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            # End those that run, then report; RuntimeError alone would hide what kind of failure it is.
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise OSError(errno.EAGAIN, f"the system gave fewer threads than asked for: {error}") from error

    def submit(self, job_id: int, kind: str, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        self._check_process()
        job = Job(job_id, kind, keys, key_size_bytes, chunk_ids)
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed; make a new one to submit jobs")
            if not job.outcomes:
                self._completions.append(job.completion())
                return
            self._inflight_jobs += 1
            for op in range(self._queue.push(job), len(job.outcomes)):
                self._counts["shed_stores"] += 1
                self._finish_op(job, op, SHED, "because the queue was full", files.OpReport())
            self._wake_up()

    def poll(self) -> list[Completion]:
        self._check_process()
        with self._lock:
            finished, self._completions = self._completions, []
            return finished

    def drain(self, timeout_s: float | None) -> bool:
        self._check_process()
        with self._lock:
            return self._idle.wait_for(lambda: not self._inflight_jobs, timeout_s)

    def stats(self) -> dict[str, int]:
        self._check_process()
        with self._lock:
            return {
                **self._counts,
                "peak_inflight_read_bytes": self._queue.peaks["load"] * self._chunk_size_bytes,
                "peak_inflight_write_bytes": self._queue.peaks["store"] * self._chunk_size_bytes,
                "inflight_jobs": self._inflight_jobs,
            }

    def close(self) -> None:
        if os.getpid() != self._owner_pid:
            # A forked child has none of the threads, and their locks may be held for ever.
            return
        with self._closing:
            with self._lock:
                self._closed = True
                for job, op in self._queue.take_all():
                    problem = "because the engine was closed before it started"
                    self._finish_op(job, op, errno.ECANCELED, problem, files.OpReport())
                self._work_available.notify_all()
            for thread in self._threads:
                thread.join()
            self._threads.clear()
            self._view.release()

    def close_dropped(self) -> None:
        """Close for an `Engine` that was dropped, from whichever thread the collector runs in."""
        if threading.current_thread() in self._threads:
            # Possibly with the lock held; and a thread cannot join itself.
            threading.Thread(target=self.close, name="kvfs-close", daemon=True).start()
        else:
            self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._owner_pid:
            raise RuntimeError(
                "this engine belongs to the process that was forked; make a new one in this process"
            )

    def _run(self) -> None:
        while claim := self._claim():
            job, op = claim
            report = files.OpReport()
            outcome, problem = self._execute(job, op, report)
            with self._lock:
                self._queue.release(job.kind)
                self._finish_op(job, op, outcome, problem, report)
            # Idle threads keep no job, and with it nothing of the caller's, alive.
            del claim, job

    def _claim(self) -> tuple[Job, int] | None:
        """Wait for an op and take it; None once the engine is closed."""
        with self._lock:
            while not self._closed:
                kind = self._queue.next_kind()
                if kind is None:
                    self._work_available.wait()
                    continue
                job, op = self._queue.claim(kind)
                self._wake_up()
                if job.started_at is None:
                    job.started_at = time.monotonic()
                return job, op
        return None

    def _wake_up(self) -> None:
        """Wake a thread if there is something for it; it wakes the next one. The caller holds the lock."""
        if self._queue.next_kind() is not None:
            self._work_available.notify()

    def _execute(self, job: Job, op: int, report: files.OpReport) -> tuple[int, str]:
        """Run one op; return its outcome and, for a failure, what to say about it."""
        path = files.chunk_path(self._base_path, job.key(op))
        try:
            if job.kind == "lookup":
                return files.lookup(path, self._chunk_size_bytes), ""
            chunk_id = job.chunk_ids[op]
            if not 0 <= chunk_id < self._num_chunks:
                return errno.EINVAL, f"because row {chunk_id} lies outside a buffer of {self._num_chunks}"
            start = chunk_id * self._chunk_size_bytes
            with self._view[start : start + self._chunk_size_bytes] as chunk:
                direct = self._wants_direct(start, report)
                if job.kind == "load":
                    files.load(path, chunk, direct=direct, report=report)
                else:
                    files.store(files.temporary_path(path), path, chunk, direct=direct, report=report)
        except OSError as error:
            return error.errno or errno.EIO, f"at {path}: {error.strerror or error}"
        except MemoryError:
            return errno.ENOMEM, f"at {path}: {os.strerror(errno.ENOMEM)}"
        except Exception as error:  # noqa: BLE001 - a thread that dies would owe the caller a completion
            return errno.EIO, f"at {path}: {error!r}"
        return SUCCESS, ""

    def _finish_op(self, job: Job, op: int, outcome: int, problem: str, report: files.OpReport) -> None:
        """Record an op's end, and the job's with its last op. The caller holds the lock."""
        job.finish_op(op, outcome, problem, report.bytes_moved)
        self._counts["duplicate_stores"] += report.duplicate
        self._counts["healed_files"] += report.healed
        self._counts["removed_files"] += report.removed
        if report.direct_refused_at is not None:
            self._counts["direct_fallbacks"] += 1
            if self._aligned(job.chunk_ids[op] * self._chunk_size_bytes + report.direct_refused_at):
                self._direct = False
        if not job.unfinished:
            self._completions.append(job.completion())
            self._inflight_jobs -= 1
            if not self._inflight_jobs:
                self._idle.notify_all()

    def _wants_direct(self, start: int, report: files.OpReport) -> bool:
        if not self._direct:
            return False
        if self._aligned(start, files.DIRECT_ALIGNMENT_MIN):
            return True
        report.direct_refused_at = 0
        return False

    def _aligned(self, offset: int, alignment: int = _DIRECT_ALIGNMENT_MAX) -> bool:
        """Tell whether a transfer from this offset of the buffer to the end of its chunk is aligned."""
        rest = self._chunk_size_bytes - offset % self._chunk_size_bytes
        return (self._address + offset) % alignment == 0 and rest % alignment == 0


class Engine:
    """Threads that run jobs against one namespace; see docs/engine.md, level 2. Thread-safe.

    Python threads do the I/O: each system call runs without the GIL, what lies between them does not.
    An engine that is dropped without `close()` closes itself.

    Args:
        base_path: The namespace's directory; made with its parents if it is missing.
        buffer: The primary tier: writable, C-contiguous, one byte an element, of shape
            (num_chunks, chunk_size_bytes). Held until `close()`.
        n_read_threads: Threads, 1 to 1024, together with the next ones; each takes what is most urgent.
        n_write_threads: More threads, 1 to 1024.
        use_o_direct: Whether to try O_DIRECT.
        io_engine: "auto" or "psync"; "uring" is refused, since Python has no way to it.
        max_inflight_read_bytes: Loads that may be in flight at once; one chunk always may.
        max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
        max_queued_store_bytes: Stores that may wait; what comes on top is shed. None sheds nothing.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: An argument with a wrong value.
        OSError: The directory cannot be made, "uring" was asked for, or there are too few threads.
    """

    io_engine: Final = "python"
    io_engine_reason: Final = "the pure-Python engine has no other"

    def __init__(  # noqa: PLR0913, PLR0917 - the extension's interface
        self,
        base_path: str,
        buffer: Buffer,
        n_read_threads: int,
        n_write_threads: int,
        use_o_direct: bool = True,
        io_engine: str = "auto",
        max_inflight_read_bytes: int = 64 << 20,
        max_inflight_write_bytes: int = 16 << 20,
        max_queued_store_bytes: int | None = None,
    ) -> None:
        check_path("base_path", base_path)
        if not base_path:
            raise ValueError("base_path must not be empty; give the namespace's directory")
        n_threads = check_threads("n_read_threads", n_read_threads)
        n_threads += check_threads("n_write_threads", n_write_threads)
        check_bool("use_o_direct", use_o_direct)
        limits = ByteLimits(
            check_byte_limit("max_inflight_read_bytes", max_inflight_read_bytes),
            check_byte_limit("max_inflight_write_bytes", max_inflight_write_bytes),
            None
            if max_queued_store_bytes is None
            else check_byte_limit("max_queued_store_bytes", max_queued_store_bytes),
        )
        check_io_engine(io_engine, base_path)
        make_directories(base_path)
        # What lies there may be no directory.
        os.close(os.open(base_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        core = _Core(base_path, buffer, n_threads, use_o_direct, limits)
        self._core = core
        self._finalizer = weakref.finalize(self, core.close_dropped)

    def submit_store(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that stores rows of the primary tier. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        self._submit_transfer("store", job_id, keys, key_size_bytes, chunk_ids)

    def submit_load(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that loads into rows of the primary tier. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        self._submit_transfer("load", job_id, keys, key_size_bytes, chunk_ids)

    def submit_lookup(self, job_id: int, keys: bytes, key_size_bytes: int) -> None:
        """Accept a job that looks keys up. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        number = check_job_id(job_id)
        check_keys(keys, key_size_bytes)
        self._core.submit(number, "lookup", keys, key_size_bytes, [])

    def poll(self) -> list[Completion]:
        """Return the jobs that finished since the last call, each exactly once. Does not block."""
        return self._core.poll()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until no accepted job is unfinished; False when `timeout_s` passed first.

        Raises:
            TypeError: `timeout_s` is neither None nor a number.
            ValueError: `timeout_s` is negative or NaN.
        """
        if timeout_s is None:
            return self._core.drain(None)
        if not isinstance(timeout_s, int | float):
            raise type_error("timeout_s", "None or a number of seconds", timeout_s)
        if not timeout_s >= 0:
            raise ValueError("timeout_s must be None or a number of seconds from 0")
        return self._core.drain(min(timeout_s, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Cancel queued ops, wait for running ones, join the threads, release the buffer.

        Completions that remain can still be polled. May be called again, from any thread.
        """
        self._core.close()

    def stats(self) -> dict[str, int]:
        """Return counts of events since the start, and `inflight_jobs`. Does not block."""
        return self._core.stats()

    def _submit_transfer(
        self, kind: str, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]
    ) -> None:
        number = check_job_id(job_id)
        count = check_keys(keys, key_size_bytes)
        ids = check_ints("chunk_ids", chunk_ids)
        check_lengths(keys=range(count), chunk_ids=ids)
        self._core.submit(number, kind, keys, key_size_bytes, ids)


def _bind(buffer: Buffer) -> tuple[memoryview, int, int]:
    """Return a flat view of the primary tier, its number of chunks and their size in bytes."""
    flat = flat_view("buffer", buffer, writable=True)
    with memoryview(buffer) as view:
        shape, itemsize = tuple(view.shape or ()), view.itemsize
    if len(shape) == _BUFFER_DIMENSIONS and itemsize == 1 and len(flat) > 0:
        return flat, shape[0], shape[1]
    flat.release()
    raise ValueError(
        f"buffer must have shape (num_chunks, chunk_size_bytes) with one byte an element, got shape {shape} "
        f"with {itemsize} bytes an element"
    )
