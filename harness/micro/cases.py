"""What is measured: operations, chunk sizes, thread counts and jobs, and how much each run may move."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness.errors import UsageError
from harness.records import Scalar

SUITE: Final = "micro"
STORE: Final = "store"
LOAD: Final = "load"
MIXED: Final = "mixed"
OPS: Final = (STORE, LOAD, MIXED)
# Moves no chunks; lookup_cases.py has its cases.
LOOKUP: Final = "lookup"

# O_DIRECT and vLLM's own region work in pages, so a chunk is a whole number of them.
PAGE_BYTES: Final = 4096
# How many jobs the engine is kept busy with while the victim ticks.
VICTIM_JOBS: Final = 32

_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+)\s*([KMG]iB|B|)")

# A run of less than this is over before the machine's noise averages out; it is made of several waves.
_BYTES_PER_RUN: Final = 128 << 20
_WAVES_MAX: Final = 8
# Each of them makes a file and two directories, which have to be removed again.
_STORED_CHUNKS_MAX: Final = 1024
# One job at a time gives one latency a wave.
_WAVES_ONE_JOB: Final = 4
_VICTIM_WAVES: Final = 4
_MIXED_CHUNKS_PER_JOB: Final = 16
_MIXED_LOADS: Final = 16


@dataclass(frozen=True)
class Shape:
    """How the chunks of a wave are submitted.

    Attributes:
        jobs: Jobs that are submitted at once.
        chunks_per_job: Chunks of each.
    """

    jobs: int
    chunks_per_job: int

    def __str__(self) -> str:
        return f"{self.jobs}x{self.chunks_per_job}"


@dataclass(frozen=True)
class Limits:
    """What bounds a run's data.

    Attributes:
        max_bytes: Most bytes that one run stores, or keeps on disk to load.
        backlog_bytes: Stores that wait while the mixed case loads, beside `max_bytes`.
        backlog_chunks_max: And how many chunks they are at most.
        victim_s: How long the victim ticks, idle and busy each.
        smoke: One wave a run is enough.
    """

    max_bytes: int
    backlog_bytes: int
    backlog_chunks_max: int
    victim_s: float = 0.6
    smoke: bool = False


@dataclass(frozen=True)
class Case:
    """One thing that every arm does.

    Attributes:
        op: "store", "load" or "mixed".
        chunk_bytes: Size of a chunk.
        threads: For reads, and as many for writes.
        jobs: Jobs in flight at once.
        chunks_per_job: Chunks of each.
        waves: How often `jobs` jobs are submitted and waited for; load jobs in a row for the mixed case.
        backlog_jobs: Store jobs that wait in front of the mixed case's loads.
        victim: Whether the victim's gaps are measured instead of the jobs.
    """

    op: str
    chunk_bytes: int
    threads: int
    jobs: int
    chunks_per_job: int
    waves: int = 1
    backlog_jobs: int = 0
    victim: bool = False

    def key(self, io: str, dir_fs: str) -> dict[str, Scalar]:
        """Return the case as it stands in records."""
        return {
            "op": self.op,
            "layout": "files",
            "io": io,
            "chunk_bytes": self.chunk_bytes,
            "threads": self.threads,
            "jobs": self.jobs,
            "chunks_per_job": self.chunks_per_job,
            "dir_fs": dir_fs,
        }

    @property
    def shape(self) -> Shape:
        """The jobs of a wave."""
        return Shape(self.jobs, self.chunks_per_job)

    @property
    def wave_chunks(self) -> int:
        """Chunks that are in flight together."""
        return self.jobs * self.chunks_per_job

    @property
    def chunks(self) -> int:
        """Chunks that all waves move, the backlog aside."""
        return self.wave_chunks * self.waves

    @property
    def loads(self) -> bool:
        """Whether files have to be there before."""
        return self.op != STORE

    @property
    def file_chunks(self) -> int:
        """Files that a run leaves in its own directory, at most."""
        return self.backlog_jobs * self.chunks_per_job + (0 if self.loads else self.chunks)

    def one_wave(self) -> "Case":
        """Return the case with as few chunks as show what a chunk takes."""
        return dataclasses.replace(self, waves=1)

    def __str__(self) -> str:
        what = "victim " if self.victim else ""
        return f"{what}{self.op} {size_text(self.chunk_bytes)} {self.shape}, {threads_text(self.threads)}"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "64KiB", "3 MiB" or "65536".

    Raises:
        UsageError: It is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size; write it like 64KiB, 3MiB or 65536")
    return int(match.group(1)) * _UNITS[match.group(2)]


def size_text(size_bytes: int) -> str:
    """Return bytes in the largest unit that divides them."""
    for unit, factor in reversed(_UNITS.items()):
        if unit and size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def threads_text(threads: int) -> str:
    """Return a number of threads in words."""
    return f"{threads} thread{'' if threads == 1 else 's'}"


def parse_chunk(text: str) -> int:
    """Return the bytes of a chunk.

    Raises:
        UsageError: It is no size, or not a whole number of pages.
    """
    chunk_bytes = parse_size(text)
    if chunk_bytes == 0 or chunk_bytes % PAGE_BYTES:
        raise UsageError(f"--chunk {text}: a chunk is a whole number of pages of {PAGE_BYTES} bytes")
    return chunk_bytes


def parse_shape(text: str) -> Shape:
    """Return the shape written as JOBSxCHUNKS, such as "16x16".

    Raises:
        UsageError: It is none.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip())
    if match is None:
        raise UsageError(f"--shape {text!r}: write JOBSxCHUNKS, like 16x16 for 16 jobs of 16 chunks")
    return Shape(int(match.group(1)), int(match.group(2)))


def plan(
    ops: Sequence[str],
    chunk_sizes: Sequence[int],
    threads: Sequence[int],
    shapes: Sequence[Shape],
    limits: Limits,
    *,
    victim: bool,
) -> list[Case]:
    """Return the cases in the order in which they run: all of one chunk size together.

    The victim ticks at the largest thread count alone: that is where the machine is busiest.
    """
    cases: list[Case] = []
    for chunk_bytes in chunk_sizes:
        for op in ops:
            cases += _cases_of(op, chunk_bytes, threads, shapes, limits)
            if victim and op != MIXED:
                cases.append(_victim_case(op, chunk_bytes, max(threads), limits))
    return list(dict.fromkeys(cases))


def _cases_of(
    op: str, chunk_bytes: int, threads: Sequence[int], shapes: Sequence[Shape], limits: Limits
) -> Iterator[Case]:
    if op == MIXED:
        yield from (_mixed_case(chunk_bytes, count, limits) for count in threads)
        return
    for shape in shapes:
        fitted = fit(shape, chunk_bytes, limits)
        waves = _waves(op, fitted, chunk_bytes, limits)
        for count in threads:
            yield Case(op, chunk_bytes, count, fitted.jobs, fitted.chunks_per_job, waves)


def fit(shape: Shape, chunk_bytes: int, limits: Limits) -> Shape:
    """Return the shape with fewer chunks a job, then fewer jobs, where its bytes are too many for a run."""
    chunks_max = max(1, limits.max_bytes // chunk_bytes)
    if shape.jobs > chunks_max:
        return Shape(chunks_max, 1)
    return Shape(shape.jobs, min(shape.chunks_per_job, chunks_max // shape.jobs))


def _waves(op: str, shape: Shape, chunk_bytes: int, limits: Limits) -> int:
    if limits.smoke:
        return 1
    wave_bytes = shape.jobs * shape.chunks_per_job * chunk_bytes
    wanted = max(_WAVES_ONE_JOB if shape.jobs == 1 else 1, math.ceil(_BYTES_PER_RUN / wave_bytes))
    chunks_max = limits.max_bytes // chunk_bytes
    if op == STORE:
        chunks_max = min(chunks_max, _STORED_CHUNKS_MAX)
    return max(1, min(wanted, _WAVES_MAX, chunks_max // (shape.jobs * shape.chunks_per_job)))


def _victim_case(op: str, chunk_bytes: int, threads: int, limits: Limits) -> Case:
    """Return a case whose jobs are so small that the busy time has several waves of them."""
    chunks_max = max(1, limits.max_bytes // chunk_bytes)
    jobs = min(VICTIM_JOBS, chunks_max)
    chunks_per_job = max(1, min(16, chunks_max // (_VICTIM_WAVES * jobs)))
    waves = max(1, chunks_max // (jobs * chunks_per_job))
    return Case(op, chunk_bytes, threads, jobs, chunks_per_job, waves, victim=True)


def _mixed_case(chunk_bytes: int, threads: int, limits: Limits) -> Case:
    shape = fit(Shape(1, _MIXED_CHUNKS_PER_JOB), chunk_bytes, limits)
    job_bytes = shape.chunks_per_job * chunk_bytes
    loads = max(1, min(_MIXED_LOADS, limits.max_bytes // (2 * job_bytes)))
    backlog_chunks = min(limits.backlog_bytes // chunk_bytes, limits.backlog_chunks_max)
    backlog_jobs = max(1, backlog_chunks // shape.chunks_per_job)
    return Case(MIXED, chunk_bytes, threads, 1, shape.chunks_per_job, loads, backlog_jobs)
