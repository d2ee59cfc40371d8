"""The switch by which the gate slows an engine down: every chunk takes longer, in CPU time, too."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from fault_seam import Seam

from harness.gate.cases import Case
from harness.gate.worker import Server

DELAY_NS = 2_000_000
CHUNKS = 16


@pytest.mark.parametrize("op", ["load", "store", "lookup"])
def test_slowed_operation_takes_the_delay_for_each_chunk(seam: Seam, tmp_path: Path, op: str) -> None:
    case = Case(op, 64 << 10, CHUNKS)
    server = Server(tmp_path / "root")
    request = {"case": asdict(case)}
    server.answer({"do": "open", **request})
    server.answer({"do": "slow", "delay_ns": 0, **request})
    before = server.answer({"do": "burst", **request})
    server.answer({"do": "slow", "delay_ns": DELAY_NS, **request})
    after = server.answer({"do": "burst", **request})
    server.answer({"do": "close", **request})
    seam.reset()
    delay_s = case.ops * DELAY_NS / 1e9
    # One thread stores or looks up at a time, two load.
    assert float(str(after["wall_s"])) >= delay_s / 2
    # Not by the clock, in which others on the machine take part.
    assert float(str(after["cpu_s"])) > float(str(before["cpu_s"]))
    # Others on the machine may have had the processor in part of the delay.
    assert float(str(after["cpu_s"])) > delay_s / 4
