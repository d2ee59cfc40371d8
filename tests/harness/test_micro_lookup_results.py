"""Tests of what becomes of lookups: lines, tables and pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.micro import lookup_cases, lookup_plots, lookup_summary, plots, summary
from harness.micro.lookup_cases import LookupCase, ScaleCase
from harness.records import Record
from harness.report import Grid

CONTENDERS = lookup_cases.contenders(["fs", "kvfs", "kvfs-fallback"], ["psync"])


def record(
    case: Mapping[str, object], arm: str, metric: str, values: Sequence[float], runs: int = 7
) -> Record:
    unit, better = lookup_cases.UNITS[metric]
    return Record("micro", case, arm, metric, unit, better, values, {"runs": runs})  # type: ignore[arg-type]


def some_records() -> list[Record]:
    """Return two lengths, all patterns, idle and busy, by all contenders."""
    made = []
    for case in lookup_cases.plan([512, 3600]):
        for number, contender in enumerate(CONTENDERS, start=1):
            key = case.key(contender, contender.io, "ext4")
            for metric, values in (
                ("scheduler_cpu_ns_per_key", [1600.0 / number, 1600.0 / number, 9999.0]),
                ("verdict_wall_ms", [20.0 / number**2] * 3),
                ("verdict_own_ms", [16.0 / number**3] * 3),
                ("retry_steps", [0, 0, 2 if contender.mode == "stock" else 0]),
            ):
                made.append(record(key, contender.arm, metric, values))
    return made


def cells(grid: Grid) -> Mapping[tuple[str, str], list[str]]:
    return {(row[0], row[1]): list(row[2:]) for row in grid.rows}


def test_lines_name_the_mode_and_keep_the_number_of_runs() -> None:
    lines = summary.lines_of(some_records())
    assert {line.arm for line in lines} == {contender.label for contender in CONTENDERS}
    assert {line.runs for line in lines} == {7}
    first = [line for line in lines if line.group == lines[0].group]
    assert [line.arm for line in first] == [contender.label for contender in CONTENDERS]
    assert first[0].group.text == "512 keys, hit"


def test_lookup_grid_has_ratios_to_the_stock_tier_of_the_same_case() -> None:
    lines = summary.lines_of(some_records())
    assert summary.grids(lines) == [], "lookups are no table of chunks"
    (grid,) = lookup_summary.grids(lines)
    assert len(grid.rows) == 2 * 3 * 2 * len(CONTENDERS)
    table = cells(grid)
    assert table["3600 keys, half, busy", "fs"] == ["1,600", "1", "20", "1", "20", "1", "2"]
    assert table["3600 keys, half, busy", "kvfs owner"] == ["800", "0.5", "5", "0.25", "5", "0.125", "0"]
    assert table["512 keys, miss", "kvfs shared"][:2] == ["533", "0.333"]


def test_scale_grids_show_start_and_index() -> None:
    start = ScaleCase("start", 200_000).key("owner", "uring", "ext4")
    index = ScaleCase("index", 10_000_000).key("", "none", "none")
    made = [
        record(start, "kvfs", "startup_ms", [12.0, 14.0, 40.0]),
        record(start, "kvfs", "scan_files_per_s", [150_000.0]),
        record(start, "kvfs", "index_bytes_per_key", [61.5]),
        record(start, "kvfs", "restart_ms", [99.4]),
        record(start, "kvfs", "victim_gap_us", [300.0, 420.0]),
        record(start, "kvfs", "victim_gap_idle_us", [290.0, 310.0]),
        record(index, "kvfs", "insert_keys_per_s", [5_000_000.0]),
        record(index, "kvfs", "index_bytes_per_key", [58.2]),
        record(index, "kvfs", "lookup_hit_ns", [140.0]),
    ]
    lines = summary.lines_of(made)
    start_grid, index_grid = lookup_summary.grids(lines)
    row = cells(start_grid)["200000 files", "kvfs owner"]
    assert row == ["14", "40", "150,000", "61.5", "99.4", "310", "420"]
    assert cells(index_grid)["10000000 keys", "kvfs"] == ["5,000,000", "58.2", "-", "140", "-", "-", "-"]
    assert lookup_summary.brief(lines) == (
        "startup_ms 14; scan_files_per_s 150,000; restart_ms 99.4; index_bytes_per_key 61.5; "
        "insert_keys_per_s 5,000,000; index_bytes_per_key 58.2"
    )


def test_brief_says_what_a_prompt_cost() -> None:
    case = LookupCase(512, "hit", busy=False)
    members = [line for line in summary.lines_of(some_records()) if line.group.text == "512 keys, hit"][:2]
    assert summary.brief(members) == ""
    assert lookup_summary.brief(members) == "fs 1,600 ns a key, 20 ms; kvfs owner 800 ns a key (x 0.5), 5 ms"
    assert str(case) == "lookup 512 keys, hit"


def test_draw_all_makes_a_picture_of_idle_tiers_and_one_of_busy_ones(tmp_path: Path) -> None:
    lines = summary.lines_of(some_records())
    assert plots.draw_all(lines, tmp_path, "ext4") == [], "lookups are no picture of chunks"
    paths = lookup_plots.draw_all(lines, tmp_path, "ext4")
    assert sorted(path.name for path in paths) == [
        "micro-lookup-busy.png",
        "micro-lookup-busy.svg",
        "micro-lookup-idle.png",
        "micro-lookup-idle.svg",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths if path.suffix == ".png")
    svg = ET.parse(tmp_path / "micro-lookup-idle.svg").getroot()  # noqa: S314 - we drew it
    texts = {"".join(element.itertext()).strip() for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {contender.label for contender in CONTENDERS} <= texts
    assert {"scheduler's CPU time a key, ns", "time to the verdict, ms", "keys of the prompt"} <= texts
    assert {"512", "3600", "all keys are there", "none is there"} <= texts


@pytest.mark.parametrize("wanted", ["scale", "nothing"])
def test_draw_all_without_lookups_makes_nothing(tmp_path: Path, wanted: str) -> None:
    start = ScaleCase("start", 10).key("owner", "uring", "ext4")
    records = [record(start, "kvfs", "startup_ms", [1.0])] if wanted == "scale" else []
    assert lookup_plots.draw_all(summary.lines_of(records), tmp_path, "ext4") == []
