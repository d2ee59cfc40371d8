"""Judge a comparison from its records: PASS, REGRESSION, INCONCLUSIVE or INVALID, and what more would tell.

The unit is a block: two fresh processes on fresh directories, so that what changes from process to process
is part of the error. Its estimate of a line is the median of the log ratios of its pairs of bursts, and the
line's effect is the mean over blocks, with Student's t. Holm's correction over all lines bounds how often two
equal wheels are called a REGRESSION; PASS needs every line to pass by itself, which needs no correction (an
intersection-union test). When to look is fixed before, and each look has its share of the error.
"""

import math
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy import stats

from harness.gate import sample
from harness.gate.cases import BASE, CASES, HEAD, METRICS, SUITE
from harness.gate.sample import Line
from harness.records import Record
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION, worst

FILE: Final = Path(__file__).resolve().parents[1] / "gates.toml"
# More blocks than this nobody will run.
_BLOCKS_MAX: Final = 1000


@dataclass(frozen=True)
class Rules:
    """The thresholds of gates.toml.

    Attributes:
        at_most: Of each metric, what head may take of base.
        looks: After how many blocks a verdict is tried; the last is the longest run.
        regression_error: How often equal wheels may be called a REGRESSION, in a whole comparison.
        pass_error: How often a line at its threshold may pass.
        spread_max: Standard deviation of a line's log ratios from block to block that is absurd.
    """

    at_most: Mapping[str, float]
    looks: tuple[int, ...]
    regression_error: float
    pass_error: float
    spread_max: float

    @property
    def confidence(self) -> float:
        """Of the interval that has to lie inside the threshold, both sides."""
        return 1 - 2 * self.pass_error / len(self.looks)

    def planned_in(self, records: Sequence[Record]) -> "Rules":
        """Return the rules with the looks that were planned before these records were measured."""
        planned = records[0].env.get("looks") if records else None
        return replace(self, looks=tuple(planned)) if isinstance(planned, list | tuple) else self


@dataclass(frozen=True)
class Effect:
    """One line: what changed, and what that amounts to.

    Attributes:
        line: Which.
        answer: PASS, REGRESSION, INCONCLUSIVE or INVALID.
        ratio: Head to base.
        low: The interval's lower end,
        high: and its upper one.
        at_most: The threshold.
        p_value: How often equal wheels show as much in any line, by Holm's correction.
        spread: Standard deviation of the blocks' log ratios.
        base_us: Median of base, microseconds an op.
        more_blocks: How many more would decide it if nothing else changes; None if none would.
    """

    line: Line
    answer: str
    ratio: float
    low: float
    high: float
    at_most: float
    p_value: float
    spread: float
    base_us: float
    more_blocks: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What a comparison comes to.

    Attributes:
        answer: The worst of its lines, or INVALID.
        blocks: How many blocks it is drawn from.
        effects: The lines.
        problems: Why it is INVALID.
        final: Whether more blocks cannot change it: it is decided, or the run was as long as may be.
    """

    answer: str
    blocks: int
    effects: Sequence[Effect]
    problems: Sequence[str]
    final: bool


@dataclass(frozen=True)
class _Contrast:
    """A difference of logs, its standard error, and degrees of freedom."""

    mean: float
    error: float
    freedom: float
    spread: float
    base_us: float


_Contrasts = Callable[[Line, int], _Contrast]


def read_rules(path: Path = FILE) -> Rules:
    """Return the rules of gates.toml."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))[SUITE]
    return Rules(**{**table, "looks": tuple(table["looks"])})


def expected_lines() -> list[Line]:
    """Return what every comparison measures."""
    return [Line(case.op, case.chunk_bytes, metric) for case in CASES for metric in METRICS]


def judge(records: Sequence[Record], rules: Rules) -> Verdict:
    """Return the verdict on one comparison of two arms that ran in turns.

    Args:
        records: Of this comparison alone.
        rules: The thresholds.
    """
    found = sample.of(records, expected_lines())
    rules = rules.planned_in(records)
    if found.problems:
        return Verdict(INVALID, len(found.blocks), (), found.problems, final=True)
    lines = sorted(found.values)
    ratios = {line: found.log_ratios(line) for line in lines}
    base_us = {line: math.exp(statistics.median(found.log_levels(line, BASE))) for line in lines}

    def contrast(line: Line, blocks: int) -> _Contrast:
        some = ratios[line][:blocks]
        spread = float(np.std(some, ddof=1))
        return _Contrast(
            statistics.fmean(some), spread / math.sqrt(blocks), blocks - 1, spread, base_us[line]
        )

    return _look(lines, len(found.blocks), contrast, rules)


def judge_stored(baseline: Sequence[Record], records: Sequence[Record], rules: Rules) -> Verdict:
    """Return the verdict on two runs at different times: `head` of the one against `head` of the other."""
    before, after = (sample.of(some, expected_lines()) for some in (baseline, records))
    problems = [f"baseline: {text}" for text in before.problems] + after.problems
    if not problems:
        problems = sample.different_machines([*baseline, *records])
    blocks = min(len(before.blocks), len(after.blocks))
    if problems:
        return Verdict(INVALID, blocks, (), problems, final=True)
    lines = sorted(after.values)
    rules = rules.planned_in(records)

    def contrast(line: Line, count: int) -> _Contrast:
        old, new = (each.log_levels(line, HEAD)[:count] for each in (before, after))
        parts = [float(np.var(some, ddof=1)) / count for some in (old, new)]
        # Welch and Satterthwaite.
        freedom = sum(parts) ** 2 / (sum(part**2 for part in parts) or 1.0) * (count - 1)
        return _Contrast(
            statistics.fmean(new) - statistics.fmean(old),
            math.sqrt(sum(parts)),
            max(freedom, 1.0),
            math.sqrt(sum(parts) * count),
            math.exp(statistics.median(old)),
        )

    return _look(lines, blocks, contrast, rules)


def _look(lines: Sequence[Line], blocks: int, contrast: _Contrasts, rules: Rules) -> Verdict:
    """Try a verdict at each look that there are blocks for, until one decides."""
    if blocks < rules.looks[0]:
        text = f"{blocks} whole blocks, {rules.looks[0]} are the least"
        return Verdict(INVALID, blocks, (), [text], final=False)
    verdict = Verdict(INVALID, blocks, (), (), final=True)
    for look in (each for each in rules.looks if each <= blocks):
        effects = _effects({line: contrast(line, look) for line in lines}, look, rules)
        answers = [effect.answer for effect in effects]
        # One line that got worse is enough, whatever the others are too loud to say.
        answer = REGRESSION if REGRESSION in answers else worst(answers)
        problems = [
            f"{effect.line}: absurd spread, {math.expm1(effect.spread):.0%} from block to block"
            for effect in effects
            if effect.answer == INVALID
        ]
        final = answer in {PASS, REGRESSION} or look == rules.looks[-1]
        verdict = Verdict(answer, look, effects, problems, final)
        if final:
            break
    return verdict


def _effects(contrasts: Mapping[Line, _Contrast], blocks: int, rules: Rules) -> list[Effect]:
    error = rules.regression_error / len(rules.looks)
    p_values = _holm({line: _p_worse(contrast) for line, contrast in contrasts.items()})
    effects = []
    for line, contrast in contrasts.items():
        at_most = rules.at_most[line.metric]
        bound = math.log(at_most)
        reach = stats.t.ppf((1 + rules.confidence) / 2, contrast.freedom) * contrast.error
        more = None
        if contrast.spread > rules.spread_max:
            answer = INVALID
        elif p_values[line] <= error and contrast.mean > bound:
            answer = REGRESSION
        elif contrast.mean + reach < bound:
            answer = PASS
        else:
            answer = INCONCLUSIVE
            more = _more_blocks(contrast, bound, blocks, rules, error / len(contrasts))
        effects.append(
            Effect(
                line,
                answer,
                math.exp(contrast.mean),
                math.exp(contrast.mean - reach),
                math.exp(contrast.mean + reach),
                at_most,
                p_values[line],
                contrast.spread,
                contrast.base_us,
                more,
            )
        )
    return effects


def _p_worse(contrast: _Contrast) -> float:
    """Return how often chance alone makes head look so much slower, one-sided."""
    if contrast.error == 0.0:
        return 0.0 if contrast.mean > 0 else 1.0
    return float(stats.t.sf(contrast.mean / contrast.error, contrast.freedom))


def _holm(p_values: Mapping[Line, float]) -> dict[Line, float]:
    """Return the p-values corrected for how many there are (Holm 1979)."""
    corrected: dict[Line, float] = {}
    largest = 0.0
    for rank, line in enumerate(sorted(p_values, key=lambda line: p_values[line])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[line]))
        corrected[line] = largest
    return corrected


def _more_blocks(contrast: _Contrast, bound: float, blocks: int, rules: Rules, error: float) -> int | None:
    """Return how many more blocks decide a line whose effect and spread stay as they are."""
    slower = contrast.mean > bound
    distance = contrast.mean if slower else bound - contrast.mean
    tail = error if slower else (1 - rules.confidence) / 2
    counts = np.arange(blocks + 1, _BLOCKS_MAX)
    reach = stats.t.isf(tail, counts - 1) * contrast.spread / np.sqrt(counts)
    enough = counts[reach < distance]
    return int(enough[0]) - blocks if len(enough) else None
