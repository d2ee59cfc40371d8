"""What chunks and lookups cost: what `micro` measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from harness.micro import lookup_summary, summary
from harness.micro.arms import FIO, STOCK
from harness.micro.cases import LOAD, LOOKUP, OPS, STORE, SUITE, size_text
from harness.micro.lookup_cases import HALF, HIT, MISS
from harness.micro.summary import Line
from harness.records import Record
from harness.report import model
from harness.report.model import Kind, Mark, Panel, Picture, Section, Series

_MOVING: Final = (
    ("cpu_us_per_chunk", "CPU time a chunk", "CPU time a chunk, µs"),
    ("gb_per_s", "Throughput", "throughput, GB/s"),
)
_LOOKING: Final = (
    ("scheduler_cpu_ns_per_key", "The scheduler's CPU time a key", "CPU time a key, ns"),
    ("verdict_wall_ms", "Time until the tier has said which keys are there", "time to the verdict, ms"),
)
_PATTERNS: Final = {HIT: "all keys are there", HALF: "the first half is there", MISS: "none is there"}
_NOT_MEASURED: Final = "`nox -s micro` measures it."


def moving(records: Sequence[Record]) -> Section:
    """Return CPU time and throughput of stores and loads by threads, a panel for each size and shape."""
    title = "What a chunk costs"
    mine = [record for record in records if record.suite == SUITE]
    lines = [line for line in summary.lines_of(mine) if line.group.op in OPS]
    pictures = []
    for op, verb in ((STORE, "stores"), (LOAD, "loads")):
        of_op = [line for line in lines if line.group.op == op and line.group.shape is not None]
        for metric, heading, label in _MOVING:
            picture = _picture(
                [line for line in of_op if metric in line.metrics],
                metric,
                lambda line: f"{size_text(line.group.chunk_bytes)}, jobs {line.group.shape}",
                lambda line: float(line.group.threads or 0),
            )
            if picture is not None:
                notes = [*model.curve_notes(picture.panels, "run"), model.where(mine)]
                filled = replace(
                    picture,
                    title=f"{heading}, {verb}",
                    x_label="read and write threads",
                    y_label=label,
                    x_word="threads",
                    notes=notes,
                )
                pictures.append(replace(filled, table=model.curve_table(filled, "threads")))
    grids = summary.grids(lines)
    if not pictures and not grids:
        return Section(title, missing=f"No chunk was moved without a model: {_NOT_MEASURED}")
    limit = (
        f"The disk's own limit ({FIO.name}, 16 requests deep, one file) is in the tables, if it was measured."
    )
    return Section(title, [limit], pictures, grids)


def looking(records: Sequence[Record]) -> Section:
    """Return what lookups cost by the prompt's length, a panel for each pattern, idle and busy."""
    title = "What a lookup costs"
    mine = [record for record in records if record.suite == SUITE]
    lines = [line for line in summary.lines_of(mine) if line.group.op not in OPS]
    lookups = [line for line in lines if line.group.op == LOOKUP]
    pictures = []
    for metric, heading, label in _LOOKING:
        picture = _picture(
            [line for line in lookups if metric in line.metrics],
            metric,
            lambda line: (
                f"{_PATTERNS.get(line.group.pattern, line.group.pattern)}, "
                f"{'beside 32 jobs' if line.group.busy else 'idle'}"
            ),
            lambda line: float(line.group.keys or 0),
        )
        if picture is not None:
            notes = [*model.curve_notes(picture.panels, "prompt"), model.where(mine)]
            filled = replace(
                picture,
                title=heading,
                x_label="keys of the prompt",
                y_label=label,
                x_word="keys",
                notes=notes,
                logarithmic=True,
            )
            pictures.append(replace(filled, table=model.curve_table(filled, "keys")))
    grids = lookup_summary.grids(lines)
    if not pictures and not grids:
        return Section(title, missing=f"No key was looked up without a model: {_NOT_MEASURED}")
    return Section(title, (), pictures, grids)


def _picture(
    lines: Sequence[Line], metric: str, title: Callable[[Line], str], where: Callable[[Line], float]
) -> Picture | None:
    """Return the panels of a metric; its words are for the caller to fill in."""
    panels: dict[str, dict[str, list[Mark]]] = {}
    for line in sorted(lines, key=lambda line: (line.group.chunk_bytes, where(line))):
        marks = panels.setdefault(title(line), {}).setdefault(line.arm, [])
        marks.append(model.mark(where(line), line.metrics[metric]))
    if not panels:
        return None
    drawn = [
        Panel(name, [Series(arm, marks) for arm, marks in sorted(arms.items())])
        for name, arms in panels.items()
    ]
    return Picture(metric, Kind.CURVES, "", "", drawn, (), base=STOCK.name)
