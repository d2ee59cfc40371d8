"""How often the gate is wrong: the real rules on simulated comparisons, drawn from recorded noise."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from harness.errors import EXIT_FAILED, EXIT_OK
from harness.gate.cases import METRICS
from harness.gate.judge import Rules, expected_lines, judge
from harness.gate.noise import Noise, read
from harness.gate.sample import Line
from harness.gate.wheels import ROOT
from harness.report import Grid
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

COMPARISONS: Final = 200
SLOWDOWN: Final = 0.10
FALSE_MAX: Final = 0.01
CAUGHT_MIN: Final = 0.95

NOISE: Final = ROOT / "tests" / "harness" / "data" / "gate-noise.json"
_SEED: Final = 20260730
_LOUDER: Final = 2.0
_ANSWERS: Final = (PASS, REGRESSION, INCONCLUSIVE, INVALID)


@dataclass(frozen=True)
class Scenario:
    """A kind of comparison.

    Attributes:
        name: As people read it.
        effect: What is slower, as log ratios; nothing is for equal wheels.
        scale: By how much louder the machine is than where the noise was recorded.
        regressions_min: Share of REGRESSION that is demanded,
        regressions_max: or allowed.
    """

    name: str
    effect: Mapping[Line, float]
    scale: float = 1.0
    regressions_min: float = 0.0
    regressions_max: float = 1.0


@dataclass(frozen=True)
class Rates:
    """What the rules answered.

    Attributes:
        scenario: To what.
        counts: How often each answer.
        blocks: The mean number of blocks until the verdict.
    """

    scenario: Scenario
    counts: Mapping[str, int]
    blocks: float

    @property
    def holds(self) -> bool:
        """Whether REGRESSION came as often as is demanded, and no oftener than is allowed."""
        share = self.counts.get(REGRESSION, 0) / sum(self.counts.values())
        return self.scenario.regressions_min <= share <= self.scenario.regressions_max


def scenarios() -> list[Scenario]:
    """Return what the gate has to get right, and two harder ones."""
    slower = dict.fromkeys(expected_lines(), math.log1p(SLOWDOWN))
    first = expected_lines()[0]
    same = (replace(first, metric=metric) for metric in METRICS)
    one = {line: slower[line] for line in same}
    return [
        Scenario("equal wheels", {}, regressions_max=FALSE_MAX),
        Scenario(f"{SLOWDOWN:.0%} slower", slower, regressions_min=CAUGHT_MIN),
        Scenario(f"equal wheels, noise x{_LOUDER:g}", {}, _LOUDER, regressions_max=FALSE_MAX),
        Scenario(f"{SLOWDOWN:.0%} slower, noise x{_LOUDER:g}", slower, _LOUDER),
        Scenario(f"{SLOWDOWN:.0%} slower in {first.op} {first.chunk_bytes >> 10} KiB alone", one),
    ]


def rates_of(scenario: Scenario, noise: Noise, rules: Rules, comparisons: int = COMPARISONS) -> Rates:
    """Simulate comparisons and judge each from its records."""
    generator = np.random.default_rng(_SEED)
    counts: Counter[str] = Counter()
    blocks = 0
    for _ in range(comparisons):
        found = noise.comparison(generator, rules.looks[-1], scenario.effect, scenario.scale)
        verdict = judge(found, rules)
        counts[verdict.answer] += 1
        blocks += verdict.blocks
    return Rates(scenario, counts, blocks / comparisons)


def run(path: Path | None, rules: Rules, console: Console, comparisons: int = COMPARISONS) -> int:
    """Print the error rates; return 0 if they are as they must be, 1 if not. Takes a minute."""
    noise = read(path or NOISE)
    found = [rates_of(scenario, noise, rules, comparisons) for scenario in scenarios()]
    rows = [
        [
            rates.scenario.name,
            *(str(rates.counts.get(answer, 0)) for answer in _ANSWERS),
            f"{rates.blocks:.1f}",
            _demand(rates),
        ]
        for rates in found
    ]
    recorded = f"{len(noise.blocks)} blocks recorded on {noise.source}"
    title = f"{comparisons} simulated comparisons each, from {recorded}"
    Grid(title, ["scenario", *_ANSWERS, "blocks", "demand"], rows, 1).print(console)
    return EXIT_OK if all(rates.holds for rates in found) else EXIT_FAILED


def _demand(rates: Rates) -> str:
    scenario = rates.scenario
    if scenario.regressions_min > 0:
        text = f"REGRESSION >= {scenario.regressions_min:.0%}"
    elif scenario.regressions_max < 1:
        text = f"REGRESSION <= {scenario.regressions_max:.0%}"
    else:
        return "-"
    return f"{text}: {'holds' if rates.holds else 'MISSED'}"
