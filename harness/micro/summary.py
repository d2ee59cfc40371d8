"""What the records of a micro session say: one line an arm and case, with ratios to vLLM's own tier."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.micro.arms import STOCK
from harness.micro.arms import label_of as arm_label
from harness.micro.cases import LOAD, MIXED, OPS, STORE, Shape, size_text, threads_text
from harness.micro.lookup_cases import label_of, text_of
from harness.records import Record
from harness.report import Grid

_NONE: Final = "-"
_P99: Final = 99.0
_P99_9: Final = 99.9


@dataclass(frozen=True)
class Group:
    """What all arms of one comparison share: a case without its I/O path.

    Attributes:
        op: The operation.
        chunk_bytes: Size of a chunk; 0 where it does not matter.
        shape: Of the jobs that move chunks; none for the disk's limit and for what moves none.
        threads: Of those jobs.
        keys: What was looked up, or lay there at a start; none for what moves chunks.
        pattern: Which of a prompt's keys are there.
        busy: Whether jobs ran beside.
    """

    op: str
    chunk_bytes: int
    shape: Shape | None
    threads: int | None
    keys: int | None = None
    pattern: str = ""
    busy: bool = False

    @property
    def is_limit(self) -> bool:
        """Whether this is what the disk can do, without jobs."""
        return self.shape is None and self.keys is None

    @property
    def text(self) -> str:
        """The group as people read it."""
        if self.keys is not None:
            return text_of(self.op, self.keys, self.pattern, busy=self.busy)
        if self.shape is None:
            return f"{size_text(self.chunk_bytes)}, the disk's limit"
        return f"{size_text(self.chunk_bytes)} {self.shape}, {threads_text(self.threads or 0)}"


@dataclass(frozen=True)
class Line:
    """What was measured of one arm in one group.

    Attributes:
        group: The group.
        arm: With its I/O path or its mode, where it has several.
        metrics: Raw values.
        runs: How many runs they are of; none where a run gives one value.
    """

    group: Group
    arm: str
    metrics: Mapping[str, Sequence[float]]
    runs: int | None = None

    def median(self, metric: str) -> float | None:
        """Return the median of a metric, None if it was not measured."""
        values = self.metrics.get(metric)
        return statistics.median(values) if values else None

    def percentile(self, metric: str, percent: float) -> float | None:
        """Return a percentile of a metric, None if it was not measured."""
        values = self.metrics.get(metric)
        return percentile(values, percent) if values else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def lines_of(records: Iterable[Record]) -> list[Line]:
    """Return one line for each group and arm, in the order in which they were recorded."""
    found: dict[tuple[Group, str], dict[str, list[float]]] = {}
    runs: dict[tuple[Group, str], int | None] = {}
    for record in records:
        group, arm = _place_of(record)
        found.setdefault((group, arm), {}).setdefault(record.metric, []).extend(record.values)
        runs[group, arm] = None if group.keys is None else int(str(record.env.get("runs", 1)))
    return [Line(group, arm, metrics, runs[group, arm]) for (group, arm), metrics in found.items()]


def _place_of(record: Record) -> tuple[Group, str]:
    """Return the group of a record, and its arm as tables show it."""
    case = record.case
    if case["op"] not in OPS:
        pattern, busy = str(case.get("pattern", "")), bool(case.get("busy", False))
        group = Group(str(case["op"]), 0, None, None, int(str(case["keys"])), pattern, busy)
        return group, label_of(record.arm, str(case["mode"]))
    jobs, chunks_per_job, threads = case["jobs"], case["chunks_per_job"], case["threads"]
    group = Group(
        op=str(case["op"]),
        chunk_bytes=int(str(case["chunk_bytes"])),
        shape=None if jobs is None else Shape(int(str(jobs)), int(str(chunks_per_job))),
        threads=None if threads is None else int(str(threads)),
    )
    return group, arm_label(record.arm, str(case["io"]))


def ratio(line: Line, base: Line | None, metric: str) -> float | None:
    """Return a line's median by the base's, None where either is missing or the base is 0."""
    if base is None:
        return None
    own, other = line.median(metric), base.median(metric)
    return own / other if own is not None and other else None


def grids(lines: Sequence[Line]) -> list[Grid]:
    """Return the tables of what moved chunks; those without lines are left out."""
    lines = [line for line in lines if line.group.op in OPS]
    jobs = [line for line in lines if "victim_gap_us" not in line.metrics]
    victims = [line for line in lines if "victim_gap_us" in line.metrics]
    found = [_job_grid(op, [line for line in jobs if line.group.op == op]) for op in (STORE, LOAD, MIXED)]
    found.append(_victim_grid(victims))
    return [grid for grid in found if grid.rows]


def _grouped(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines by group, small chunks first; the disk's limit is a group of its own."""
    groups: dict[Group, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line.group.chunk_bytes, line.group.shape is not None)):
        groups.setdefault(line.group, []).append(line)
    return list(groups.values())


def _job_grid(op: str, lines: Sequence[Line]) -> Grid:
    columns = ["case", "arm", "GB/s", "x fs", "x fio", "CPU us", "x fs", "job p50 ms", "x fs", "p99 ms"]
    columns += ["idle p99 ms", "p99 / idle"] if op == MIXED else ["calls"]
    limits = {line.group.chunk_bytes: line for line in lines if line.group.is_limit}
    rows: list[list[str]] = []
    for members in _grouped(lines):
        base = next((line for line in members if line.arm == STOCK.name), None)
        for line in members:
            limit = limits.get(line.group.chunk_bytes)
            row = [
                line.group.text,
                line.arm,
                _number(line.median("gb_per_s")),
                _number(ratio(line, base, "gb_per_s")),
                _number(ratio(line, limit, "gb_per_s")),
                _number(line.median("cpu_us_per_chunk")),
                _number(ratio(line, base, "cpu_us_per_chunk")),
                _number(line.median("job_latency_ms")),
                _number(ratio(line, base, "job_latency_ms")),
                _number(line.percentile("job_latency_ms", _P99)),
            ]
            rows.append(row + (_mixed_cells(line) if op == MIXED else [_calls_cell(line)]))
    title = {STORE: "Store", LOAD: "Load", MIXED: "Loads while a backlog of stores drains"}[op]
    return Grid(f"{title} (medians; CPU time and system calls of a chunk)", columns, rows, 2)


def _calls_cell(line: Line) -> str:
    return _number(line.median("syscalls_per_chunk"))


def _mixed_cells(line: Line) -> list[str]:
    idle = line.percentile("job_latency_idle_ms", _P99)
    busy = line.percentile("job_latency_ms", _P99)
    return [_number(idle), _number(busy / idle if busy is not None and idle else None)]


def _victim_grid(lines: Sequence[Line]) -> Grid:
    columns = ["case", "arm", "idle p50", "idle p99.9", "busy p50", "busy p99.9", "p99.9 / idle", "ticks"]
    rows: list[list[str]] = []
    for members in _grouped(lines):
        for line in members:
            idle = line.percentile("victim_gap_idle_us", _P99_9)
            busy = line.percentile("victim_gap_us", _P99_9)
            rows.append(
                [
                    f"{line.group.op} {line.group.text}",
                    line.arm,
                    _number(line.median("victim_gap_idle_us")),
                    _number(idle),
                    _number(line.median("victim_gap_us")),
                    _number(busy),
                    _number(busy / idle if busy is not None and idle else None),
                    str(len(line.metrics["victim_gap_us"])),
                ]
            )
    return Grid("Gaps of a ticking Python thread, us", columns, rows, 2)


def _number(value: float | None) -> str:
    """Return a figure with three significant digits, whole from 100 on."""
    if value is None:
        return _NONE
    if abs(value) >= 100:  # noqa: PLR2004  three digits
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"  # noqa: PLR2004


def brief(lines: Sequence[Line]) -> str:
    """Return a case in one line: each arm's CPU time and throughput, and the ratio of its CPU to `fs`."""
    parts = []
    base = next((line for line in lines if line.arm == STOCK.name), None)
    for line in lines:
        if line.group.op not in OPS:
            continue
        if "victim_gap_us" in line.metrics:
            parts.append(f"{line.arm} p99.9 {_number(line.percentile('victim_gap_us', _P99_9))} us")
            continue
        by = ratio(line, base, "cpu_us_per_chunk")
        times = f" (x {by:.2f})" if by is not None and line is not base else ""
        cpu = _number(line.median("cpu_us_per_chunk"))
        parts.append(f"{line.arm} {_number(line.median('gb_per_s'))} GB/s, {cpu} us CPU{times}")
    return "; ".join(parts)
