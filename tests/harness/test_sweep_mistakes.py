"""Tests of a sweep's options: one line that says what to do, status 2, no traceback, nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up_sweep import leg_records

from harness.errors import EXIT_USAGE
from harness.records import RecordLog
from harness.sweep import scenario
from harness.sweep.__main__ import main
from harness.sweep.plan import Study
from harness.sweep.scenario import QUICK


def the_line(arguments: list[str]) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == EXIT_USAGE, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario=nix"], "--scenario 'nix': there is none; choose from conversations,disk-4k,prefix-10k"),
        (["--scenario=,"], "--scenario ',' names none"),
        (["--streams=1,x"], "--streams '1,x': give positive numbers, separated by commas"),
        (["--streams=,"], "--streams: give at least one number"),
        (["--threads=4,x"], "--threads: 'x' is no number of threads"),
        (["--arms=nfs"], "--arms 'nfs': unknown arm 'nfs'; choose from none,fs,kvfs,kvfs-fallback,dram"),
        (["--scale=1"], "conversations of up to 11,506 tokens, and the server takes 4,096: raise --scale"),
        (["--model-dir=/nowhere"], "--model-dir /nowhere: no config.json there"),
    ],
)
def test_mistake_is_one_line_that_says_what_to_do(arguments: list[str], said: str, tmp_path: Path) -> None:
    line = the_line([*arguments, f"--out={tmp_path / 'out'}"])
    assert line.startswith("sweep: ")
    assert said in line
    assert not list(tmp_path.rglob("*.jsonl"))


def test_memory_file_system_is_refused(tmp_path: Path) -> None:
    line = the_line(["--quick", f"--out={tmp_path}", "--work-dir=/dev/shm"])
    assert "is on tmpfs, which is memory" in line


def test_directory_with_a_sweep_of_other_options_is_refused(tmp_path: Path) -> None:
    found = scenario.load("prefix-10k")
    earlier = Study(found, found.setups[QUICK], 1)
    RecordLog(tmp_path).extend(leg_records(earlier, earlier.legs()[0]))
    before = (tmp_path / "records.jsonl").read_bytes()
    assert "--out has a sweep of prefix-10k with " in the_line(["--quick", f"--out={tmp_path}"])
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_directory_with_lines_that_are_no_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("{}\n")
    result = CliRunner().invoke(main, ["--quick", f"--out={tmp_path}"])
    assert result.exit_code == 1
    assert "records.jsonl, line 1: lacks" in result.stderr
