"""Judge a session by the gates of `harness/gates.toml`: what must hold, and whether the figures can tell."""

import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from harness.micro.arms import FIO, STOCK, STOCK_AGAIN
from harness.micro.cases import SUITE, Shape, parse_shape, parse_size
from harness.micro.summary import Line, percentile
from harness.report import Grid
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

FILE: Final = Path(__file__).resolve().parents[1] / "gates.toml"
CHECKSUMS: Final = "checksums"

_RUNS_MIN: Final = 7
_CONFIDENCE: Final = 0.95
# A ratio that is known to no more than this, up or down, tells nothing.
_SPREAD_MAX: Final = 2.0
_RESAMPLES: Final = 2000
# Of the differences between fs and itself, the largest but for outliers.
_NOISE_PERCENTILE: Final = 90.0
_MEDIAN: Final = 50.0
_NO_CASE: Final = "-"


@dataclass(frozen=True)
class Gate:
    """One demand on many cases.

    Attributes:
        name: As people read it.
        arms: Which arms it is made of.
        metric: What is compared.
        base_arm: With the same metric of this arm in the same case; for fio, of the same operation and size.
        base_metric: Or with this metric of the same arm.
        base_value: Or with this figure.
        op: Only cases of this operation.
        shape: Only cases of this shape.
        threads: Only cases with so many threads.
        chunk_min: Bytes of the smallest chunk.
        chunk_max: And of the largest.
        keys: Only prompts of so many keys, or starts over so many files.
        patterns: Only prompts of these patterns; all, if none is named.
        percentile: Of the values; 50 is the median.
        at_most: What the ratio may be.
        at_least: What it must be.
        less_noise: Whether to allow as much as `fs` differs from itself.
        paired: Whether each value belongs with the base's of the same number, taken in turns. Then the whole
            interval has to be on the right side.
    """

    name: str
    arms: tuple[str, ...]
    metric: str
    base_arm: str = ""
    base_metric: str = ""
    base_value: float = 0.0
    op: str = ""
    shape: Shape | None = None
    threads: int | None = None
    chunk_min: int = 0
    chunk_max: int = 1 << 62
    keys: int | None = None
    patterns: tuple[str, ...] = ()
    percentile: float = _MEDIAN
    at_most: float = float("inf")
    at_least: float = 0.0
    less_noise: bool = False
    paired: bool = False

    def covers(self, line: Line) -> bool:
        """Say whether the gate makes a demand on this line."""
        group = line.group
        return (
            line.arm in self.arms
            and self.metric in line.metrics
            and not group.is_limit
            and self.op in ("", group.op)
            and self.shape in (None, group.shape)
            and self.threads in (None, group.threads)
            and self.chunk_min <= group.chunk_bytes <= self.chunk_max
            and self.keys in (None, group.keys)
            and (not self.patterns or group.pattern in self.patterns)
        )


@dataclass(frozen=True)
class Verdict:
    """What a gate says of one case.

    Attributes:
        gate: The gate.
        case: The case and the arm.
        answer: PASS, REGRESSION, INCONCLUSIVE or INVALID; only the first passes.
        ratio: What was measured, 0 if nothing was.
        low: The ratio is hardly below this,
        high: and hardly above this.
        bound: What it was held against.
        why: What there is to say beside figures.
    """

    gate: Gate
    case: str
    answer: str
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bound: float = 0.0
    why: str = ""


def read(path: Path = FILE, suite: str = SUITE) -> list[Gate]:
    """Return the gates of a suite."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))[suite]
    readers: dict[str, Callable[..., Any]] = {
        "chunk_min": parse_size,
        "chunk_max": parse_size,
        "shape": parse_shape,
        "arms": tuple,
        "patterns": tuple,
    }
    return [
        Gate(**{name: readers[name](value) if name in readers else value for name, value in table.items()})
        for table in tables
    ]


def suite_of(lines: Sequence[Line]) -> str:
    """Return whose gates are demands on a session: those of checksums, where it is about what they cost."""
    bases = {gate.base_arm for gate in read(suite=CHECKSUMS)}
    return CHECKSUMS if any(line.arm in bases for line in lines) else SUITE


def judge(gates: Sequence[Gate], lines: Sequence[Line], unproven: Sequence[str] = ()) -> list[Verdict]:
    """Return the verdict of each gate on each case that it covers.

    Args:
        gates: The demands.
        lines: What was measured; a gate without a line is INVALID.
        unproven: Descriptions, beginning with the arm, of cases whose bytes may not have come from the disk.
    """
    noise = {op: _noise(op, lines) for op in {line.group.op for line in lines}}
    verdicts: list[Verdict] = []
    for gate in gates:
        covered = [line for line in lines if gate.covers(line)]
        if not covered:
            verdicts.append(Verdict(gate, _NO_CASE, INVALID, why="no case of it was measured"))
        verdicts += [_judge_line(gate, line, lines, noise, unproven) for line in covered]
    return verdicts


def _judge_line(
    gate: Gate, line: Line, lines: Sequence[Line], noise: Mapping[str, float], unproven: Sequence[str]
) -> Verdict:
    case = f"{line.group.op} {line.group.text}: {line.arm}"
    values = line.metrics[gate.metric]
    base, count = _base_of(gate, line, lines)
    count = min(len(values), count, _RUNS_MIN if line.runs is None else line.runs)
    bound_low, bound_high = gate.at_least, gate.at_most
    if gate.less_noise:
        bound_low /= noise[line.group.op]
    bound = bound_high if bound_low == 0.0 else bound_low
    problem = ""
    if any(text.startswith(line.arm) and line.group.text in text for text in unproven):
        problem = "no proof that the disk was used"
    elif count < _RUNS_MIN:
        problem = f"{count} runs, {_RUNS_MIN} are the least"
    elif not all(base):
        problem = "the base is 0"
    if problem:
        return Verdict(gate, case, INVALID, bound=bound, why=problem)
    if gate.paired:
        ratios = [value / other for value, other in zip(values, base, strict=True)]
        ratio, (low, high) = statistics.median(ratios), _interval(ratios, (1.0,), _MEDIAN)
        holds = bound_low <= low <= high <= bound_high
    else:
        ratio = percentile(values, gate.percentile) / percentile(base, gate.percentile)
        if gate.percentile == _MEDIAN:
            ratio = statistics.median(values) / statistics.median(base)
        low, high = _interval(values, base, gate.percentile)
        holds = bound_low <= ratio <= bound_high
    surely_not = low > bound_high or high < bound_low
    answer = PASS if holds else REGRESSION if surely_not else INCONCLUSIVE
    why = ""
    # Far on the right side is enough, however wide the spread; at the bound it has to be narrow.
    if holds and high > _SPREAD_MAX * low and not bound_low <= low <= high <= bound_high:
        answer, why = INCONCLUSIVE, "too much spread"
    return Verdict(gate, case, answer, ratio, low, high, bound, why)


def _base_of(gate: Gate, line: Line, lines: Sequence[Line]) -> tuple[Sequence[float], int]:
    """Return what a line is compared with, and of how many runs that is."""
    if gate.base_value:
        return (gate.base_value,), _RUNS_MIN
    if gate.base_metric:
        values = line.metrics.get(gate.base_metric, ())
        return values, len(values)
    for other in lines:
        same = other.group == line.group
        if gate.base_arm.startswith(FIO.name):
            mine = (line.group.op, line.group.chunk_bytes)
            same = (other.group.op, other.group.chunk_bytes) == mine
        if same and other.arm == gate.base_arm and gate.metric in other.metrics:
            values = other.metrics[gate.metric]
            return values, min(len(values), len(values) if other.runs is None else other.runs)
    return (), 0


def _noise(op: str, lines: Sequence[Line]) -> float:
    """Return by which factor throughput of `fs` differs from itself in the cases of an operation."""
    factors = [1.0]
    for line in lines:
        if line.group.op != op or line.arm != STOCK.name or "gb_per_s" not in line.metrics:
            continue
        again = next(
            (each for each in lines if each.group == line.group and each.arm == STOCK_AGAIN.name), None
        )
        if again is not None and "gb_per_s" in again.metrics:
            one, other = (statistics.median(each.metrics["gb_per_s"]) for each in (line, again))
            factors.append(max(one / other, other / one))
    return percentile(factors, _NOISE_PERCENTILE)


def _interval(values: Sequence[float], base: Sequence[float], percent: float) -> tuple[float, float]:
    """Return the bounds between which the ratio lies in most resamples of what was measured."""
    generator = np.random.default_rng(0)
    method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if percent != _MEDIAN else "linear"
    quantiles = []
    for series in (values, base):
        drawn = generator.choice(np.asarray(series), (_RESAMPLES, len(series)))
        quantiles.append(np.percentile(drawn, percent, axis=1, method=method))
    tail = (1 - _CONFIDENCE) / 2 * 100
    low, high = np.percentile(quantiles[0] / quantiles[1], [tail, 100 - tail])
    return float(low), float(high)


def grid(verdicts: Sequence[Verdict]) -> Grid:
    """Return the verdicts as a table: each gate with its worst case, and every case that does not pass."""
    rows = [_row(verdict, count) for verdict, count in _worst(verdicts)]
    columns = ["gate", "case", "answer", "ratio", "95 %", "bound", "cases"]
    return Grid("Gates", columns, rows, 3)


def _worst(verdicts: Sequence[Verdict]) -> Iterator[tuple[Verdict, int]]:
    for gate in dict.fromkeys(verdict.gate for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.gate == gate]
        failed = [verdict for verdict in mine if verdict.answer != PASS]
        worst = max(mine, key=lambda each: each.ratio if gate.at_least == 0.0 else -each.ratio)
        for verdict in failed or [worst]:
            yield verdict, len(mine)


def _row(verdict: Verdict, count: int) -> list[str]:
    sign = "<=" if verdict.gate.at_least == 0.0 else ">="
    figures = ["-", verdict.why or "-"]
    if verdict.answer != INVALID:
        spread = f"{_figure(verdict.low)} to {_figure(verdict.high)}"
        figures = [_figure(verdict.ratio), verdict.why or spread]
    return [
        verdict.gate.name,
        verdict.case,
        verdict.answer,
        *figures,
        "-" if verdict.case == _NO_CASE else f"{sign} {_figure(verdict.bound)}",
        str(count),
    ]


def _figure(value: float) -> str:
    """Return a ratio with two decimals, or two digits where it is small."""
    return f"{value:.2f}" if value == 0 or value >= 0.1 else f"{value:.2g}"  # noqa: PLR2004


def only_measured(gates: Sequence[Gate], lines: Sequence[Line]) -> list[Gate]:
    """Return the gates that make a demand on something that was measured."""
    return [gate for gate in gates if any(gate.covers(line) for line in lines)]
