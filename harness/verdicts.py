"""What a gate answers, and the exit status that each answer has; only PASS passes."""

from collections.abc import Iterable, Mapping
from typing import Final

from harness.errors import EXIT_OK

PASS: Final = "PASS"  # noqa: S105  no password
REGRESSION: Final = "REGRESSION"
INCONCLUSIVE: Final = "INCONCLUSIVE"
INVALID: Final = "INVALID"

# None of them is a mistake's (1, 2), an interruption's (130, 143) or a shell's (126 and up).
EXIT_STATUS: Final[Mapping[str, int]] = {PASS: EXIT_OK, REGRESSION: 10, INCONCLUSIVE: 11, INVALID: 12}


def worst(answers: Iterable[str]) -> str:
    """Return what answers amount to together: INVALID before REGRESSION before INCONCLUSIVE before PASS.

    Without any answer nothing was shown, which is INVALID.
    """
    found = set(answers)
    return next((answer for answer in (INVALID, REGRESSION, INCONCLUSIVE, PASS) if answer in found), INVALID)
