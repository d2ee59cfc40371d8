"""Tests of a sweep's tables and checks: each check fails when what it claims is not so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from made_up_sweep import leg_records, study

from harness.records import Record, Scalar
from harness.sweep import summary

PLAN = study(arms="none,dram,fs,kvfs", threads="4,32/16")


def made_up() -> list[Record]:
    return [record for leg in PLAN.legs() for record in leg_records(PLAN, leg)]


def changed(
    metric: str, values: list[float] | None, *, case: dict[str, Scalar] | None = None, **which: object
) -> list[Record]:
    """Return the records with other values, or another case, where metric and case agree; None drops them."""
    found = []
    count = 0
    for record in made_up():
        fields = {"arm": record.arm, **record.case}
        if record.metric != metric or any(fields.get(key) != value for key, value in which.items()):
            found.append(record)
            continue
        count += 1
        if values is not None:
            new_case = {**record.case, **(case or {})}
            found.append(dataclasses.replace(record, values=values, case=new_case))
    assert count
    return found


def failed(records: list[Record]) -> list[str]:
    return [summary.line(check) for check in summary.evaluate(records) if not check.passed]


def test_sweep_in_which_all_is_well_passes_every_check() -> None:
    checks = summary.evaluate(made_up())
    assert failed(made_up()) == []
    # Prompts; engine, hits, bytes read and jobs for two arms with two numbers of threads.
    assert len(checks) == 1 + 4 * 4


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (
            lambda: changed("tier_hit_tokens", [0.0], arm="kvfs", threads=32, phase="warm", streams=2),
            r"FAILED: mine: kvfs, 32/16 threads: warm tokens came from the disk tier (none with 2 streams)",
        ),
        (
            lambda: changed("tier_hit_tokens", None, arm="kvfs", threads=4, phase="warm"),
            "kvfs, 4 threads: warm tokens came from the disk tier (no warm phase was measured)",
        ),
        (
            lambda: changed("storage_read_bytes", [1e6], arm="fs", threads=4, phase="warm", streams=1),
            "fs, 4 threads: warm bytes were read from storage (1 stream: 1 of 8 MB; 2 streams: 8 of 8 MB)",
        ),
        (
            lambda: changed("storage_read_bytes", None, arm="fs", threads=4, phase="warm", streams=1),
            "1 stream: 0 of 8 MB",
        ),
        (
            lambda: changed("tier_failed_jobs", [2.0], arm="fs", threads=4, phase="cold", streams=1),
            "fs, 4 threads: no promotion and no cascade failed (2 failed)",
        ),
        (
            lambda: changed("requests_per_s", [1.0], arm="none", streams=2, case={"inputs": "other"}),
            "every arm and phase was asked the same (prompts differ with 2 streams)",
        ),
        (list, "something was measured (there is no record of a sweep)"),
    ],
)
def test_check_fails_and_says_where_when_its_claim_is_not_so(
    break_it: Callable[[], list[Record]], said: str
) -> None:
    (only,) = failed(break_it())
    assert said in only


def test_arm_on_another_engine_fails() -> None:
    records = [
        dataclasses.replace(record, env={**record.env, "engine": "fallback"})
        if record.arm == "kvfs"
        else record
        for record in made_up()
    ]
    assert any(
        "kvfs, 4 threads: runs on its extension (engine: fallback)" in text for text in failed(records)
    )


def test_tables_have_a_row_for_each_case_with_medians_and_means() -> None:
    speed, disk = summary.grids(made_up())
    rows = {tuple(row[:4]): row[4:] for row in speed.rows}
    assert ("none", "-", "1", "cold") in rows
    assert ("dram", "-", "2", "host") in rows
    assert rows["kvfs", "32/16", "2", "warm"] == ["4.00", "32.0", "900", "100", "200", "1,250", "20"]
    disk_rows = {tuple(row[:4]): row[4:] for row in disk.rows}
    assert disk_rows["fs", "4", "1", "warm"] == ["100", "64", "256", "8", "8", "-", "20", "4"]
    page = summary.markdown(made_up(), summary.evaluate(made_up()))
    assert "## mine, scale 2: speed" in page
    assert "- ok: mine: fs, 4 threads: warm tokens came from the disk tier" in page
