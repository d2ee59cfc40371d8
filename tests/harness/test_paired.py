"""Tests of the comparison document by document."""

from __future__ import annotations

import pytest

from harness import paired

RIGHT = [1.0] * 12


def test_equal_scores_hold() -> None:
    comparison = paired.compare([0.2, 0.4, 1.0], [0.2, 0.4, 1.0])
    assert comparison.holds
    assert (comparison.worse, comparison.better, comparison.drop) == (0, 0, 0.0)
    assert comparison.sentence() == "all 3 documents score the same"


@pytest.mark.parametrize("documents", [3, 4, 8, 12])
def test_all_answers_wrong_never_holds(documents: int) -> None:
    assert not paired.compare([1.0] * documents, [0.0] * documents).holds


@pytest.mark.parametrize("documents", [3, 4, 8, 12])
def test_one_worse_document_holds(documents: int) -> None:
    assert paired.compare([1.0] * documents, [0.0] + [1.0] * (documents - 1)).holds


def test_the_sign_test_is_exact_and_one_sided() -> None:
    comparison = paired.compare(RIGHT, [0.9] * 5 + [1.0] * 7)
    assert comparison.p_value == pytest.approx(0.5**5)
    assert not comparison.holds
    assert paired.compare(RIGHT, [0.9] * 4 + [1.0] * 8).p_value == pytest.approx(0.5**4)


def test_better_answers_hold() -> None:
    comparison = paired.compare([0.0] * 12, RIGHT)
    assert comparison.holds
    assert comparison.drop == pytest.approx(-1.0)


def test_as_many_better_as_worse_documents_hold() -> None:
    scores = [0.0, 0.0, 1.0, 1.0] * 3
    assert paired.compare(scores, [1.0 - score for score in scores]).holds


def test_a_drop_beyond_the_documents_own_differences_fails_before_the_sign_test_can() -> None:
    comparison = paired.compare(RIGHT, [0.0] * 4 + [1.0] * 8)
    assert comparison.p_value > paired.SIGNIFICANCE
    assert comparison.drop > comparison.allowed_drop
    assert not comparison.holds


@pytest.mark.parametrize(("before", "after"), [([1.0], [1.0, 1.0]), ([], [])])
def test_scores_that_cannot_be_paired_are_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="as many scores"):
        paired.compare(before, after)


def test_power_says_what_few_documents_cannot_tell() -> None:
    assert "no sign test reaches p < 0.05" in paired.power(4)
    assert "needs 5 that got worse" in paired.power(12)
