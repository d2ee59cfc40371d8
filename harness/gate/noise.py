"""What equal wheels show of a difference, block by block: kept small, and drawn from for simulations.

`python -m harness.gate.noise RECORDS... > FILE` condenses the records of `gate -- --aa`.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np

from harness import records
from harness.errors import HarnessError
from harness.gate import sample
from harness.gate.cases import BASE, CASES, HEAD, SUITE
from harness.gate.judge import expected_lines
from harness.gate.sample import Line
from harness.micro.cases import LOOKUP
from harness.records import LOWER, Record, Scalar

# Log ratios are kept as whole numbers of these.
_UNIT: Final = 1e-4
_MACHINE: Final = dict.fromkeys(
    ("kernel", "cpu", "cpu_count", "memory_bytes", "python", "filesystem", "device"), "simulated"
)


class NoiseError(HarnessError):
    """What was given is no noise."""


@dataclass(frozen=True)
class Noise:
    """Blocks of equal wheels.

    Attributes:
        source: On which machine they were recorded.
        blocks: Of each block the log ratios of the pairs of every line.
    """

    source: str
    blocks: Sequence[Mapping[Line, Sequence[float]]]

    def comparison(
        self, generator: np.random.Generator, blocks: int, effect: Mapping[Line, float], scale: float = 1.0
    ) -> list[Record]:
        """Return the records of a comparison that might have been.

        Whole blocks are drawn, so lines depend on each other as they do; and since both wheels were equal,
        head and base of a block change places at random.

        Args:
            generator: Draws.
            blocks: How many.
            effect: What is added to the log ratios of each line; nothing to those that are missing.
            scale: By how much louder the machine is.
        """
        found = []
        for number in range(blocks):
            drawn = self.blocks[int(generator.integers(len(self.blocks)))]
            sign = scale * (1 if generator.integers(2) else -1)
            for line, ratios in drawn.items():
                shift = effect.get(line, 0.0)
                found += _records_of(line, number, [sign * ratio + shift for ratio in ratios])
        return found

    def spread(self, line: Line) -> float:
        """Return the standard deviation of a line's estimates from block to block."""
        return float(np.std([np.median(block[line]) for block in self.blocks], ddof=1))


def _records_of(line: Line, block: int, ratios: Sequence[float]) -> list[Record]:
    case = next(case for case in CASES if (case.op, case.chunk_bytes) == (line.op, line.chunk_bytes))
    ops = case.ops * len(ratios)
    moved_bytes = 0 if line.op == LOOKUP else ops * line.chunk_bytes
    env = {
        **_MACHINE,
        "page_cache": "is the file system",
        "proof": {"ops": ops, "moved_bytes": moved_bytes, "checked": ops},
    }
    key: dict[str, Scalar] = {
        "comparison": 1,
        "block": block,
        "op": line.op,
        "chunk_bytes": line.chunk_bytes,
        "ops": case.ops,
    }
    values = {BASE: [1.0] * len(ratios), HEAD: [math.exp(ratio) for ratio in ratios]}
    return [
        Record(SUITE, key, arm, line.metric, "us", LOWER, some, {**env, "wheel": {"sha256": arm}})
        for arm, some in values.items()
    ]


def condense(found: Sequence[Record]) -> dict[str, object]:
    """Return the noise of records of comparisons of equal wheels, ready for JSON.

    Raises:
        NoiseError: They are no such records.
    """
    lines = expected_lines()
    blocks: list[list[list[int]]] = []
    source = ""
    for some in sample.comparisons(found).values():
        one = sample.of(some, lines)
        if one.problems:
            raise NoiseError(f"no noise can be taken from these records: {'; '.join(one.problems)}")
        if len({sample.wheel(record)["sha256"] for record in some}) > 1 or some[0].env.get("slowdown"):
            raise NoiseError("no noise can be taken from these records: they are of two different wheels")
        env = some[0].env
        source = f"{env['cpu']}, {env['cpu_count']} CPUs, {env['filesystem']}"
        blocks += [
            [
                [
                    round(math.log(head / base) / _UNIT)
                    for base, head in zip(arms[BASE], arms[HEAD], strict=True)
                ]
                for arms in (one.values[line][block] for line in lines)
            ]
            for block in one.blocks
        ]
    if not blocks:
        raise NoiseError("no noise can be taken from these records: there is no whole block of a gate")
    return {
        "source": source,
        "lines": [[line.op, line.chunk_bytes, line.metric] for line in lines],
        "blocks": blocks,
    }


def read(path: Path) -> Noise:
    """Return noise from a condensed file, or from records.

    Raises:
        NoiseError: It is neither.
    """
    if path.suffix == ".jsonl":
        fields = condense(records.read(path))
    else:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NoiseError(f"{path} cannot be read as noise ({error})") from error
    return parse(fields)


def parse(fields: Mapping[str, object]) -> Noise:
    """Return the noise of a condensed file's content.

    Raises:
        NoiseError: It is of other lines than the gate has.
    """
    lines = [Line(*line) for line in fields["lines"]]  # type: ignore[attr-defined]  # written by `condense`
    if lines != expected_lines():
        raise NoiseError(
            "the noise is of other operations than the gate has; record it again with --aa --repeat"
        )
    blocks = [
        {line: [ratio * _UNIT for ratio in ratios] for line, ratios in zip(lines, block, strict=True)}
        for block in fields["blocks"]  # type: ignore[attr-defined]  # written by `condense`
    ]
    return Noise(str(fields["source"]), blocks)


def main(paths: Sequence[str]) -> None:
    """Print the noise of records; numbers of comparisons may be the same in different files."""
    parts = [condense(records.read(Path(path))) for path in paths]
    blocks = [block for part in parts for block in cast("list[object]", part["blocks"])]
    json.dump({**parts[0], "blocks": blocks}, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
