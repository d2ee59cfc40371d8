"""Compare two arms document by document: how far may the answers differ, and does the gate allow it?

Each comparison gives one of four verdicts. PASS needs proof: the whole interval lies inside what is allowed,
and with few documents an interval is wide even where all of them agree.
"""

import dataclasses
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from scipy import stats

from harness.micro.gates import FILE
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

_RESAMPLES: Final = 10_000
_SEED: Final = 57912


@dataclass(frozen=True)
class Limits:
    """What the gate allows, from `harness/gates.toml`.

    Attributes:
        confidence: Of each bound of an interval, one-sided.
        allowed_drop: Of the mean score, 0 to 1.
        allowed_differing: Of the greedy answers, how many may be another text, 0 to 1.
        least_from_disk: Of the prompt tokens of a warm pass, how many must have come from disk, 0 to 1.
        damaged_share: Of the chunks, how many the control damages, 0 to 1.
        least_power: How likely the control must fail, 0 to 1.
    """

    confidence: float
    allowed_drop: float
    allowed_differing: float
    least_from_disk: float
    damaged_share: float
    least_power: float

    @property
    def alpha(self) -> float:
        """How often a bound may be wrong."""
        return 1 - self.confidence


@dataclass(frozen=True)
class Comparison:
    """The same documents under two arms.

    Attributes:
        what: Which property of the answers.
        verdict: PASS, REGRESSION, INCONCLUSIVE or INVALID.
        documents: How many.
        worse: Documents whose score fell, or whose answer is another text.
        better: Documents whose score rose.
        effect: By how much the mean score fell, or which share of the answers is another text.
        low: The effect is hardly below this,
        high: and hardly above this.
        allowed: What it may be.
        method: How that was decided.
    """

    what: str
    verdict: str
    documents: int = 0
    worse: int = 0
    better: int = 0
    effect: float = 0.0
    low: float = 0.0
    high: float = 0.0
    allowed: float = 0.0
    method: str = ""


def read_limits(path: Path = FILE) -> Limits:
    """Return the thresholds of the accuracy gate."""
    return Limits(**tomllib.loads(path.read_text(encoding="utf-8"))["accuracy"])


def invalid(what: str, why: str) -> Comparison:
    """Return the verdict on something that cannot be compared."""
    return Comparison(what, INVALID, method=why)


def right_or_wrong(what: str, before: Sequence[float], after: Sequence[float], limits: Limits) -> Comparison:
    """Compare scores that are 0 or 1 by McNemar's exact test, with exact (Clopper-Pearson) bounds.

    No more can be lost than the documents that got worse, so that their share's bound is the drop's: with
    none of 24 it is 0.117 at 95 %. The lower bound spends half its error on each of the two shares.
    """
    worse, better = _changes(before, after)
    count = len(before)
    p_value = 1.0
    if worse + better:
        p_value = float(stats.binomtest(worse, worse + better, 0.5, alternative="greater").pvalue)
    half = limits.alpha / 2
    return _judged(
        Comparison(
            what,
            PASS,
            count,
            worse,
            better,
            effect=(worse - better) / count,
            low=_share_low(worse, count, half) - _share_high(better, count, half),
            high=_share_high(worse, count, limits.alpha),
            allowed=limits.allowed_drop,
            method=f"McNemar, exact: p = {p_value:.2g}",
        ),
        is_shown=p_value <= limits.alpha,
    )


def graded(what: str, before: Sequence[float], after: Sequence[float], limits: Limits) -> Comparison:
    """Compare scores between 0 and 1 by a bootstrap of the documents' own differences (percentiles, seeded).

    What no document showed, no resample shows: where all agree, its interval has no width. So the upper bound
    has on top what documents that fail worse than any that was seen could take: of `count` none was among
    them, so that at most 1 - alpha^(1/count) of all are (Clopper-Pearson), and none loses more than 1.
    (BCa intervals do not exist where most differences are the same.)
    """
    worse, better = _changes(before, after)
    differences = np.subtract(before, after)
    count = len(differences)
    generator = np.random.default_rng(_SEED)
    means = generator.choice(differences, (_RESAMPLES, count)).mean(axis=1)
    low, high = (float(bound) for bound in np.quantile(means, [limits.alpha, limits.confidence]))
    return _judged(
        Comparison(
            what,
            PASS,
            count,
            worse,
            better,
            effect=float(statistics.fmean(differences)),
            low=low,
            high=high + _share_high(0, count, limits.alpha),
            allowed=limits.allowed_drop,
            method=f"paired bootstrap, {_RESAMPLES:,} resamples",
        ),
        is_shown=low > 0,
    )


def answers(what: str, identical: Sequence[float], limits: Limits) -> Comparison:
    """Judge how many greedy answers are another text, with exact (Clopper-Pearson) bounds.

    Args:
        what: As in the result.
        identical: 1 for each document whose answer is the same, 0 for the others.
        limits: The gate's.
    """
    count = len(identical)
    differing = sum(same == 0 for same in identical)
    low = _share_low(differing, count, limits.alpha)
    return _judged(
        Comparison(
            what,
            PASS,
            count,
            differing,
            effect=differing / count,
            low=low,
            high=_share_high(differing, count, limits.alpha),
            allowed=limits.allowed_differing,
            method="share, exact bounds",
        ),
        is_shown=low > limits.allowed_differing,
    )


def _judged(comparison: Comparison, *, is_shown: bool) -> Comparison:
    """Return the comparison with its verdict; `is_shown`: chance does not explain the effect."""
    verdict = INCONCLUSIVE
    if comparison.high <= comparison.allowed:
        verdict = PASS
    elif is_shown and comparison.effect > comparison.allowed:
        verdict = REGRESSION
    return dataclasses.replace(comparison, verdict=verdict)


def _changes(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    pairs = list(zip(before, after, strict=True))
    return sum(new < old for old, new in pairs), sum(new > old for old, new in pairs)


def _share_high(count: int, total: int, alpha: float) -> float:
    interval = stats.binomtest(count, total, alternative="less").proportion_ci(1 - alpha, method="exact")
    return float(interval.high)


def _share_low(count: int, total: int, alpha: float) -> float:
    interval = stats.binomtest(count, total, alternative="greater").proportion_ci(1 - alpha, method="exact")
    return float(interval.low)
