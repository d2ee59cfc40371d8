"""Compare two arms document by document: did answers get worse by more than chance explains?"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SIGNIFICANCE: Final = 0.05
# How many standard errors of the paired differences a mean may move.
_STANDARD_ERRORS: Final = 2.0


@dataclass(frozen=True)
class Comparison:
    """The same documents under two arms.

    Attributes:
        documents: How many.
        worse: Documents whose score fell.
        better: Documents whose score rose.
        drop: By how much the mean fell; negative if it rose.
        allowed_drop: By how much it may: two standard errors of the documents' own differences, and at
            least what one document is worth.
        p_value: Exact sign test, one-sided: how often chance alone makes at least so many of the
            documents that differ worse ones.
    """

    documents: int
    worse: int
    better: int
    drop: float
    allowed_drop: float
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether the answers are as good as before, as far as so many documents can tell."""
        return self.p_value >= SIGNIFICANCE and self.drop <= self.allowed_drop + 1e-9

    def sentence(self) -> str:
        """Return what was found."""
        if not self.worse + self.better:
            return f"all {self.documents} documents score the same"
        return (
            f"{self.worse + self.better} of {self.documents} documents differ: {self.worse} worse, "
            f"{self.better} better; mean {-self.drop:+.3f} (a drop of {self.allowed_drop:.3f} is allowed), "
            f"sign test p = {self.p_value:.3f}"
        )


def compare(baseline: Sequence[float], scores: Sequence[float]) -> Comparison:
    """Compare scores of the same documents in the same order.

    Raises:
        ValueError: Not the same number of documents, or none.
    """
    if len(baseline) != len(scores) or not scores:
        raise ValueError(f"need as many scores as in the baseline, got {len(scores)} and {len(baseline)}")
    differences = [after - before for before, after in zip(baseline, scores, strict=True)]
    worse = sum(difference < 0 for difference in differences)
    better = sum(difference > 0 for difference in differences)
    count = len(differences)
    error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    p_value = 1.0
    if worse + better:
        # Two seconds to import, which the start of a benchmark and of each micro benchmark would pay.
        from scipy import stats  # noqa: PLC0415

        p_value = float(stats.binomtest(worse, worse + better, 0.5, alternative="greater").pvalue)
    return Comparison(
        documents=count,
        worse=worse,
        better=better,
        drop=-statistics.fmean(differences),
        allowed_drop=max(_STANDARD_ERRORS * error, 1.0 / count),
        p_value=p_value,
    )


def power(documents: int) -> str:
    """Return what so many documents can and cannot tell."""
    # All that differ are worse: the fewest for which the sign test says so.
    fewest = next(count for count in range(1, 100) if 0.5**count < SIGNIFICANCE)
    if documents < fewest:
        return (
            f"With {documents} documents no sign test reaches p < {SIGNIFICANCE}; what they can show is "
            "damage to many answers at once, by the mean."
        )
    return (
        f"With {documents} documents the sign test needs {fewest} that got worse and none that got better. "
        "Damage to fewer answers than that is not ruled out."
    )
