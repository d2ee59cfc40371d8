"""What a sweep found, from its records: tables, and the checks without which its figures mean nothing."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from harness.arms import ARMS as BENCH_ARMS
from harness.arms import BASELINE, DRAM
from harness.checks import Check, Table
from harness.plan import COLD, HOST, WARM
from harness.records import Record
from harness.report import Grid
from harness.sweep.scenario import ARMS

FILE_NAME: Final = "sweep.md"
_LABELS: Final = ("arm", "threads", "streams", "phase")
_NOTHING: Final = "-"
# The kernel counts what a server read itself; of what the tier delivered that must be most, or it was cached.
_FROM_STORAGE_MIN: Final = 0.5
Case = dict[str, object]


def evaluate(records: Sequence[Record]) -> list[Check]:
    """Return every check that the records call for, in the order of a report."""
    checks = []
    for scenario in _scenarios(records):
        table = Table([record for record in records if record.case["scenario"] == scenario])
        legs = _legs(table)
        checks.append(_same_inputs(table, scenario))
        for leg in legs:
            if ARMS[str(leg["arm"])].offloads:
                where = f"{scenario}: {_where(leg)}"
                checks += [_engine(table, leg, where), _hit(table, leg, where), _read(table, leg, where)]
                checks += [_jobs_succeeded(table, leg, where)]
    return checks or [Check("something was measured", False, "there is no record of a sweep")]


def grids(records: Sequence[Record]) -> list[Grid]:
    """Return two tables for each scenario: what requests saw, and what the disk did."""
    found = []
    for scenario in _scenarios(records):
        table = Table([record for record in records if record.case["scenario"] == scenario])
        scale = table.select("requests_per_s")[0].case["scale"]
        found += [_speed(table, f"{scenario}, scale {scale:g}"), _disk(table, f"{scenario}, scale {scale:g}")]
    return found


def markdown(records: Sequence[Record], checks: Sequence[Check]) -> str:
    """Return tables and checks as a page."""
    parts = ["# Sweep"]
    for grid in grids(records):
        parts += [f"## {grid.title}", grid.markdown()]
    parts += ["## Checks", "\n".join(f"- {line(check)}" for check in checks)]
    return "\n\n".join(parts) + "\n"


def line(check: Check) -> str:
    """Return a check in one line."""
    return f"{'ok' if check.passed else 'FAILED'}: {check.name} ({check.detail})"


def _speed(table: Table, title: str) -> Grid:
    rows = []
    for case in _cases(table):
        turns = sorted({int(str(record.case["turn"])) for record in table.select("ttft_ms", **case)})
        later = [value for turn in turns[1:] for value in table.values("ttft_ms", turn=turn, **case)]
        rows.append(
            [
                *_labels(case),
                _mean(table.values("requests_per_s", **case), 2),
                _mean(table.values("output_tokens_per_s", **case), 1),
                _mean(table.values("total_tokens_per_s", **case), 0),
                _median(table.values("ttft_ms", turn=1, **case)),
                _median(later),
                _median(table.values("request_latency_ms", **case)),
                _median(table.values("inter_token_latency_ms", **case)),
            ]
        )
    columns = (*_LABELS, "req/s", "out tok/s", "tok/s", "TTFT 1", "TTFT 2+", "latency", "ITL")
    return Grid(f"{title}: speed (medians in ms; TTFT 1: of first turns)", columns, rows, len(_LABELS))


def _disk(table: Table, title: str) -> Grid:
    sources = ("computed_tokens", "host_hit_tokens", "tier_hit_tokens")
    samples = ("disk_read_mb_per_s", "disk_write_mb_per_s", "disk_busy_percent")
    rows = [
        [
            *_labels(case),
            *(_mean(table.values(metric, **case), 0) for metric in sources),
            _megabytes(table.values("storage_read_bytes", **case)),
            *(_mean(table.values(metric, **case), 0) for metric in samples),
            _megabytes(table.values("disk_used_bytes", **case)[-1:]),
        ]
        for case in _cases(table)
    ]
    columns = (*_LABELS, "computed", "host", "disk", "MB", "read", "write", "busy", "used")
    title = (
        f"{title}: where prompt tokens came from, MB that the server read from storage, the device's MB/s "
        "and busy %, MB of the tier's directory at the end"
    )
    return Grid(title, columns, rows, len(_LABELS))


def _same_inputs(table: Table, scenario: str) -> Check:
    """All arms and phases must have been asked the same."""
    inputs: dict[object, set[object]] = {}
    for record in table.select("requests_per_s"):
        inputs.setdefault(record.case["streams"], set()).add(record.case["inputs"])
    differing = [f"with {streams} streams" for streams, seen in inputs.items() if len(seen) > 1]
    detail = f"prompts differ {', '.join(differing)}" if differing else f"{len(inputs)} sets of prompts"
    return Check(f"{scenario}: every arm and phase was asked the same", not differing, detail)


def _engine(table: Table, leg: Case, where: str) -> Check:
    expected = ARMS[str(leg["arm"])].engine or "extension"
    engines = sorted({str(record.env.get("engine")) for record in table.select("requests_per_s", **leg)})
    return Check(f"{where}: runs on its {expected}", engines == [expected], f"engine: {', '.join(engines)}")


def _hit(table: Table, leg: Case, where: str) -> Check:
    """By vLLM's own count, each warm phase must have had tokens from the disk tier."""
    name = f"{where}: warm tokens came from the disk tier"
    found = table.select("tier_hit_tokens", phase=WARM, **leg)
    without = [f"with {_streams(record)}" for record in found if sum(record.values) <= 0]
    if not found or without:
        return Check(name, False, f"none {', '.join(without)}" if without else "no warm phase was measured")
    return Check(name, True, f"{sum(sum(record.values) for record in found):,.0f} tokens")


def _read(table: Table, leg: Case, where: str) -> Check:
    """By the kernel's count, the server must have read from storage most of what the tier delivered."""
    name = f"{where}: warm bytes were read from storage"
    details = []
    passed = True
    for record in table.select("tier_read_bytes", phase=WARM, **leg):
        delivered = sum(record.values)
        read = sum(table.values("storage_read_bytes", phase=WARM, streams=record.case["streams"], **leg))
        passed = passed and delivered > 0 and read >= _FROM_STORAGE_MIN * delivered
        details.append(f"{_streams(record)}: {read / 1e6:,.0f} of {delivered / 1e6:,.0f} MB")
    return Check(name, passed and bool(details), "; ".join(details) or "no warm phase was measured")


def _jobs_succeeded(table: Table, leg: Case, where: str) -> Check:
    counts = table.values("tier_failed_jobs", **leg)
    detail = f"{sum(counts):.0f} failed" if counts else "not counted"
    return Check(f"{where}: no promotion and no cascade failed", bool(counts) and sum(counts) == 0, detail)


def _scenarios(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(str(record.case["scenario"]) for record in records))


def _legs(table: Table) -> list[Case]:
    """Return arm and threads of every leg, in the order of the arms."""
    found = {
        (record.arm, int(str(record.case["threads"])), int(str(record.case["write_threads"])))
        for record in table.select("requests_per_s")
    }
    order = [BASELINE, DRAM.name, *BENCH_ARMS]
    legs = sorted(found, key=lambda leg: (order.index(leg[0]), *leg[1:]))
    return [{"arm": arm, "threads": read, "write_threads": write} for arm, read, write in legs]


def _cases(table: Table) -> Iterator[Case]:
    """Yield every case that was measured, in the order of a table's rows."""
    for leg in _legs(table):
        found = table.select("requests_per_s", **leg)
        for streams in sorted({int(str(record.case["streams"])) for record in found}):
            phases = {record.phase for record in found if record.case["streams"] == streams}
            yield from ({**leg, "streams": streams, "phase": p} for p in (COLD, HOST, WARM) if p in phases)


def _labels(case: Mapping[str, object]) -> list[str]:
    return [str(case["arm"]), _threads(case) or _NOTHING, str(case["streams"]), str(case["phase"])]


def _threads(case: Mapping[str, object]) -> str:
    read, write = case["threads"], case["write_threads"]
    if not read:
        return ""
    return str(read) if read == write else f"{read}/{write}"


def _where(leg: Mapping[str, object]) -> str:
    return f"{leg['arm']}, {_threads(leg)} threads"


def _streams(record: Record) -> str:
    count = record.case["streams"]
    return f"{count} stream{'' if count == 1 else 's'}"


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):,.{digits}f}" if values else _NOTHING


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f}" if values else _NOTHING


def _megabytes(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values) / 1e6:,.0f}" if values else _NOTHING
