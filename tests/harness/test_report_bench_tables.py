"""Tests of the report and the tables: what they say, from records alone."""

from __future__ import annotations

import dataclasses
import io

from made_up_run import MadeUpRun
from rich.console import Console

from harness import checks
from harness.report import bench_tables


def rows_of(markdown: str, arm: str) -> list[list[str]]:
    """Return the cells of the table rows that begin with an arm."""
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith(f"| {arm} |")]
    return [[cell.strip() for cell in line] for line in lines]


def test_report_has_speed_of_every_arm_and_phase(run: MadeUpRun) -> None:
    rows = rows_of(bench_tables.speed(run.records).markdown(), "kvfs")
    assert [row[1:4] for row in rows] == [
        ["4", streams, phase] for streams in ("1", "4") for phase in ("cold", "host", "warm")
    ]
    assert rows[0][4:] == ["1.00", "1,000", "-", "210", "8.0"]
    assert rows[2][4:] == ["4.00", "110", "9.1x", "210", "32.0"]
    assert [row[3] for row in rows_of(bench_tables.speed(run.records).markdown(), "none")] == ["cold", "cold"]


def test_report_has_accuracy_of_every_arm_and_task(run: MadeUpRun) -> None:
    grid = bench_tables.accuracy(run.records).markdown()
    assert rows_of(grid, "kvfs-fallback") == [
        ["kvfs-fallback", "4", "niah_single_1", "3", "1.000", "1.000", "2,688"],
        ["kvfs-fallback", "4", "ruler_vt", "3", "0.400", "0.400", "2,688"],
    ]
    assert rows_of(grid, "none")[0] == ["none", "-", "niah_single_1", "3", "1.000", "-", "-"]


def test_report_tells_where_tokens_came_from(run: MadeUpRun) -> None:
    rows = rows_of(bench_tables.sources(run.records).markdown(), "fs")
    assert rows[0] == ["fs", "4", "1", "cold", "500", "384", "0", "0", "6", "1.0"]
    assert rows[2] == ["fs", "4", "1", "warm", "500", "384", "1,152", "53", "15", "18.5"]
    # What no server counts is not 0.
    assert rows_of(bench_tables.sources(run.records).markdown(), "none")[0][-2:] == ["-", "-"]


def test_report_says_what_retries_and_steps_are_where_they_were_counted(run: MadeUpRun) -> None:
    sentence = "RETRYs: chunks about which the disk tier said RETRY when a request first asked"
    assert sentence in bench_tables.markdown(run.records, checks.evaluate(run.records))
    run.drop("tier_retried_lookups")
    assert sentence not in bench_tables.markdown(run.records, checks.evaluate(run.records))


def test_report_says_that_all_passed_and_what_was_done(run: MadeUpRun) -> None:
    text = bench_tables.markdown(run.records, checks.evaluate(run.records))
    assert "All 30 checks passed." in text
    assert "FAIL" not in text
    assert "- **PASS** kvfs, 4 threads: warm tokens came from the disk tier: 7,680 tokens" in text
    assert "3 conversations of 2 turns" in text
    assert "0 first prompts of the cold phases began with a prefix that an earlier one had had" in text
    assert "niah_single_1 3 documents of 1024 tokens" in text
    assert "fs, 4 threads, cold beside kvfs, 4 threads, cold" in text
    assert "Page cache: " in text
    assert "arm `kvfs-fallback`: engine fallback" in text
    assert "ext4 on /dev/vda" in text


def test_report_of_a_failed_run_says_so_first_and_names_the_check(run: MadeUpRun) -> None:
    run.change("tier_hit_tokens", [0], arm="kvfs", phase="warm", streams=1)
    text = bench_tables.markdown(run.records, checks.evaluate(run.records))
    assert text.index("FAILED: 1 of 30 checks did not pass.") < text.index("## Results")
    assert "- **FAIL** kvfs, 4 threads: warm tokens came from the disk tier" in text


def test_report_tells_the_drift_of_a_repeated_baseline(run: MadeUpRun) -> None:
    again = [record for record in run.records if record.arm == "none" and record.metric == "requests_per_s"]
    run.records += [dataclasses.replace(record, values=[0.9]) for record in again]
    text = bench_tables.markdown(run.records, checks.evaluate(run.records))
    assert "Drift: the baseline's requests/s, last run against first: -10%, -10%." in text


def test_report_of_a_server_of_the_user_says_what_host_means_there(run: MadeUpRun) -> None:
    records = [
        dataclasses.replace(r, arm="target") for r in run.records if r.arm == "fs" and r.phase != "warm"
    ]
    text = bench_tables.markdown(records, checks.evaluate(records))
    assert "No check applies" in text
    assert "was not restarted, so **host** only means" in text
    assert [row[3] for row in rows_of(text, "target")[:4]] == ["cold", "host", "cold", "host"]


def test_tables_fit_a_terminal_of_100_columns(run: MadeUpRun) -> None:
    output = io.StringIO()
    bench_tables.print_result(Console(file=output, width=100), run.records, checks.evaluate(run.records))
    text = output.getvalue()
    tables = text[: text.index("PASS")]
    assert max(map(len, tables.splitlines())) <= 100
    # Nothing is cut: rich marks that with an ellipsis.
    assert "…" not in tables
    for word in ("req/s", "TTFT ms", "out tok/s", "kvfs-fallback", "niah_single_1", "warm tokens from disk"):
        assert word in tables
    assert text.rstrip().endswith("All 30 checks passed.")
