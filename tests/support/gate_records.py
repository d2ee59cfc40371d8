"""Records of comparisons that never were, with a chosen effect and spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

import numpy as np

from harness.gate.cases import ARMS, CASES, HEAD, METRICS, SUITE, Case
from harness.micro.cases import LOOKUP
from harness.records import LOWER, Record

PAIRS: Final = 4
MACHINE: Final[Mapping[str, object]] = {
    "kernel": "6.1",
    "cpu": "made up",
    "cpu_count": 2,
    "memory_bytes": 1 << 34,
    "python": "3.11.1",
    "filesystem": "tmpfs",
    "device": "tmpfs",
    "page_cache": "is the file system",
    "looks": [6, 12],
    "slowdown": None,
}


def comparison(
    blocks: int,
    effect: float = 0.0,
    spread: float = 0.01,
    *,
    number: int = 1,
    seed: int = 1,
    env: Mapping[str, object] | None = None,
    slower: Callable[[Case, str], bool] = lambda _case, _metric: True,
) -> list[Record]:
    """Return the records of a comparison.

    Args:
        blocks: How many.
        effect: By how much head is slower where it is, 0.1 for 10 %.
        spread: Standard deviation of log ratios from block to block.
        number: Of the comparison.
        seed: Of the noise.
        env: Beside the usual, or instead.
        slower: Of which cases and metrics head is slower.
    """
    generator = np.random.default_rng(seed)
    found = []
    for block in range(blocks):
        for case in CASES:
            for metric in METRICS:
                ratio = math.exp(generator.normal(0.0, spread))
                if slower(case, metric):
                    ratio *= 1 + effect
                for arm in ARMS:
                    values = [100.0 * (ratio if arm == HEAD else 1.0)] * PAIRS
                    found.append(
                        _record(case, metric, arm, values, (number, block), {**MACHINE, **(env or {})})
                    )
    return found


def _record(
    case: Case,
    metric: str,
    arm: str,
    values: Sequence[float],
    numbers: tuple[int, int],
    env: Mapping[str, object],
) -> Record:
    ops = case.ops * len(values)
    proof = {"ops": ops, "moved_bytes": 0 if case.op == LOOKUP else ops * case.chunk_bytes, "checked": ops}
    wheel = {"revision": f"the {arm}", "sha256": f"{arm}-0123456789", "backend": "extension"}
    return Record(
        SUITE,
        {
            "comparison": numbers[0],
            "block": numbers[1],
            "op": case.op,
            "chunk_bytes": case.chunk_bytes,
            "ops": case.ops,
        },
        arm,
        metric,
        "us",
        LOWER,
        values,
        {"wheel": wheel, "proof": proof, **env},
    )


def changed(record: Record, env: Mapping[str, object] | None = None, **fields: object) -> Record:
    """Return a record with other fields, or with other entries in its env."""
    return Record(**{**asdict(replace(record)), **fields, "env": {**record.env, **(env or {})}})
