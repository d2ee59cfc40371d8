"""Turn what runs measured into records: raw values, one a run or one a job, with what proves them beside."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.micro.arms import FIO, Arm
from harness.micro.cases import LOAD, MIXED, STORE, SUITE, Case
from harness.micro.drivers import IO_URING
from harness.micro.fio import Fio, FioRun
from harness.micro.requests import Answer
from harness.records import HIGHER, LOWER, Record, RecordLog, Scalar

# What one number of each metric is, and which direction is good.
UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "wall_us_per_chunk": ("us", LOWER),
    "cpu_us_per_chunk": ("us", LOWER),
    "gb_per_s": ("GB/s", HIGHER),
    "job_latency_ms": ("ms", LOWER),
    "job_latency_idle_ms": ("ms", LOWER),
    "victim_gap_us": ("us", LOWER),
    "victim_gap_idle_us": ("us", LOWER),
    "syscalls_per_chunk": ("calls", LOWER),
}

# Metadata is read and written beside the chunks, so that a little more than their bytes is moved, never less.
_PROOF_RATIO_MIN: Final = 0.99


def values_of(case: Case, answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Return the metrics of a case's runs, in the order of the runs.

    A victim's runs say nothing about time or CPU: the victim and its polling driver are in them.
    """
    if case.victim:
        return {
            "victim_gap_us": [round(gap * 1e6) for answer in answers for gap in answer.gaps_s],
            "victim_gap_idle_us": [round(gap * 1e6) for answer in answers for gap in answer.idle_gaps_s],
        }
    values = {
        "wall_us_per_chunk": [sum(each.wall_s) / each.chunks * 1e6 for each in answers],
        "cpu_us_per_chunk": [sum(each.cpu_s) / each.chunks * 1e6 for each in answers],
        "gb_per_s": [each.chunks * case.chunk_bytes / sum(each.wall_s) / 1e9 for each in answers],
        "job_latency_ms": [latency * 1e3 for each in answers for latency in each.latencies_s],
    }
    if case.op == MIXED:
        values["job_latency_idle_ms"] = [
            latency * 1e3 for each in answers for latency in each.idle_latencies_s
        ]
    return {metric: [round(value, 4) for value in series] for metric, series in values.items()}


def fio_values(chunk_bytes: int, fio_runs: Sequence[FioRun]) -> dict[str, list[float]]:
    """Return fio's runs as if each chunk's bytes had been a chunk."""
    chunks = [run.moved_bytes / chunk_bytes for run in fio_runs]
    return {
        "wall_us_per_chunk": [
            round(run.wall_s / count * 1e6, 4) for run, count in zip(fio_runs, chunks, strict=True)
        ],
        "cpu_us_per_chunk": [
            round(run.cpu_s / count * 1e6, 4) for run, count in zip(fio_runs, chunks, strict=True)
        ],
        "gb_per_s": [round(run.moved_bytes / run.wall_s / 1e9, 4) for run in fio_runs],
    }


@dataclass(frozen=True)
class PageCacheFacts:
    """What the kernel's counters say about where a case's bytes came from and went to.

    Attributes:
        resident_before_bytes: Most that lay in the page cache before a run's waves.
        resident_after_bytes: And after them.
        device_bytes_ratio_min: The worst run's bytes at the device by the bytes that it moved.
        proven: Whether every run's bytes passed the device.
    """

    resident_before_bytes: int
    resident_after_bytes: int
    device_bytes_ratio_min: float
    proven: bool


def page_cache_facts(op: str, runs: Sequence[Answer]) -> PageCacheFacts:
    """Return what the runs of a case counted."""
    counters = {
        STORE: ("storage_write_bytes",),
        LOAD: ("storage_read_bytes",),
        MIXED: ("storage_read_bytes", "storage_write_bytes"),
    }[op]
    ratio_min = min(
        sum(run.page_cache[name] for name in counters) / run.page_cache["moved_bytes"] for run in runs
    )
    before = max(run.page_cache["resident_before_bytes"] for run in runs)
    after = max(run.page_cache["resident_after_bytes"] for run in runs)
    proven = ratio_min >= _PROOF_RATIO_MIN and before == 0
    return PageCacheFacts(before, after, round(ratio_min, 4), proven)


class Collector:
    """Writes the records of a session.

    Args:
        log: Gets them.
        dir_fs: Type of the file system that is measured.
        env: What all records share.
    """

    def __init__(self, log: RecordLog, dir_fs: str, env: Mapping[str, object]) -> None:
        self._log = log
        self._dir_fs = dir_fs
        self._env = env

    def write(self, case: Case, arm: Arm, runs: Sequence[Answer]) -> PageCacheFacts:
        """Write all metrics of a case's runs; return what proves them."""
        cache = page_cache_facts(case.op, runs)
        facts = runs[-1].facts | {
            "page_cache": {"state": "dropped and checked before each wave", **dataclasses.asdict(cache)},
            "mkdir_cpu_us": [round(run.mkdir_cpu_us, 1) for run in runs],
            "waves": case.waves,
            "checked_chunks": [run.checked_chunks for run in runs],
            "backlog_bytes": case.backlog_jobs * case.chunks_per_job * case.chunk_bytes,
        }
        for metric, values in values_of(case, runs).items():
            self._append(case.key(arm.io, self._dir_fs), arm.name, metric, values, facts)
        return cache

    def write_syscalls(self, case: Case, arm: Arm, run: Answer, calls: Counter[str], chunks: int) -> None:
        """Write how many system calls a chunk took, and which."""
        per_chunk = {name: round(count / chunks, 3) for name, count in calls.most_common()}
        facts = run.facts | {"waves": 1, "calls_per_chunk": per_chunk}
        value = round(calls.total() / chunks, 4)
        self._append(case.key(arm.io, self._dir_fs), arm.name, "syscalls_per_chunk", [value], facts)

    def write_limit(self, case: Case, runs: Sequence[FioRun], limit: Fio) -> None:
        """Write fio's runs: a limit at this chunk size, whatever the threads and jobs of the arms."""
        io = IO_URING if limit.engine == "io_uring" else limit.engine
        no_jobs = {"threads": None, "jobs": None, "chunks_per_job": None}
        for metric, values in fio_values(case.chunk_bytes, runs).items():
            key = case.key(io, self._dir_fs) | no_jobs
            self._append(key, FIO.name, metric, values, limit.facts(case.chunk_bytes))

    def _append(
        self,
        key: Mapping[str, Scalar],
        arm: str,
        metric: str,
        values: Sequence[float],
        facts: Mapping[str, object],
    ) -> None:
        unit, better = UNITS[metric]
        env = {**self._env, "io": key["io"], **facts}
        self._log.append(Record(SUITE, key, arm, metric, unit, better, values, env))
