"""The records of an accuracy run in which everything is as it should be, to be changed one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harness.accuracy.asking import ALL_TASKS, SUITE
from harness.arms import ARMS, BASELINE
from harness.records import Record, Scalar, measured

# So many documents of each task, and their scores without a tier.
SCORES = {"niah_single_1": [1.0] * 24, "ruler_vt": [0.2] * 12, "ruler_fwe": [0.0, 0.25, 0.5, 1.0] * 3}
HIT = 12


class MadeUpAnswers:
    """Records of some arms, as `harness.accuracy` would have made them."""

    def __init__(self, arms: Sequence[str] = ("fs", "kvfs"), repetitions: int = 1) -> None:
        self.records: list[Record] = []
        self._ask(BASELINE, "cold", "off", 0)
        self._add(BASELINE, {"phase": "damaged", "task": ALL_TASKS}, "control_power", [0.999])
        for arm in arms:
            checksums = "on" if ARMS[arm].engine else "off"
            self._ask(arm, "cold", checksums, 0)
            for repetition in range(repetitions):
                self._ask(arm, "warm", checksums, repetition)
                self._ask(arm, "damaged", checksums, repetition)
                if checksums == "on":
                    self._ask(arm, "damaged", "off", repetition)

    def _ask(self, arm: str, phase: str, checksums: str, repetition: int) -> None:
        wrong = phase == "damaged" and checksums == "off"
        prefix = "control_" if phase == "damaged" else ""
        case: dict[str, Scalar] = {
            "phase": phase,
            "streams": 4,
            "threads": 4 if arm != BASELINE else 0,
            "checksums": checksums,
            "repetition": repetition,
        }
        for task, scores in SCORES.items():
            hit = HIT if wrong and task == "niah_single_1" else 0
            mine = {**case, "task": task, "inputs": f"documents-{task}"}
            self._add(arm, mine, f"{prefix}accuracy", [0.0] * hit + scores[hit:])
            if arm != BASELINE:
                same = [0.0] * hit + [1.0] * (len(scores) - hit)
                self._add(arm, mine, f"{prefix}answers_identical", same)
        whole = {**case, "task": ALL_TASKS}
        read = 25_000 if phase in {"warm", "damaged"} else 0
        self._add(arm, whole, f"{prefix}tier_hit_tokens", [read])
        if phase != "damaged":
            self._add(arm, whole, "host_hit_tokens", [0])
            self._add(arm, whole, "computed_tokens", [5_000 if read else 30_000])
        if checksums == "on":
            self._add(arm, whole, f"{prefix}damaged_chunks", [9 if prefix else 0])
        if prefix:
            self._add(arm, whole, "control_damaged_files", [10])

    def _add(self, arm: str, case: dict[str, Scalar], metric: str, values: Sequence[float]) -> None:
        engine = ARMS[arm].engine or ("none" if arm == BASELINE else "extension")
        self.records.append(measured(SUITE, case, arm, metric, values, {"engine": engine}))

    def change(self, metric: str, values: Sequence[float] | None, **which: object) -> None:
        """Give other values to the records of a metric that agree with `which`; None drops them."""
        found = [
            record
            for record in self.records
            if record.metric == metric
            and all({"arm": record.arm, **record.case}.get(key) == value for key, value in which.items())
        ]
        assert found, f"nothing is {metric}, {which}"
        self.records = [
            record if values is None or record not in found else dataclasses.replace(record, values=values)
            for record in self.records
            if values is not None or record not in found
        ]
