"""Tests of records.jsonl: what is written is read back, and what is not a record is refused by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_run import MadeUpRun

from harness import records
from harness.records import Record, RecordError, RecordLog

GOOD: dict[str, object] = {
    "suite": "bench",
    "case": {"phase": "cold", "streams": 1},
    "arm": "fs",
    "metric": "ttft_ms",
    "unit": "ms",
    "better": "lower",
    "values": [1.5, 2],
    "env": {"kernel": "6.1", "versions": {"torch": "2"}},
}


def test_records_that_were_appended_are_read_back(tmp_path: Path, run: MadeUpRun) -> None:
    log = RecordLog(tmp_path)
    for record in run.records:
        log.append(record)
    assert records.read(log.path) == run.records == log.records


def test_append_keeps_what_the_file_had(tmp_path: Path, run: MadeUpRun) -> None:
    RecordLog(tmp_path).append(run.records[0])
    later = RecordLog(tmp_path)
    later.append(run.records[1])
    assert len(records.read(later.path)) == 2
    assert later.records == [run.records[1]]


def test_each_record_is_one_line_with_the_documented_fields(tmp_path: Path, run: MadeUpRun) -> None:
    log = RecordLog(tmp_path)
    log.append(run.records[0])
    (line,) = log.path.read_text().splitlines()
    assert set(json.loads(line)) == {"suite", "case", "arm", "metric", "unit", "better", "values", "env"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"values": []}, "at least one number", id="no-values"),
        pytest.param({"values": "12"}, "must be a list", id="text-for-values"),
        pytest.param({"values": [1, "x"]}, "finite numbers, got 'x'", id="text-in-values"),
        pytest.param({"values": [True]}, "finite numbers, got True", id="bool-in-values"),
        pytest.param({"values": [float("nan")]}, "finite numbers, got nan", id="nan"),
        pytest.param({"better": "bigger"}, "'lower' or 'higher', got 'bigger'", id="better"),
        pytest.param({"case": [1]}, "'case' must be an object", id="case-list"),
        pytest.param({"case": {"a": {}}}, "plain values only, got {} for 'a'", id="case-nested"),
        pytest.param({"env": None}, "'env' must be an object", id="no-env"),
        pytest.param({"arm": ""}, "'arm' must be a string that is not empty", id="no-arm"),
        pytest.param({"metric": 3}, "'metric' must be a string", id="metric-number"),
        pytest.param({"surplus": 1}, "unknown fields: surplus", id="surplus"),
    ],
)
def test_read_of_a_bad_record_names_the_line_and_the_fault(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join([json.dumps(GOOD), json.dumps({**GOOD, **change})]))
    with pytest.raises(RecordError) as caught:
        records.read(path)
    assert f"{path}, line 2: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("{", "not JSON", id="half-a-line"),
        pytest.param("[]", "must be an object, got list", id="list"),
        pytest.param('{"suite": "bench"}', "lacks arm, better, case, env, metric, unit, values", id="lacks"),
    ],
)
def test_read_of_something_else_names_the_line_and_the_fault(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RecordError, match="line 1") as caught:
        records.read(path)
    assert message in str(caught.value)


def test_read_of_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read records"):
        records.read(tmp_path / "records.jsonl")


def test_a_record_that_no_reader_could_use_is_refused_when_made() -> None:
    with pytest.raises(RecordError, match="finite numbers, got inf"):
        Record("bench", {}, "fs", "ttft_ms", "ms", "lower", [float("inf")], {})
