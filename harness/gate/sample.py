"""Read a comparison's measurements out of records, and say what makes them unfit for a verdict."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, cast

from harness.gate.cases import ARMS, BASE, HEAD, METRICS, SUITE
from harness.micro.cases import LOOKUP, STORE, size_text
from harness.records import Record

# What has to be the same for figures to be comparable.
_MACHINE: Final = ("kernel", "cpu", "cpu_count", "memory_bytes", "python", "filesystem", "device")


@dataclass(frozen=True, order=True)
class Line:
    """What is judged by itself: one metric of one operation.

    Attributes:
        op: "load", "store" or "lookup".
        chunk_bytes: Size of a chunk.
        metric: What was measured.
    """

    op: str
    chunk_bytes: int
    metric: str

    @property
    def operation(self) -> str:
        """What was done, as people read it."""
        return f"{self.op} {size_text(self.chunk_bytes)}"

    @property
    def kind(self) -> str:
        """Which time was measured: "wall" or "cpu"."""
        return self.metric.partition("_")[0]

    def __str__(self) -> str:
        return f"{self.operation}, {self.kind} time"


@dataclass
class Sample:
    """The measurements of one comparison.

    Attributes:
        records: All of it.
        values: Of each line the bursts of each arm, by block: values[line][block][arm], µs an op.
        problems: Why no verdict can be drawn from them; empty if one can.
    """

    records: Sequence[Record]
    values: dict[Line, dict[int, dict[str, Sequence[float]]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @cached_property
    def blocks(self) -> list[int]:
        """The numbers of the blocks that are whole: every line of both arms."""
        lines = list(self.values.values())
        numbers = sorted(lines[0]) if lines else []
        return [number for number in numbers if all(set(ARMS) == set(line.get(number, {})) for line in lines)]

    def log_ratios(self, line: Line) -> list[float]:
        """Return of each whole block the median of its pairs' log ratios, head to base."""
        return [
            statistics.median(
                math.log(head / base) for base, head in zip(arms[BASE], arms[HEAD], strict=True)
            )
            for arms in (self.values[line][block] for block in self.blocks)
        ]

    def log_levels(self, line: Line, arm: str) -> list[float]:
        """Return of each whole block the median of an arm's log values."""
        return [
            statistics.median(math.log(value) for value in self.values[line][block][arm])
            for block in self.blocks
        ]


def comparisons(records: Sequence[Record]) -> dict[int, list[Record]]:
    """Return the gate's records of each comparison, by its number."""
    found: dict[int, list[Record]] = {}
    for record in records:
        if record.suite == SUITE:
            found.setdefault(int(str(record.case.get("comparison", 0))), []).append(record)
    return found


def of(records: Sequence[Record], expected: Sequence[Line]) -> Sample:
    """Return the sample of one comparison's records.

    Args:
        records: Of one comparison.
        expected: The lines that must be there.
    """
    sample = Sample(records)
    for record in records:
        line = Line(str(record.case.get("op")), int(str(record.case.get("chunk_bytes", 0))), record.metric)
        arms = sample.values.setdefault(line, {}).setdefault(int(str(record.case.get("block", -1))), {})
        if record.arm in arms:
            sample.problems.append(f"{line}: a block of {record.arm} is there twice")
        arms[record.arm] = record.values
    sample.problems += [*_gaps(sample, expected), *_mixtures(records), *_unproven(records)]
    sample.problems = list(dict.fromkeys(sample.problems))
    return sample


def _gaps(sample: Sample, expected: Sequence[Line]) -> Iterator[str]:
    if not sample.records:
        yield "there are no records of a gate"
        return
    for line in expected:
        if line not in sample.values:
            yield f"{line}: nothing was measured"
    for line in sample.values:
        if line.metric not in METRICS:
            yield f"{line}: an unknown metric"
    yield from _broken_blocks(sample)


def _broken_blocks(sample: Sample) -> Iterator[str]:
    numbers = sorted({block for blocks in sample.values.values() for block in blocks})
    # A run that was interrupted ends within a block; what lacks before that was lost.
    lost = [number for number in numbers[:-1] if number not in sample.blocks]
    if lost or numbers != list(range(len(numbers))):
        yield f"blocks are missing or not whole: {len(sample.blocks)} of {max(numbers, default=0) + 1} are"
    for line, blocks in sample.values.items():
        for arms in blocks.values():
            if set(arms) - set(ARMS):
                yield f"{line}: unknown arms: {', '.join(sorted(set(arms) - set(ARMS)))}"
            if len({len(values) for values in arms.values()}) > 1:
                yield f"{line}: bursts of a block are missing, so that they make no pairs"
            if any(value <= 0 for values in arms.values() for value in values):
                yield f"{line}: a time that is not positive"


def _mixtures(records: Sequence[Record]) -> Iterator[str]:
    """All must be of one machine, planned together, and an arm of one wheel."""
    yield from different_machines(records)
    if len({str(record.env.get("looks")) for record in records}) > 1:
        yield "records of different plans: not the same looks"
    for arm in ARMS:
        seen = {wheel(record)["sha256"] for record in records if record.arm == arm}
        if len(seen) > 1:
            yield f"{arm} is made of {len(seen)} different wheels"
    if len({str(record.env.get("page_cache")) for record in records}) > 1:
        yield "the page cache was in different states"


def different_machines(records: Sequence[Record]) -> list[str]:
    """Return what says that these were not all measured on one machine."""
    problems = []
    for name in _MACHINE:
        seen = {str(record.env.get(name)) for record in records}
        if len(seen) > 1:
            problems.append(f"measured on different machines: {name} is {' and '.join(sorted(seen))}")
        elif "None" in seen:
            problems.append(f"the records do not say on which machine: {name} is missing")
    return problems


def _unproven(records: Sequence[Record]) -> Iterator[str]:
    """Every op must have been reported, its bytes counted, and enough of them compared."""
    for record in records:
        case, where = record.case, f"{record.case.get('op')} of {record.arm}"
        proof = record.env.get("proof")
        if not isinstance(proof, Mapping):
            yield f"{where}: no proof that bytes moved"
            continue
        ops = int(str(case.get("ops", 0))) * len(record.values)
        moved = 0 if case.get("op") == LOOKUP else ops * int(str(case.get("chunk_bytes", 0)))
        least = len(record.values) if case.get("op") == STORE else ops
        if proof.get("ops") != ops or ops == 0:
            yield f"{where}: {proof.get('ops')} of {ops} ops were reported"
        if proof.get("moved_bytes") != moved:
            yield f"{where}: {proof.get('moved_bytes')} of {moved} bytes moved"
        if int(str(proof.get("checked", 0))) < least:
            yield f"{where}: {proof.get('checked', 0)} of at least {least} chunks were compared"


def wheel(record: Record) -> Mapping[str, str]:
    """Return what a record says about the wheel that it is of: "revision", "sha256", "backend"."""
    found = record.env.get("wheel")
    fields = cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}
    return {name: str(fields.get(name, "unknown")) for name in ("revision", "sha256", "backend")}
