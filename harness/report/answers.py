"""Whether answers stayed as right as without a tier: differences document by document."""

import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

from harness import paired
from harness.arms import BASELINE
from harness.plan import COLD
from harness.records import Record, Scalar
from harness.report import model
from harness.report.grid import Grid
from harness.report.model import Kind, Mark, Panel, Picture, Section, Series

# The second of passes whose chunks were damaged on disk on purpose.
_METRICS: Final = ("accuracy", "control_accuracy")
_RESAMPLES: Final = 5000
_TAIL_PERCENT: Final = 2.5
_Pass = tuple[str, str, Scalar, Scalar]


def section(records: Sequence[Record]) -> Section:
    """Return, suite by suite, each task's means and how far each arm is from the baseline."""
    title = "Accuracy"
    found = [record for record in records if record.metric in _METRICS]
    pictures = []
    for suite in dict.fromkeys(record.suite for record in found):
        picture = _picture([record for record in found if record.suite == suite], suite)
        if picture is not None:
            pictures.append(picture)
    if not found:
        return Section(title, missing="No answers were scored: `nox -s accuracy` and `nox -s bench` do.")
    if not pictures:
        return Section(
            title, missing=f"There are scores, and none of the arm `{BASELINE}` to pair them with."
        )
    how = (
        f"Each document's score is compared with the same document's under the arm `{BASELINE}`, which "
        "offloads nothing. Means with overlapping errors are never compared. A drop is below zero. "
        "**damaged** is the control: with chunks damaged on disk, a tier without checksums must drop, one "
        "with them must not."
    )
    return Section(title, [how], pictures)


def _picture(records: Sequence[Record], suite: str) -> Picture | None:
    tasks: dict[str, dict[_Pass, Record]] = {}
    for record in records:
        case = record.case
        # Of passes that were repeated the first, and of several runs the last.
        if not case.get("repetition"):
            place = (record.arm, record.phase, case.get("threads"), case.get("checksums"))
            tasks.setdefault(str(case.get("task")), {})[place] = record
    panels = []
    rows: list[list[str]] = []
    counts = []
    for task, passes in tasks.items():
        baseline = next((record for place, record in passes.items() if place[:2] == (BASELINE, COLD)), None)
        if baseline is None:
            continue
        others = [
            (_name(place), record)
            for place, record in passes.items()
            if record is not baseline and _same_documents(record, baseline)
        ]
        counts.append(len(baseline.values))
        panels.append(Panel(task, [Series(name, [_difference(baseline, record)]) for name, record in others]))
        rows.append([task, BASELINE, str(len(baseline.values)), _mean(baseline), *["-"] * 5])
        rows += [[task, name, *_cells(baseline, record)] for name, record in others]
    panels = [panel for panel in panels if panel.series]
    if not panels:
        return None
    fewest = min(counts)
    spread = (
        f"A mark is the mean difference of {model.span(counts)} documents, the bar its 95 % interval "
        f"(bootstrap of the documents' differences, {_RESAMPLES:,} resamples). An interval without width "
        f"means that no document differs; where {fewest} agree, {1 - 0.05 ** (1 / fewest):.0%} of all may "
        "still differ (95 %)."
    )
    notes = [spread, model.where(records)]
    columns = ("task", "arm and pass", "n", "mean", "difference", "95 %", "worse", "better", "sign test p")
    title = f"Paired differences from {BASELINE}: {suite}"
    return Picture(
        title=title,
        kind=Kind.INTERVALS,
        x_label="mean difference of the score",
        y_label="",
        panels=panels,
        notes=notes,
        table=Grid(title, columns, rows, 2),
    )


def _same_documents(one: Record, other: Record) -> bool:
    same = one.case.get("inputs") == other.case.get("inputs")
    return same and len(one.values) == len(other.values)


def _name(place: _Pass) -> str:
    arm, phase, threads, checksums = place
    more = [phase, f"{threads} threads" if threads else "", f"checksums {checksums}" if checksums else ""]
    return ", ".join([arm, *filter(None, more)])


def _difference(baseline: Record, record: Record) -> Mark:
    differences = np.subtract(record.values, baseline.values)
    means = np.random.default_rng(0).choice(differences, (_RESAMPLES, len(differences))).mean(axis=1)
    low, high = np.percentile(means, [_TAIL_PERCENT, 100 - _TAIL_PERCENT])
    middle = float(differences.mean())
    return Mark(middle, middle, float(low), float(high), count=len(differences))


def _cells(baseline: Record, record: Record) -> list[str]:
    found = paired.compare(baseline.values, record.values)
    each = _difference(baseline, record)
    return [
        str(found.documents),
        _mean(record),
        f"{each.middle:+.3f}",
        f"{each.low:+.3f} to {each.high:+.3f}",
        str(found.worse),
        str(found.better),
        f"{found.p_value:.2g}",
    ]


def _mean(record: Record) -> str:
    return f"{statistics.fmean(record.values):.3f}"
