"""Tests of what becomes of measurements: metrics, records, tables and pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness import records
from harness.micro import arms, collect, plots, summary
from harness.micro.cases import LOAD, MIXED, STORE, Case
from harness.micro.fio import FioRun
from harness.micro.requests import Answer
from harness.records import Record, RecordLog
from harness.report import Grid

MIB = 1 << 20
CASE = Case(LOAD, MIB, threads=16, jobs=16, chunks_per_job=16)
PAGE_CACHE = {
    "storage_read_bytes": 256 * MIB,
    "storage_write_bytes": 0,
    "resident_before_bytes": 0,
    "resident_after_bytes": 0,
    "moved_bytes": 256 * MIB,
}


def test_values_of_are_one_a_run_and_one_a_job() -> None:
    run = Answer(wall_s=[0.1, 0.3], cpu_s=[0.01, 0.03], chunks=200, latencies_s=[0.05, 0.1])
    values = collect.values_of(CASE, [run, run])
    assert values["wall_us_per_chunk"] == [2000, 2000]
    assert values["cpu_us_per_chunk"] == [200, 200]
    assert values["gb_per_s"] == [pytest.approx(200 * MIB / 0.4 / 1e9, abs=1e-4)] * 2
    assert values["job_latency_ms"] == [50, 100, 50, 100]
    assert set(values) < set(collect.UNITS)


def test_values_of_a_victim_are_gaps_alone() -> None:
    case = Case(LOAD, MIB, 16, 32, 4, victim=True)
    run = Answer(wall_s=[1], cpu_s=[1], chunks=10, gaps_s=[0.0003, 0.01], idle_gaps_s=[0.00025])
    assert collect.values_of(case, [run]) == {"victim_gap_us": [300, 10000], "victim_gap_idle_us": [250]}


def test_values_of_a_mixed_case_keep_idle_latencies_apart() -> None:
    case = Case(MIXED, MIB, 16, 1, 16, backlog_jobs=4)
    run = Answer(wall_s=[1], cpu_s=[1], chunks=10, latencies_s=[0.2], idle_latencies_s=[0.1])
    values = collect.values_of(case, [run])
    assert (values["job_latency_ms"], values["job_latency_idle_ms"]) == ([200], [100])


def test_fio_values_count_its_bytes_as_chunks() -> None:
    values = collect.fio_values(3 * MIB, [FioRun(wall_s=0.3, cpu_s=0.06, moved_bytes=300 * MIB)])
    assert values["wall_us_per_chunk"] == [3000]
    assert values["cpu_us_per_chunk"] == [600]


def test_collector_writes_records_that_can_be_read_again(tmp_path: Path) -> None:
    log = RecordLog(tmp_path)
    collector = collect.Collector(log, "ext4", {"kernel": "6"})
    run = Answer([0.1], [0.01], 256, [0.05], page_cache=PAGE_CACHE, facts={"engine": "extension"})
    proof = collector.write(CASE, arms.STOCK, [run, run])
    assert proof.proven
    written = records.read(log.path)
    assert [record.metric for record in written] == [
        "wall_us_per_chunk",
        "cpu_us_per_chunk",
        "gb_per_s",
        "job_latency_ms",
    ]
    assert {record.suite for record in written} == {"micro"}
    assert written[0].case == CASE.key("stock", "ext4")
    assert len(written[0].values) == 2
    env = written[0].env
    assert (env["kernel"], env["engine"], env["io"]) == ("6", "extension", "stock")
    assert isinstance(env["page_cache"], dict)
    assert env["page_cache"]["proven"] is True


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert summary.percentile(values, 50) == 50
    assert summary.percentile(values, 99) == 99
    assert summary.percentile(values, 99.9) == 100
    assert summary.percentile([7.0], 50) == 7


def make_record(arm: str, io: str, metric: str, values: Sequence[float], **case: object) -> Record:
    key = {**CASE.key(io, "ext4"), **case}
    unit, better = collect.UNITS[metric]
    return Record("micro", key, arm, metric, unit, better, values, {})  # type: ignore[arg-type]


def some_records() -> list[Record]:
    """Return two operations at two sizes and two thread counts, by all arms, and the limit."""
    made = []
    for op in (STORE, LOAD):
        for size in (64 << 10, MIB):
            for threads in (1, 16):
                for number, (arm, io) in enumerate(
                    [("fs", "stock"), ("kvfs", "psync"), ("kvfs-fallback", "python"), ("fs-aa", "stock")]
                ):
                    case = {"op": op, "chunk_bytes": size, "threads": threads}
                    made += [
                        make_record(arm, io, "gb_per_s", [1.0 + number, 1.2, 5.0], **case),
                        make_record(
                            arm, io, "cpu_us_per_chunk", [100.0, 50.0 * (2 - number % 2)] * 2, **case
                        ),
                        make_record(arm, io, "job_latency_ms", [3.0, 4.0], **case),
                        make_record(arm, io, "syscalls_per_chunk", [6.25], **case),
                    ]
            limit = {"op": op, "chunk_bytes": size, "threads": None, "jobs": None, "chunks_per_job": None}
            made.append(make_record("fio", "uring", "gb_per_s", [2.5], **limit))
            made.append(make_record("fio", "uring", "cpu_us_per_chunk", [10.0], **limit))
    return made


def cells(grid: object) -> Mapping[tuple[str, str], list[str]]:
    assert isinstance(grid, Grid)
    return {(row[0], row[1]): list(row[2:]) for row in grid.rows}


def test_grids_have_a_line_an_arm_with_ratios_to_fs_and_fio() -> None:
    store, load = summary.grids(summary.lines_of(some_records()))
    assert (store.title[:5], load.title[:4]) == ("Store", "Load")
    table = cells(load)
    assert table["1 MiB 16x16, 16 threads", "fs"][:3] == ["1.20", "1.00", "0.48"]
    kvfs = table["1 MiB 16x16, 16 threads", "kvfs (psync)"]
    assert kvfs == ["2.00", "1.67", "0.80", "75.0", "0.75", "3.50", "1.00", "4.00", "6.25"]
    assert table["1 MiB, the disk's limit", "fio (uring)"][0] == "2.50"
    assert "| 64 KiB 16x16, 1 thread | fs-aa |" in store.markdown()


def test_grids_show_what_a_victim_and_a_mixed_case_add() -> None:
    made = [
        make_record("fs", "stock", "victim_gap_us", [200, 400], jobs=32),
        make_record("fs", "stock", "victim_gap_idle_us", [100, 200], jobs=32),
        make_record("kvfs", "psync", "job_latency_ms", [2, 9], op="mixed", jobs=1),
        make_record("kvfs", "psync", "job_latency_idle_ms", [2, 3], op="mixed", jobs=1),
        make_record("kvfs", "psync", "gb_per_s", [1], op="mixed", jobs=1),
    ]
    mixed, victims = summary.grids(summary.lines_of(made))
    assert cells(mixed)["1 MiB 1x16, 16 threads", "kvfs (psync)"][-2:] == ["3.00", "3.00"]
    gaps = cells(victims)["load 1 MiB 32x16, 16 threads", "fs"]
    assert gaps == ["150", "200", "300", "400", "2.00", "2"]


def test_brief_says_what_a_case_cost() -> None:
    lines = [line for line in summary.lines_of(some_records()) if line.group.shape is not None][:2]
    assert summary.brief(lines) == "fs 1.20 GB/s, 100 us CPU; kvfs (psync) 2.00 GB/s, 75.0 us CPU (x 0.75)"


def test_draw_all_makes_a_picture_an_operation_with_every_arm(tmp_path: Path) -> None:
    paths = plots.draw_all(summary.lines_of(some_records()), tmp_path, "ext4")
    assert sorted(path.name for path in paths) == [
        "micro-load-many-jobs.png",
        "micro-load-many-jobs.svg",
        "micro-store-many-jobs.png",
        "micro-store-many-jobs.svg",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths if path.suffix == ".png")
    svg = ET.parse(tmp_path / "micro-load-many-jobs.svg").getroot()  # noqa: S314 - we drew it
    texts = {"".join(element.itertext()).strip() for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    labels = {"fs", "fs-aa", "kvfs (psync)", "kvfs-fallback", "fio: 16 requests deep, one file"}
    assert labels <= texts
    assert {"throughput, GB/s", "CPU time a chunk, µs", "read and write threads"} <= texts


def test_draw_all_of_nothing_makes_nothing(tmp_path: Path) -> None:
    assert plots.draw_all([], tmp_path, "ext4") == []
