"""What the gates say of the records: each suite's own judge is asked, and nothing is decided here.

A new suite's judge becomes a function here and a line in `JUDGES`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness import checks
from harness.accuracy import report as accuracy_report
from harness.accuracy import verdicts as accuracy_verdicts
from harness.accuracy.comparison import read_limits
from harness.checks import Check
from harness.gate import judge as gate_judge
from harness.gate import sample as gate_sample
from harness.gate import text as gate_text
from harness.micro import gates, summary
from harness.micro.cases import SUITE as MICRO
from harness.records import Record
from harness.report.grid import Grid
from harness.report.model import UNREADABLE, Section
from harness.sweep import summary as sweep_summary
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

FAIL: Final = "FAIL"
# The worst first: what a page should say first.
ORDER: Final = (INVALID, REGRESSION, FAIL, INCONCLUSIVE, PASS)


@dataclass(frozen=True)
class Judged:
    """What a suite's judge says.

    Attributes:
        answers: How often it gave each answer.
        grids: The verdicts; a row that passes may stand for several.
    """

    answers: Mapping[str, int]
    grids: Sequence[Grid]

    def sentence(self, suite: str) -> str:
        """Return the answers in figures."""
        known = [answer for answer in ORDER if self.answers.get(answer)]
        counts = ", ".join(f"{self.answers[answer]} {answer}" for answer in known)
        return f"{suite}: {counts or 'no gate makes a demand on what was measured'}"


Judge = Callable[[Sequence[Record]], Judged]


def _claims(title: str, found: Sequence[Check]) -> Judged:
    """Return what checks say, which hold or do not."""
    answers = [PASS if check.passed else FAIL for check in found]
    rows = [[answer, check.name, check.detail] for answer, check in zip(answers, found, strict=True)]
    return Judged(Counter(answers), [Grid(title, ("answer", "claim", "figures"), rows, 3)])


def _bench(records: Sequence[Record]) -> Judged:
    return _claims("Checks of bench", checks.evaluate(records))


def _micro(records: Sequence[Record]) -> Judged:
    lines = summary.lines_of(records)
    verdicts = gates.judge(
        gates.only_measured(gates.read(suite=gates.suite_of(lines)), lines), lines, _unproven(records)
    )
    return Judged(Counter(verdict.answer for verdict in verdicts), [gates.grid(verdicts)])


def _unproven(records: Sequence[Record]) -> list[str]:
    """Return the cases of records whose bytes may not have passed the device, by their own word."""
    found = []
    for record in records:
        facts = record.env.get("page_cache")
        if isinstance(facts, Mapping) and facts.get("proven") is False:
            found += [f"{line.arm}, {line.group.text}" for line in summary.lines_of([record])]
    return found


def _sweep(records: Sequence[Record]) -> Judged:
    return _claims("Checks of sweep", sweep_summary.evaluate(records))


def _accuracy(records: Sequence[Record]) -> Judged:
    outcome = accuracy_verdicts.evaluate(records, read_limits())
    controls = _claims("Controls of accuracy", outcome.controls)
    passes = accuracy_report.comparisons(outcome.passes, "Gate: each pass beside the arm none")
    damaged = accuracy_report.comparisons(outcome.damaged, "Control: chunks damaged on disk")
    # One answer for the run: passes mean nothing without their controls.
    return Judged({outcome.verdict: 1}, [passes, damaged, *controls.grids])


def _gate(records: Sequence[Record]) -> Judged:
    """Judge each comparison by itself; the lines shown are the last one's."""
    rules = gate_judge.read_rules()
    answers: list[str] = []
    told = []
    lines: list[Grid] = []
    for number, some in sorted(gate_sample.comparisons(records).items()):
        verdict = gate_judge.judge(some, rules)
        planned = rules.planned_in(some)
        answers.append(verdict.answer)
        told.append([verdict.answer, str(number), gate_text.paragraph(some, verdict, planned)])
        lines = [gate_text.grid(verdict, planned)]
    columns = ("answer", "comparison", "what was compared, and what came of it")
    return Judged(Counter(answers), [Grid("Gate of revisions", columns, told, len(columns)), *lines])


JUDGES: Final[Mapping[str, Judge]] = {
    "bench": _bench,
    "sweep": _sweep,
    "accuracy": _accuracy,
    MICRO: _micro,
    "gate": _gate,
}


def judge(records: Sequence[Record]) -> dict[str, Judged]:
    """Return what each suite's judge says of its records; records that it cannot read are INVALID."""
    found = {}
    for suite, ask in JUDGES.items():
        mine = [record for record in records if record.suite == suite]
        if not mine:
            continue
        try:
            found[suite] = ask(mine)
        except UNREADABLE as error:
            # A file that somebody else wrote or edited: no PASS comes of it, and the rest is still shown.
            why = f"its records are not what {suite} writes ({type(error).__name__}: {error})"
            found[suite] = Judged({INVALID: 1}, [Grid(suite, ("answer", "why"), [[INVALID, why]], 2)])
    return found


def _worst_first(grid: Grid) -> Grid:
    """Return a table with its answers in the first column, where a phone shows them, and the worst on top."""
    places = [index for row in grid.rows for index, cell in enumerate(row) if cell in ORDER]
    if not places:
        return grid
    place = places[0]

    def moved(cells: Sequence[str]) -> list[str]:
        return [cells[place], *cells[:place], *cells[place + 1 :]]

    def badness(row: Sequence[str]) -> int:
        return ORDER.index(row[0]) if row[0] in ORDER else len(ORDER)

    return Grid(grid.title, moved(grid.columns), sorted(map(moved, grid.rows), key=badness), grid.labels)


def section(judged: Mapping[str, Judged]) -> Section:
    """Return the verdicts of all suites."""
    title = "Verdicts"
    if not judged:
        return Section(title, missing="No gate makes a demand on these suites.")
    answers = (
        "Only PASS passes. REGRESSION: it got worse, or is worse than the gate allows, and chance does not "
        "explain it. INCONCLUSIVE: more runs would tell. INVALID: something is missing, such as the proof "
        "that the disk was read. FAIL: what was claimed does not hold."
    )
    counts = "; ".join(each.sentence(suite) for suite, each in judged.items())
    grids = [_worst_first(grid) for each in judged.values() for grid in each.grids if grid.rows]
    return Section(title, [answers, f"{counts}."], grids=grids)
