"""Judge an accuracy run from its records alone: each pass beside the baseline, and each control."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.accuracy import comparison
from harness.accuracy.asking import SUITE
from harness.accuracy.comparison import Comparison, Limits
from harness.accuracy.plan import GRADED, OFF, ON
from harness.arms import ARMS, BASELINE
from harness.checks import Check, Table
from harness.plan import COLD, DAMAGED, WARM
from harness.records import Record
from harness.verdicts import INVALID, PASS, REGRESSION, worst

_GRADED: Final = "graded scores"
_RIGHT_OR_WRONG: Final = "right or wrong"
_ANSWERS: Final = "greedy answers"


@dataclass(frozen=True)
class Judged:
    """One pass of one arm beside the baseline.

    Attributes:
        arm: Name of the arm.
        phase: COLD, WARM or DAMAGED.
        checksums: ON where the tier verified what it read.
        repetition: The number of the pass among those of its kind.
        comparisons: One a kind of score and one for the greedy answers; none where `problem` is not "".
        problem: Why the pass proves nothing.
    """

    arm: str
    phase: str
    checksums: str
    repetition: int
    comparisons: Sequence[Comparison]
    problem: str = ""

    @property
    def verdict(self) -> str:
        """The worst of the comparisons' verdicts."""
        if self.problem:
            return INVALID
        return worst(each.verdict for each in self.comparisons)


@dataclass(frozen=True)
class Outcome:
    """What a run has shown.

    Attributes:
        passes: Each pass that was not damaged.
        damaged: Each one that was.
        controls: What the damaged ones must have shown, and what else makes a run worthless.
    """

    passes: Sequence[Judged]
    damaged: Sequence[Judged]
    controls: Sequence[Check]

    @property
    def verdict(self) -> str:
        """Of the whole run: without a control that fails where it must, no PASS means anything."""
        if not self.controls or not all(control.passed for control in self.controls):
            return INVALID
        return worst(judged.verdict for judged in self.passes)


def evaluate(records: Sequence[Record], limits: Limits) -> Outcome:
    """Return the verdicts that the records call for; of several runs the last one's."""
    mine = _last_run([record for record in records if record.suite == SUITE])
    table = Table(mine)
    keys = dict.fromkeys(
        (record.arm, record.phase, str(record.case.get("checksums")), int(str(record.case.get("repetition"))))
        for record in mine
        if record.arm != BASELINE
    )
    judged = [_judge(table, *key, limits) for key in keys]
    passes = [each for each in judged if each.phase != DAMAGED]
    damaged = [each for each in judged if each.phase == DAMAGED]
    controls = list(_controls(table, damaged))
    must_fail = sum(each.checksums == OFF for each in damaged)
    controls.append(
        Check("a control without checksums was made", must_fail > 0, f"{must_fail} passes must fail the gate")
    )
    power = min(table.values("control_power"), default=0.0)
    controls.append(
        Check(
            "damage is likely enough to fail the gate",
            power >= limits.least_power,
            f"probability {power:.4f}, {limits.least_power:g} is the least; more documents make it likelier",
        )
    )
    for arm in dict.fromkeys(record.arm for record in mine if record.arm != BASELINE):
        controls += _complete(table, arm, judged)
    return Outcome(passes, damaged, controls)


def _judge(table: Table, arm: str, phase: str, checksums: str, repetition: int, limits: Limits) -> Judged:
    case = {"arm": arm, "phase": phase, "checksums": checksums, "repetition": repetition}
    prefix = "control_" if phase == DAMAGED else ""
    groups: dict[str, tuple[list[float], list[float]]] = {}
    identical: list[float] = []
    problems = []
    for baseline in table.select("accuracy", arm=BASELINE):
        task = str(baseline.case["task"])
        scores = _only(table.select(f"{prefix}accuracy", task=task, **case))
        if scores is None or scores.case["inputs"] != baseline.case["inputs"]:
            problems.append(
                f"{task}: " + ("no scores" if scores is None else "other documents than the baseline")
            )
            continue
        before, after = groups.setdefault(_group_of(task), ([], []))
        before += baseline.values
        after += scores.values
        same = _only(table.select(f"{prefix}answers_identical", task=task, **case))
        identical += same.values if same else ()
    if not groups and not problems:
        problems.append("the baseline has no scores")
    if not identical and not problems:
        problems.append("no answers were compared")
    problems += _unproven(table, phase, case, limits)
    if problems:
        return Judged(arm, phase, checksums, repetition, (), "; ".join(problems))
    comparisons = [
        (comparison.graded if name == _GRADED else comparison.right_or_wrong)(name, before, after, limits)
        for name, (before, after) in groups.items()
    ]
    comparisons.append(comparison.answers(_ANSWERS, identical, limits))
    return Judged(arm, phase, checksums, repetition, comparisons)


def _group_of(task: str) -> str:
    """Return which scores are judged together: the second way to score a document is no second document."""
    if task in GRADED:
        return _GRADED
    return task if task.endswith(", strict") else _RIGHT_OR_WRONG


def _unproven(table: Table, phase: str, case: Mapping[str, object], limits: Limits) -> Iterator[str]:
    """Say why nothing is proved about the disk, if so."""
    if phase != WARM:
        return
    read, host, computed = (
        sum(table.values(metric, **case))
        for metric in ("tier_hit_tokens", "host_hit_tokens", "computed_tokens")
    )
    if read <= 0 or read < limits.least_from_disk * (read + host + computed):
        yield (
            f"{read:,.0f} of {read + host + computed:,.0f} prompt tokens came from disk, "
            f"{limits.least_from_disk:.0%} are the least"
        )
    if found := sum(table.values("damaged_chunks", **case)):
        yield f"{found:,.0f} chunks were damaged, and nobody had damaged them"


def _controls(table: Table, damaged: Sequence[Judged]) -> Iterator[Check]:
    """Damage must fail the gate where nothing verifies; where something does, be found and change nothing."""
    for judged in damaged:
        case = {
            "arm": judged.arm,
            "phase": DAMAGED,
            "checksums": judged.checksums,
            "repetition": judged.repetition,
        }
        files, found, read = (
            sum(table.values(f"control_{metric}", **case))
            for metric in ("damaged_files", "damaged_chunks", "tier_hit_tokens")
        )
        verdict = f"{judged.verdict}{f' ({judged.problem})' if judged.problem else ''}"
        which = f"{judged.arm}, checksums {judged.checksums}"
        if judged.checksums == ON:
            yield Check(
                f"{which}: damage is found, and the gate passes",
                judged.verdict == PASS and found > 0,
                f"{verdict}; {found:.0f} chunks found damaged, of {files:.0f}",
            )
        else:
            yield Check(
                f"{which}: damage fails the gate",
                judged.verdict == REGRESSION and files > 0 and read > 0,
                f"{verdict}; {files:.0f} chunks damaged, {read:,.0f} tokens came from disk",
            )


def _complete(table: Table, arm: str, judged: Sequence[Judged]) -> Iterator[Check]:
    """An arm must have been asked cold, warm and damaged, and have run on what its name says."""
    kinds = {(each.phase, each.checksums) for each in judged if each.arm == arm}
    usual = ON if ARMS[arm].engine else OFF
    wanted = {(COLD, usual), (WARM, usual), (DAMAGED, usual)}
    missing = sorted(f"{phase}, checksums {checksums}" for phase, checksums in wanted - kinds)
    if missing:
        yield Check(f"{arm}: all passes were made", False, f"missing: {'; '.join(missing)}")
    expected = ARMS[arm].engine or "extension"
    engines = {
        str(record.env.get("engine"))
        for metric in ("accuracy", "control_accuracy")
        for record in table.select(metric, arm=arm)
    }
    yield Check(
        f"{arm}: runs on its {expected}", engines == {expected}, f"engine: {', '.join(sorted(engines))}"
    )


def tally(outcome: Outcome) -> list[str]:
    """Return how often each kind of pass did what it must, a line an arm and kind."""
    made: Counter[tuple[str, str]] = Counter()
    held: Counter[tuple[str, str]] = Counter()
    for judged in (*outcome.passes, *outcome.damaged):
        if judged.phase == COLD:
            continue
        if judged.phase == WARM:
            kind, holds = "identical: passed", judged.verdict == PASS
        elif judged.checksums == ON:
            kind, holds = "damaged, checksums on: passed", judged.verdict == PASS
        else:
            kind, holds = "damaged, checksums off: failed", judged.verdict == REGRESSION
        made[judged.arm, kind] += 1
        held[judged.arm, kind] += holds
    return [f"{arm}: {kind} {held[arm, kind]} of {count}" for (arm, kind), count in made.items()]


def _last_run(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records from the last time on that the baseline was asked."""
    is_baseline = [record.arm == BASELINE for record in records]
    starts = [
        number
        for number, here in enumerate(is_baseline)
        if here and not any(is_baseline[number - 1 : number])
    ]
    return records[starts[-1] :] if starts else records


def _only(records: Sequence[Record]) -> Record | None:
    return records[0] if len(records) == 1 else None
