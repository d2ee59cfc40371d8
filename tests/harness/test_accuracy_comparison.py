"""Tests of the paired comparisons: exact bounds, honest intervals, and what each verdict takes."""

from __future__ import annotations

import random

import pytest

from harness.accuracy import comparison
from harness.accuracy.comparison import Comparison, read_limits
from harness.verdicts import INCONCLUSIVE, PASS, REGRESSION

LIMITS = read_limits()


def wrong(count: int, documents: int = 24) -> Comparison:
    before = [1.0] * documents
    return comparison.right_or_wrong("", before, [0.0] * count + before[count:], LIMITS)


def differing(count: int, documents: int = 24) -> Comparison:
    return comparison.answers("", [0.0] * count + [1.0] * (documents - count), LIMITS)


def test_no_wrong_answer_proves_no_more_than_its_exact_bound() -> None:
    found = wrong(0)
    # With a share of 0.117 of all documents getting worse, none of 24 does once in twenty times.
    assert (1 - found.high) ** 24 == pytest.approx(0.05)
    assert (found.verdict, found.effect) == (PASS, 0)


def test_too_few_documents_prove_nothing_even_if_all_agree() -> None:
    assert wrong(0, documents=18).verdict == INCONCLUSIVE
    assert comparison.graded("", [0.3] * 18, [0.3] * 18, LIMITS).verdict == INCONCLUSIVE
    assert differing(0, documents=10).verdict == INCONCLUSIVE


def test_wrong_answers_are_a_regression_from_where_chance_does_not_explain_them() -> None:
    assert [wrong(count).verdict for count in range(7)] == [PASS, *[INCONCLUSIVE] * 4, REGRESSION, REGRESSION]
    assert wrong(5).method == "McNemar, exact: p = 0.031"


def test_as_many_right_as_wrong_answers_are_no_regression() -> None:
    before = [1.0, 0.0] * 12
    after = [0.0, 1.0] * 12
    found = comparison.right_or_wrong("", before, after, LIMITS)
    assert (found.worse, found.better, found.effect, found.verdict) == (12, 12, 0, INCONCLUSIVE)


def test_significant_drop_within_what_is_allowed_is_no_regression() -> None:
    found = wrong(25, documents=200)
    assert found.method.endswith("p = 3e-08")
    assert found.effect == pytest.approx(0.125)
    assert found.verdict == INCONCLUSIVE


def test_graded_scores_that_all_agree_have_an_interval_with_width() -> None:
    found = comparison.graded("", [0.2] * 24, [0.2] * 24, LIMITS)
    assert found.low == 0
    assert (1 - found.high) ** 24 == pytest.approx(0.05)
    assert found.verdict == PASS


def test_graded_scores_are_a_regression_when_shown_and_large() -> None:
    before = [0.4] * 24
    assert comparison.graded("", before, [0.0] * 12 + before[12:], LIMITS).verdict == REGRESSION
    # Shown, and small.
    small = comparison.graded("", before, [0.3] * 24, LIMITS)
    assert small.low > 0
    assert small.verdict == INCONCLUSIVE
    # Large, and not shown: one of the documents explains it all.
    large = comparison.graded("", [1.0, *[0.0] * 3], [0.0] * 4, LIMITS)
    assert large.effect > LIMITS.allowed_drop
    assert large.verdict == INCONCLUSIVE


def test_bootstrap_is_the_same_each_time() -> None:
    generator = random.Random(1)
    before = [generator.random() for _ in range(30)]
    after = [generator.random() for _ in range(30)]
    assert comparison.graded("", before, after, LIMITS) == comparison.graded("", before, after, LIMITS)


def test_other_answers_pass_up_to_a_share_and_regress_from_one() -> None:
    assert [differing(count).verdict for count in (0, 1, 2, 8, 9)] == [
        *[PASS] * 2,
        *[INCONCLUSIVE] * 2,
        REGRESSION,
    ]


def test_scores_of_other_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        comparison.right_or_wrong("", [1.0, 1.0], [1.0], LIMITS)


def test_error_rate_of_a_pass_is_at_most_what_it_says() -> None:
    """Of tiers that spoil exactly as many answers as are allowed, at most one in twenty may pass."""
    generator = random.Random(2)
    runs = 2000
    passed = sum(
        wrong(sum(generator.random() < LIMITS.allowed_drop for _ in range(24))).verdict == PASS
        for _ in range(runs)
    )
    assert passed / runs < 0.05 + 0.015
