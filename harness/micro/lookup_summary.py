"""What the records of lookups say: the scheduler's CPU time, the time to a verdict, and how kvfs scales."""

from collections.abc import Sequence
from typing import Final

from harness.micro.arms import STOCK
from harness.micro.cases import LOOKUP
from harness.micro.lookup_cases import INDEX, START
from harness.micro.summary import Group, Line, ratio
from harness.report.grid import Grid, significant

_P99: Final = 99.0
_P99_9: Final = 99.9
_MOST: Final = 100.0
_CPU: Final = "scheduler_cpu_ns_per_key"
_WALL: Final = "verdict_wall_ms"
_OWN: Final = "verdict_own_ms"


def grids(lines: Sequence[Line]) -> list[Grid]:
    """Return the tables of lookups and of scale; those without lines are left out."""
    found = [_lookup_grid(_of(lines, LOOKUP)), _start_grid(_of(lines, START)), _index_grid(_of(lines, INDEX))]
    return [grid for grid in found if grid.rows]


def _of(lines: Sequence[Line], op: str) -> list[Line]:
    return [line for line in lines if line.group.op == op]


def _lookup_grid(lines: Sequence[Line]) -> Grid:
    columns = ["case", "arm", "CPU ns a key", "x fs", "verdict p50 ms", "x fs", "p99 ms"]
    columns += ["without steps, x fs", "RETRY steps, most"]
    groups: dict[Group, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    rows = []
    for group, members in groups.items():
        base = next((line for line in members if line.arm == STOCK.name), None)
        rows += [
            [
                group.text,
                line.arm,
                significant(line.median(_CPU)),
                significant(ratio(line, base, _CPU)),
                significant(line.median(_WALL)),
                significant(ratio(line, base, _WALL)),
                significant(line.percentile(_WALL, _P99)),
                significant(ratio(line, base, _OWN)),
                significant(line.percentile("retry_steps", _MOST)),
            ]
            for line in members
        ]
    return Grid("Lookup (medians; CPU time of the scheduler's thread)", columns, rows, 2)


def _start_grid(lines: Sequence[Line]) -> Grid:
    columns = [
        "case",
        "arm",
        "start-up ms",
        "most",
        "files/s scanned",
        "bytes a key",
        "snapshot: hits after ms",
    ]
    columns += ["gaps p99.9 us, idle", "scanning"]
    rows = [
        [
            line.group.text,
            line.arm,
            significant(line.median("startup_ms")),
            significant(line.percentile("startup_ms", _MOST)),
            significant(line.median("scan_files_per_s")),
            significant(line.median("index_bytes_per_key")),
            significant(line.median("restart_ms")),
            significant(line.percentile("victim_gap_idle_us", _P99_9)),
            significant(line.percentile("victim_gap_us", _P99_9)),
        ]
        for line in lines
    ]
    return Grid("Start of kvfs over files that are there (medians)", columns, rows, 2)


def _index_grid(lines: Sequence[Line]) -> Grid:
    metrics = {
        "insert_keys_per_s": "inserts/s",
        "index_bytes_per_key": "bytes a key",
        "index_bytes_per_key_max": "most while it grew",
        "lookup_hit_ns": "lookup ns, hit",
        "lookup_miss_ns": "miss",
        "prefix_hit_ns_per_key": "prefix ns a key, hits",
        "prefix_miss_ns": "a call, miss",
    }
    rows = [
        [line.group.text, line.arm, *(significant(line.median(metric)) for metric in metrics)]
        for line in lines
    ]
    return Grid(
        "The index alone, synthetic keys, one thread (medians)", ["case", "arm", *metrics.values()], rows, 2
    )


def brief(lines: Sequence[Line]) -> str:
    """Return a case in one line: CPU time of a key and time to the verdict, or what scale was measured."""
    parts = []
    base = next((line for line in lines if line.arm == STOCK.name and line.group.op == LOOKUP), None)
    for line in lines:
        if line.group.op == LOOKUP:
            by = ratio(line, base, _CPU)
            times = f" (x {significant(by)})" if by is not None and line is not base else ""
            cpu, wall = significant(line.median(_CPU)), significant(line.median(_WALL))
            parts.append(f"{line.arm} {cpu} ns a key{times}, {wall} ms")
        elif line.group.op in (START, INDEX):
            shown = (
                "startup_ms",
                "scan_files_per_s",
                "restart_ms",
                "insert_keys_per_s",
                "index_bytes_per_key",
            )
            parts += [
                f"{metric} {significant(line.median(metric))}" for metric in shown if metric in line.metrics
            ]
    return "; ".join(parts)
