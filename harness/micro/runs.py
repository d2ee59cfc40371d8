"""One run in a process of its own: set up, let the clock run over the jobs alone, prove the bytes right.

The clock runs from the first submission until the waiting thread knows that the last job is done. CPU time
is the whole process's, and its reading comes a moment later: threads that a finished job woke are still its
cost.
"""

import contextlib
import dataclasses
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.micro import chunks, directories, drivers, pagecache
from harness.micro.cases import LOAD, MIXED, STORE, Case
from harness.micro.requests import PREPARE, PROBE, REQUIRE, Answer, Request, WorkerError
from harness.micro.victim import Victim

_LOAD_SEED: Final = 1
_CONTENT_SEED: Final = 2
# Runs store under keys of their own, counted from here; one that only warms up follows each.
_STORE_SEEDS: Final = 1000

_SETTLE_S: Final = 0.005
_POLL_S: Final = 0.0005
_WARM_UP_BYTES_MAX: Final = 32 << 20
_CHECKED_FILES_MAX: Final = 8


@dataclass(frozen=True)
class Job:
    """One job of a run: keys, and a row of the primary buffer for each."""

    job_id: int
    keys: Sequence[bytes]
    rows: Sequence[int]


class Trace:
    """Where a traced run stops for its tracer; a run that is not traced passes through."""

    def begin(self) -> None:
        """Come to the measured part."""

    def end(self) -> None:
        """Leave the measured part."""


class Run:
    """A driver, its buffer (its own, if none is given) and the keys of one case."""

    def __init__(self, request: Request, trace: Trace, buffer: chunks.PrimaryBuffer | None = None) -> None:
        self.case: Case = request.case
        self._root = Path(request.root)
        self._trace = trace
        self._content = chunks.Content(self.case.chunk_bytes, _CONTENT_SEED)
        self._files = request.files
        self._store_seed = _STORE_SEEDS + 2 * request.serial
        self._quiet_disk = request.quiet_disk
        self._existing_leaves = request.existing_leaves
        self.buffer = buffer or chunks.PrimaryBuffer(self._rows(), self._content, self.case.chunk_bytes)
        self.reset_buffer()
        self.driver = drivers.module_of(request.io).make(
            self._root, self.buffer.view, self.case.threads, request.io, request.checksum
        )
        self.answer = Answer()
        if self.case.op != LOAD:
            self.answer.mkdir_cpu_us = directories.mkdir_cpu_us(self._root, f"mkdir-{request.serial}")

    def _rows(self) -> int:
        """Return the rows that the run needs.

        A victim's jobs take over the rows of those that ended; a mixed run stores from as many rows as it
        loads into.
        """
        if self.case.victim:
            return self.case.wave_chunks
        return self.case.chunks * (2 if self.case.op == MIXED else 1)

    def reset_buffer(self) -> None:
        """Put chunks into the rows that are stored from, and nothing into those that are loaded into."""
        loaded = {STORE: 0, LOAD: self.buffer.rows, MIXED: self.case.chunks}[self.case.op]
        self.buffer.reset(loaded)

    def job(self, op: str, number: int, slot: int) -> Job:
        """Return the run's job `number`, whose chunks lie in slot `slot` of the buffer."""
        size = self.case.chunks_per_job
        numbers = range(number * size, (number + 1) * size)
        if op == LOAD:
            keys = [chunks.key_of(_LOAD_SEED, each % self._files) for each in numbers]
        else:
            keys = [chunks.key_of(self._store_seed, each) for each in numbers]
        return Job(number, keys, range(slot * size, (slot + 1) * size))

    def paths(self, jobs: Sequence[Job]) -> list[Path]:
        """Return the files of jobs."""
        return [chunks.path_of(self.driver.base_path, key) for job in jobs for key in job.keys]

    def submit(self, op: str, job: Job) -> None:
        """Hand a job to the driver."""
        self.driver.submit(op, job.job_id, job.keys, job.rows)

    def warm_up(self) -> None:
        """Let every thread do one chunk, and leave the buffer as it was."""
        count = max(1, min(self.case.threads, _WARM_UP_BYTES_MAX // self.case.chunk_bytes, self.buffer.rows))
        loads = self.case.loads
        for number in range(count):
            if loads:
                key = chunks.key_of(_LOAD_SEED, number % self._files)
            else:
                key = chunks.key_of(self._store_seed + 1, number)
            # Job ids of the run itself count from 0.
            self.driver.submit(LOAD if loads else STORE, -1 - number, [key], [number])
        self.driver.wait()
        self.driver.finished()
        if loads:
            self.reset_buffer()

    def make_leaves(self, jobs: Sequence[Job]) -> None:
        """Make the directories of stored chunks, where the case wants them to exist."""
        if self._existing_leaves:
            chunks.make_leaves(self.driver.base_path, [key for job in jobs for key in job.keys])

    @contextlib.contextmanager
    def clock(self, loaded: Sequence[Path]) -> Iterator[None]:
        """Note what the block takes: wall time until it ends, CPU time and device bytes until all rests."""
        pagecache.drop(loaded)
        if self._quiet_disk:
            # What was removed or made before, and is not written yet, is nobody's cost here.
            pagecache.sync_file_system(self._root)
        self._count("resident_before_bytes", pagecache.resident_bytes(loaded))
        storage = pagecache.storage_bytes()
        cpu_s = _cpu_s()
        self._trace.begin()
        started = time.perf_counter()
        yield
        self.answer.wall_s.append(time.perf_counter() - started)
        time.sleep(_SETTLE_S)
        self._trace.end()
        self.answer.cpu_s.append(_cpu_s() - cpu_s)
        after = pagecache.storage_bytes()
        self._count("storage_read_bytes", after.read - storage.read)
        self._count("storage_write_bytes", after.written - storage.written)

    def note_moved(self, moved: Sequence[Path]) -> None:
        """Note how many chunks the clock has seen and what they left in the page cache."""
        self._count("resident_after_bytes", pagecache.resident_bytes(moved))
        self._count("moved_bytes", len(moved) * self.case.chunk_bytes)
        self.answer.chunks += len(moved)

    def check(self, op: str, jobs: Sequence[Job]) -> None:
        """Prove that the bytes of these jobs are where they belong; the clock does not run.

        Raises:
            WorkerError: They are not.
        """
        if op == LOAD:
            expected = [
                (row, (job.job_id * self.case.chunks_per_job + i) % self._files)
                for job in jobs
                for i, row in enumerate(job.rows)
            ]
            wrong_rows = self.buffer.wrong_rows(expected)
            if wrong_rows:
                raise WorkerError(f"{len(wrong_rows)} of {len(expected)} chunks were loaded with wrong bytes")
            self.answer.checked_chunks += len(expected)
            return
        files = [(path, row) for job in jobs for path, row in zip(self.paths([job]), job.rows, strict=True)]
        some = files[:: max(1, len(files) // _CHECKED_FILES_MAX)]
        missing = sum(not path.exists() for path, _ in files)
        wrong = chunks.wrong_files(self._content, some)
        if missing or wrong:
            raise WorkerError(
                f"{missing} of {len(files)} stored files are missing, {len(wrong)} of {len(some)} that were "
                "read hold wrong bytes"
            )
        self.answer.checked_chunks += len(some)

    def discard(self, jobs: Sequence[Job]) -> None:
        """Free what these jobs stored among files that are still needed."""
        paths = [path for path in self.paths(jobs) if path.exists()]
        if directories.keeps_names(self._root):
            directories.empty(paths)
        else:
            chunks.remove_files(paths)

    def _count(self, name: str, count: int) -> None:
        self.answer.page_cache[name] = self.answer.page_cache.get(name, 0) + count


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_waves(run: Run) -> None:
    """Submit all jobs of a wave at once and wait for them; again for each wave, with other chunks."""
    case = run.case
    waves = [
        [run.job(case.op, number, number) for number in range(first, first + case.jobs)]
        for first in range(0, case.waves * case.jobs, case.jobs)
    ]
    jobs = [job for wave in waves for job in wave]
    if case.op == STORE:
        run.make_leaves(jobs)
    for wave in waves:
        _measure_wave(run, wave)
    run.check(case.op, jobs)


def measure_in_turns(run: Run, beside: Run) -> None:
    """Load each wave with two engines, twice each, into the same rows."""
    case = run.case
    for first in range(0, case.waves * case.jobs, case.jobs):
        wave = [run.job(LOAD, number, number) for number in range(first, first + case.jobs)]
        for each in (run, beside, beside, run):
            # What another load has left there proves nothing.
            run.reset_buffer()
            _measure_wave(each, wave)
            each.check(LOAD, wave)


def _measure_wave(run: Run, wave: Sequence[Job]) -> None:
    case = run.case
    paths = run.paths(wave)
    with run.clock(paths if case.op == LOAD else []):
        for job in wave:
            run.submit(case.op, job)
        run.driver.wait()
        finished = run.driver.finished()
    run.note_moved(paths)
    if case.jobs == 1:
        # What a scheduler that waits for this job sees.
        run.answer.latencies_s.append(run.answer.wall_s[-1])
    else:
        run.answer.latencies_s += [job.latency_s for job in finished]
    if len(finished) != len(wave):
        raise WorkerError(f"{len(wave)} jobs were submitted, {len(finished)} reported")


def measure_victim(run: Run, victim_s: float) -> None:
    """Let a Python thread tick beside an idle engine, then beside one that always has all its jobs."""
    case = run.case
    victim = Victim()
    victim.start()
    deadline = time.perf_counter() + victim_s
    while time.perf_counter() < deadline:
        run.driver.finished()
        time.sleep(_POLL_S)
    run.answer.idle_gaps_s = victim.stop()

    # Stores run out of chunks, loads only of time. All keys are made here: hashing them is no part of it.
    last = case.jobs * case.waves if case.op == STORE else 1 << 62
    for number in range(case.jobs * case.waves):
        run.job(case.op, number, 0)
    jobs = {number: run.job(case.op, number, number) for number in range(case.jobs)}
    slots = {number: number for number in jobs}
    paths = run.paths(list(jobs.values()))
    victim = Victim()
    with run.clock(paths if case.op == LOAD else []):
        for job in jobs.values():
            run.submit(case.op, job)
        victim.start()
        submitted = case.jobs
        deadline = time.perf_counter() + victim_s
        ended = 0
        while time.perf_counter() < deadline and submitted < last:
            for done in run.driver.finished():
                ended += 1
                slot = slots.pop(done.job_id)
                if submitted < last:
                    slots[submitted] = slot
                    jobs[slot] = run.job(case.op, submitted, slot)
                    run.submit(case.op, jobs[slot])
                    submitted += 1
            time.sleep(_POLL_S)
        run.answer.gaps_s = victim.stop()
        run.driver.wait()
        ended += len(run.driver.finished())
    run.note_moved(paths)
    # Far more went through than the first jobs' files.
    run.answer.chunks = ended * case.chunks_per_job
    run.answer.page_cache["moved_bytes"] = run.answer.chunks * case.chunk_bytes
    if ended != submitted:
        raise WorkerError(f"{submitted} jobs were submitted, {ended} reported")
    run.check(case.op, list(jobs.values()))


def measure_mixed(run: Run) -> None:
    """Load job after job on an idle engine, then behind a backlog of stores for as long as there is one."""
    case = run.case
    loads = [run.job(LOAD, number, number) for number in range(case.waves)]
    # The backlog's job ids come after those of the loads; their chunks are some rows, again and again.
    stores = [run.job(STORE, case.waves + i, case.waves + i % case.waves) for i in range(case.backlog_jobs)]
    run.make_leaves(stores)
    for job in loads:
        run.submit(LOAD, job)
        run.driver.wait()
        run.answer.idle_latencies_s += [done.latency_s for done in run.driver.finished()]
    run.check(LOAD, loads)
    run.reset_buffer()

    waiting = {job.job_id for job in stores}
    loaded: list[Job] = []
    try:
        with run.clock(run.paths(loads)):
            for job in stores:
                run.submit(STORE, job)
            for job in loads:
                run.submit(LOAD, job)
                run.answer.latencies_s.append(_await_load(run, job.job_id, waiting))
                loaded.append(job)
                if not waiting:
                    break
            run.driver.wait()
            waiting -= {done.job_id for done in run.driver.finished()}
        run.note_moved(run.paths(stores))
        run.answer.chunks += len(loaded) * case.chunks_per_job
        run.answer.page_cache["moved_bytes"] += len(loaded) * case.chunks_per_job * case.chunk_bytes
        if waiting:
            raise WorkerError(f"{len(waiting)} of {len(stores)} store jobs were never reported")
        run.check(LOAD, loaded)
    finally:
        run.discard(stores)


def _await_load(run: Run, job_id: int, waiting: set[int]) -> float:
    """Return the load's latency, once it is done; take the stores that end meanwhile off `waiting`."""
    latency_s = None
    while latency_s is None:
        time.sleep(_POLL_S)
        for done in run.driver.finished():
            if done.job_id == job_id:
                latency_s = done.latency_s
            waiting.discard(done.job_id)
    return latency_s


def run_request(request: Request, trace: Trace) -> Answer:
    """Do what a request asks.

    Raises:
        HarnessError: It cannot be done, or what was done is wrong.
        OSError: The file system or the engine refused.
    """
    if request.kind == PREPARE:
        return _prepare(request)
    run = Run(request, trace)
    try:
        if request.beside:
            _run_in_turns(run, request, trace)
        elif request.kind == PROBE:
            run.driver.submit(STORE, 0, [chunks.key_of(_STORE_SEEDS, 0)], [0])
            run.driver.wait()
            run.driver.finished()
        else:
            run.warm_up()
            if request.case.victim:
                measure_victim(run, request.victim_s)
            elif request.case.op == MIXED:
                measure_mixed(run)
            else:
                measure_waves(run)
        run.answer.facts = run.driver.facts()
    finally:
        run.driver.close()
    return run.answer


def _run_in_turns(run: Run, request: Request, trace: Trace) -> None:
    beside = Run(dataclasses.replace(request, checksum=request.beside), trace, run.buffer)
    try:
        for each in (run, beside):
            each.warm_up()
        measure_in_turns(run, beside)
        beside.answer.facts = beside.driver.facts()
        run.answer.beside = beside.answer
    finally:
        beside.driver.close()


def _prepare(request: Request) -> Answer:
    """Write the files that loads read, the same way for all arms, and take them out of the page cache."""
    case = request.case
    buffer = chunks.PrimaryBuffer(1, chunks.Content(case.chunk_bytes, _CONTENT_SEED), case.chunk_bytes)
    driver = drivers.module_of(request.io).make(
        Path(request.root), buffer.view, 1, request.io, request.checksum
    )
    base_path = driver.base_path
    driver.close()
    keys = [chunks.key_of(_LOAD_SEED, number) for number in range(request.files)]
    content = chunks.Content(case.chunk_bytes, _CONTENT_SEED)
    sealed = request.checksum == REQUIRE
    pagecache.drop(chunks.write_files(base_path, content, case.chunk_bytes, keys, sealed=sealed))
    return Answer(chunks=len(keys))
