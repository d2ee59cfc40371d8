"""How `nox -s faults` runs: its long form, what each engine is tested with, and what was skipped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

LONG_OPTION = "--long"
# What the tests look at; "1" is every case.
LONG_VARIABLE = "KVFS_FAULTS_LONG"
TESTS = "tests/faults"
# They need the extension, built with KVFS_FAULTS.
INJECTED = "tests/faults/injected"


@dataclass(frozen=True)
class Arguments:
    """What stands after `--`.

    Attributes:
        is_long: Whether the long form is wanted.
        rest: What pytest gets.
    """

    is_long: bool
    rest: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variable that tells the tests how long to take."""
        return {LONG_VARIABLE: "1" if self.is_long else "0"}

    @property
    def paths(self) -> list[str]:
        """Return the paths that pytest is given beside `rest`: none if the user named some."""
        return [] if self._named() else [TESTS]

    @property
    def concern_fallback(self) -> bool:
        """Say whether there is anything for the fallback: not if only tests of injected faults were named."""
        named = self._named()
        return not named or not all(path.startswith(INJECTED) for path in named)

    def _named(self) -> list[str]:
        return [argument for argument in self.rest if argument.startswith("tests/")]


def parse(arguments: Sequence[str]) -> Arguments:
    """Take the session's own option out of its arguments."""
    rest = tuple(argument for argument in arguments if argument != LONG_OPTION)
    return Arguments(is_long=len(rest) < len(arguments), rest=rest)


@dataclass(frozen=True)
class Tally:
    """How many tests ran and which did not.

    Attributes:
        tests: All of them.
        skipped: Why tests were skipped, and how many for each reason.
    """

    tests: int
    skipped: Counter[str]

    def __add__(self, other: "Tally") -> "Tally":
        """Return both together."""
        return Tally(self.tests + other.tests, self.skipped + other.skipped)

    def lines(self) -> list[str]:
        """Return what the session prints at its end."""
        for_root = sum(count for reason, count in self.skipped.items() if "root" in reason)
        head = f"{self.tests} tests, {self.skipped.total()} skipped, {for_root} of them for want of root"
        return [head, *(f"  {count} skipped: {reason}" for reason, count in sorted(self.skipped.items()))]


def read_tally(report: Path) -> Tally:
    """Read pytest's JUnit report; one that pytest did not come to write counts no tests."""
    if not report.is_file():
        return Tally(0, Counter())
    # Our own pytest has just written it.
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314
    skips = [skip for case in cases for skip in case.iter("skipped")]
    return Tally(len(cases), Counter(skip.get("message", "") for skip in skips))
