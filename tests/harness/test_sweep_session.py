"""Tests of a whole sweep with a server that only counts: its records, its end, and going on after it.

vLLM takes half a minute to start and is measured by the sweep itself; guidellm has tests of its own. All the
rest is real here: processes, scrapes, the disk, the page cache.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from click.testing import CliRunner, Result

from harness import completions, load, records
from harness.arms import Arm
from harness.load import LoadResult, Workload
from harness.records import Record
from harness.server import ServerSpec, free_port
from harness.sweep import session
from harness.sweep.__main__ import main

STANDIN = Path(__file__).with_name("standin_vllm.py")


class Rig:
    """Runs sweeps with stand-ins; counts their measurements, and can end one of them as Ctrl-C does."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = directory / "out"
        self.model = directory / "model"
        self.model.mkdir()
        shape = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 8}
        (self.model / "config.json").write_text(json.dumps(shape))
        self.loads = 0
        self.interrupt_at = 0
        self.deaf = ""
        monkeypatch.setattr(session, "vllm_spec", self.spec)
        monkeypatch.setattr(session, "Tool", _NoTool)
        monkeypatch.setattr(load, "run", self._load)

    def sweep(self, *options: str) -> Result:
        chosen = ["--quick", "--arms=none,fs,kvfs", f"--model-dir={self.model}", f"--out={self.out}"]
        return CliRunner().invoke(main, [*chosen, "--servers-at-once=2", *options])

    def records(self) -> list[Record]:
        path = self.out / "records.jsonl"
        return records.read(path) if path.exists() else []

    def spec(self, arm: Arm, _model: Path, root_dir: Path, _threads: int, **given: Any) -> ServerSpec:  # noqa: ANN401
        port = free_port()
        tier = "" if not arm.offloads else "deaf" if arm.name == self.deaf else "tier"
        command = [sys.executable, str(STANDIN), str(port), str(root_dir), tier]
        return ServerSpec(command, f"http://127.0.0.1:{port}", given["log_path"])

    def _load(
        self, _tool: object, base_url: str, _model: Path, workload: Workload, streams: int, *_rest: object
    ) -> LoadResult:
        self.loads += 1
        if self.loads == self.interrupt_at:
            raise KeyboardInterrupt
        completions.complete(base_url, "m", "prompt", 1)
        ttft = {turn + 1: [9.0] * workload.conversations for turn in range(workload.turns)}
        return LoadResult(ttft, 2.0, 20.0, 90.0, [11.0], [1.5], f"prompts-{streams}", 0)


class _NoTool:
    def __init__(self, *_arguments: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_arguments: object) -> None:
        pass

    def version(self) -> str:
        return "none"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def nothing_is_left(out: Path) -> None:
    """Assert that no server runs any more and that the tiers' directories are gone."""
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(out) in str(p.info["cmdline"])]
    assert left == []
    assert list(out.glob("kvfs-bench-*")) == []


def test_sweep_measures_every_case_once_and_passes(rig: Rig) -> None:
    result = rig.sweep()
    assert result.exit_code == 0, result.output
    found = [record for record in rig.records() if record.metric == "requests_per_s"]
    cases = Counter((r.arm, r.case["threads"], r.case["streams"], r.phase) for r in found)
    tiers = {
        (arm, 4, streams, phase) for arm in ("fs", "kvfs") for streams in (1, 4) for phase in ("cold", "warm")
    }
    assert cases == Counter({*tiers, ("none", 0, 1, "cold"), ("none", 0, 4, "cold")})
    assert {(r.suite, r.case["scenario"], r.case["scale"]) for r in found} == {("sweep", "prefix-10k", 26.0)}
    hits = {(r.arm, r.phase): sum(r.values) for r in rig.records() if r.metric == "tier_hit_tokens"}
    assert hits["kvfs", "warm"] > 0 == hits["kvfs", "cold"]
    read = [r for r in rig.records() if r.metric == "storage_read_bytes" and r.phase == "warm"]
    assert max(r.values[0] for r in read) >= 1 << 20, "the page cache had been emptied"
    used = [r for r in rig.records() if r.metric == "disk_used_bytes"]
    assert {r.arm for r in used} == {"fs", "kvfs"}
    assert {r.case["interval_s"] for r in used} == {0.5}
    assert "about" in result.output
    assert "left  prefix-10k: kvfs, 4 threads: warm, 4 streams" in result.output
    assert "req/s" in (rig.out / "sweep.md").read_text()
    nothing_is_left(rig.out)


def test_interrupted_sweep_keeps_whole_legs_and_goes_on_with_the_others(rig: Rig) -> None:
    # none is a group of its own and comes first, then fs and kvfs cold, then both warm.
    loads = rig.interrupt_at = 1 + 2 + 2
    interrupted = rig.sweep("--streams=1")
    assert interrupted.exit_code == 130
    assert "the same command goes on with what is missing" in interrupted.stderr
    nothing_is_left(rig.out)
    before = rig.records()
    assert {record.arm for record in before} == {"none"}
    rig.loads, rig.interrupt_at = 0, 0
    resumed = rig.sweep("--streams=1")
    assert resumed.exit_code == 0, resumed.output
    assert "measured before, and not again: prefix-10k: none" in resumed.output
    assert rig.loads == loads - 1
    after = rig.records()
    assert after[: len(before)] == before
    counted = Counter((r.arm, r.case["streams"], r.phase) for r in after if r.metric == "requests_per_s")
    assert set(counted.values()) == {1}
    assert {arm for arm, _, _ in counted} == {"none", "fs", "kvfs"}
    rig.loads = 0
    assert rig.sweep("--streams=1").exit_code == 0
    assert (rig.loads, rig.records()) == (0, after)
    assert rig.sweep("--streams=2").exit_code == 2


def test_sweep_whose_warm_phase_reads_nothing_fails_and_says_so(rig: Rig) -> None:
    rig.deaf = "kvfs"
    result = rig.sweep("--streams=1")
    assert result.exit_code == 1
    said = [line for line in result.output.splitlines() if line.startswith("FAILED")]
    assert len(said) == 2
    assert "kvfs, 4 threads: warm tokens came from the disk tier (none with 1 stream)" in said[0]
    assert "kvfs, 4 threads: warm bytes were read from storage" in said[1]


def test_server_that_ends_is_named_and_nothing_is_left(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arm: Arm, *rest: Any, **given: Any) -> ServerSpec:  # noqa: ANN401
        spec = rig.spec(arm, *rest, **given)
        program = [sys.executable, "-c", "raise SystemExit('no such tier')"]
        return ServerSpec(program, spec.base_url, spec.log_path) if arm.name == "kvfs" else spec

    monkeypatch.setattr(session, "vllm_spec", broken)
    result = rig.sweep("--streams=1", "--arms=fs,kvfs")
    assert result.exit_code == 1
    assert "the server ended with status" in result.stderr
    assert "no such tier" in result.stderr
    assert rig.records() == []
    nothing_is_left(rig.out)
