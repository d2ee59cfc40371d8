"""Test the whole benchmark against a server that it did not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import completion_server
import psutil
import pytest

from harness import records

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 100.0


@pytest.fixture
def address() -> Iterator[str]:
    with completion_server.serving() as address:
        yield address


@pytest.mark.slow
def test_target_is_measured_cold_and_again(address: str, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--quick", "--conversations=2", "--streams=1,2", "--tasks="]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [
            *(sys.executable, "-m", "harness.bench", *options),
            *("--target", f"{address}/v1", "--tokenizer", str(tokenizer), "--out", str(out)),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = records.read(out / "records.jsonl")
    assert {record.arm for record in found} == {"target"}
    ttft = {(r.phase, r.case["streams"], r.case["turn"]): r.values for r in found if r.metric == "ttft_ms"}
    assert set(ttft) == {(p, s, t) for p in ("cold", "host") for s in (1, 2) for t in (1, 2)}
    assert all(value > 25 for phase, _, turn in ttft for value in ttft[phase, _, turn])
    assert {len(values) for (_, _, turn), values in ttft.items() if turn == 1} == {2}
    # The same was asked twice, and something else with another number of streams.
    inputs = {(r.phase, r.case["streams"]): r.case["inputs"] for r in found if r.metric == "requests_per_s"}
    assert inputs["cold", 1] == inputs["host", 1] != inputs["cold", 2] == inputs["host", 2]
    assert "no token counts: " in result.stdout
    assert "TTFT ms" in result.stdout
    report = (out / "report.md").read_text()
    assert "No check applies" in report
    assert json.loads((out / "records.jsonl").read_text().splitlines()[0])["env"]["seed"] > 0
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if _is_ours(p.info["cmdline"], out)]
    assert left == []


def _is_ours(command: list[str] | None, out: Path) -> bool:
    return any(str(out) in argument for argument in command or ())
