"""Show an accuracy run: tables and verdicts on the terminal, and the same in accuracy.md."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console

from harness.accuracy.comparison import Comparison, Limits
from harness.accuracy.verdicts import Judged, Outcome, tally
from harness.checks import Table
from harness.plan import DAMAGED
from harness.records import Record
from harness.report import Grid
from harness.verdicts import PASS

FILE_NAME: Final = "accuracy.md"
_NOTHING: Final = "-"


def comparisons(judged: Sequence[Judged], title: str) -> Grid:
    """Return what was compared in each pass, and the verdict on it."""
    rows = []
    for each in judged:
        where = [
            each.arm,
            each.phase + (f" {each.repetition + 1}" if each.repetition else ""),
            each.checksums,
        ]
        if each.problem:
            rows.append([*where, each.problem, each.verdict, *[_NOTHING] * 6])
        rows += [[*where, *_cells(comparison)] for comparison in each.comparisons]
    columns = (
        "arm",
        "pass",
        "checksums",
        "compared",
        "verdict",
        "docs",
        "worse",
        "better",
        "drop",
        "95 %",
        "allowed",
    )
    return Grid(title, columns, rows, 5)


def _cells(found: Comparison) -> list[str]:
    return [
        found.what,
        found.verdict,
        str(found.documents),
        str(found.worse),
        str(found.better),
        f"{found.effect:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        f"{found.allowed:.3f}",
    ]


def scores(records: Sequence[Record]) -> Grid:
    """Return the mean score of each task and pass, and how many greedy answers are the baseline's."""
    table = Table(records)
    rows = []
    for record in (*table.select("accuracy"), *table.select("control_accuracy")):
        if record.case["repetition"]:
            continue
        metric = "control_answers_identical" if record.phase == DAMAGED else "answers_identical"
        keys = ("phase", "checksums", "task", "repetition")
        same = table.values(metric, arm=record.arm, **{key: record.case[key] for key in keys})
        mean = sum(record.values) / len(record.values)
        identical = f"{sum(same):.0f} of {len(same)}" if same else _NOTHING
        where = (record.arm, record.phase, str(record.case["checksums"]), str(record.case["task"]))
        rows.append([*where, str(len(record.values)), f"{mean:.3f}", identical])
    columns = ("arm", "pass", "checksums", "task", "docs", "mean score", "same answer")
    return Grid("Scores (what decides is the comparison document by document)", columns, rows, 4)


def conclusion(outcome: Outcome) -> str:
    """Return the sentence that the exit status stands for."""
    failed = [control for control in outcome.controls if not control.passed]
    if failed:
        return (
            f"{outcome.verdict}: {len(failed)} of {len(outcome.controls)} controls did not do what they must."
        )
    others = [judged for judged in outcome.passes if judged.verdict != PASS]
    if others:
        return f"{outcome.verdict}: {len(others)} of {len(outcome.passes)} passes did not pass the gate."
    return f"{PASS}: {len(outcome.passes)} passes pass the gate, all {len(outcome.controls)} controls hold."


def _lines(outcome: Outcome, repetitions: int) -> Iterator[str]:
    for judged in outcome.passes:
        which = f"{judged.arm}, {judged.phase}"
        yield f"{judged.verdict}  {which}: {judged.problem or _methods(judged)}"
    for control in outcome.controls:
        yield f"{'held' if control.passed else 'FAILED'}  {control.name} ({control.detail})"
    if repetitions > 1:
        yield from tally(outcome)


def _methods(judged: Judged) -> str:
    return "; ".join(
        f"{each.what}: {each.worse} of {each.documents} "
        f"{'differ' if each.what.startswith('greedy') else f'worse, {each.better} better'} ({each.method})"
        for each in judged.comparisons
    )


def print_result(console: Console, records: Sequence[Record], outcome: Outcome, repetitions: int) -> None:
    """Draw the tables and the verdicts."""
    console.print()
    for grid in _grids(records, outcome):
        grid.print(console)
    for line in _lines(outcome, repetitions):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(conclusion(outcome), markup=False, highlight=False, style="bold")


def markdown(
    records: Sequence[Record], outcome: Outcome, limits: Limits, notes: Sequence[str], repetitions: int
) -> str:
    """Return the whole report."""
    allowed = (
        f"Allowed: a mean score lower by {limits.allowed_drop:g}, {limits.allowed_differing:.0%} of the "
        f"greedy answers another text; bounds are one-sided at {limits.confidence:.0%}. PASS needs the whole "
        "interval inside."
    )
    parts = ["# kvfs accuracy", conclusion(outcome), allowed, *notes]
    for grid in _grids(records, outcome):
        parts += [f"## {grid.title}", grid.markdown()]
    parts += ["## Verdicts and controls", "\n".join(f"- {line}" for line in _lines(outcome, repetitions))]
    return "\n\n".join(parts) + "\n"


def _grids(records: Sequence[Record], outcome: Outcome) -> list[Grid]:
    return [
        scores(records),
        comparisons(outcome.passes, "Gate: each pass beside the arm none"),
        comparisons(outcome.damaged, "Control: chunks damaged on disk (must fail with checksums off)"),
    ]
