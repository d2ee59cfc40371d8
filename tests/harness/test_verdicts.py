"""The four verdicts: their order, and that a caller can tell them and mistakes apart by the exit status."""

import pytest

from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, EXIT_USAGE
from harness.verdicts import EXIT_STATUS, INCONCLUSIVE, INVALID, PASS, REGRESSION, worst


def test_exit_statuses_of_verdicts_differ_from_each_other_and_from_mistakes() -> None:
    others = [EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED]
    assert EXIT_STATUS[PASS] == EXIT_OK
    assert set(EXIT_STATUS) == {PASS, REGRESSION, INCONCLUSIVE, INVALID}
    assert len({*EXIT_STATUS.values(), *others}) == len(EXIT_STATUS) + len(others)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([PASS, PASS], PASS, id="all-pass"),
        pytest.param([PASS, INCONCLUSIVE], INCONCLUSIVE, id="one-cannot-tell"),
        pytest.param([INCONCLUSIVE, REGRESSION, PASS], REGRESSION, id="one-is-slower"),
        pytest.param([REGRESSION, INVALID], INVALID, id="one-is-invalid"),
        pytest.param([], INVALID, id="nothing-was-shown"),
    ],
)
def test_worst_of_answers_is_what_they_amount_to(answers: list[str], expected: str) -> None:
    assert worst(answers) == expected
