"""Tests of a worker as a real process: what it measures, and what it says when something is wrong."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from harness.micro import chunks, runs, syscalls
from harness.micro.cases import LOAD, MIXED, STORE, Case
from harness.micro.requests import MEASURE, PREPARE, Answer, Request, WorkerError, parse_request, request_line
from harness.micro.worker_process import WorkerProcess

CHUNK_BYTES = 64 << 10
TIMEOUT_S = 60
CASE = Case(STORE, CHUNK_BYTES, threads=2, jobs=4, chunks_per_job=2, waves=2)
KINDS = {"extension": ("psync", "0"), "fallback": ("python", "1")}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def io(kind: str) -> str:
    return KINDS[kind][0]


@pytest.fixture(scope="module")
def worker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """One worker for all tests, as for all cases of a session: each run is a process of its own."""
    io, disabled = KINDS[kind]
    with WorkerProcess("kvfs", io, {"KVFS_DISABLE_EXT": disabled}, tmp_path_factory.mktemp("log")) as process:
        yield process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


def prepared(worker: WorkerProcess, io: str, root: Path, files: int) -> list[Path]:
    worker.ask(Request(PREPARE, io, str(root), CASE, files=files), TIMEOUT_S)
    paths = sorted(root.rglob("*.bin"))
    assert len(paths) == files
    return paths


def measure(worker: WorkerProcess, io: str, root: Path, case: Case, files: int = 0) -> Answer:
    request = Request(MEASURE, io, str(root), case, files=files, victim_s=0.05)
    return worker.ask(request, TIMEOUT_S)


def test_request_survives_the_line_and_nonsense_is_named() -> None:
    request = Request(MEASURE, "psync", "/somewhere", CASE, files=3)
    assert parse_request(request_line(request)) == request
    with pytest.raises(WorkerError, match="no request of the micro benchmark"):
        parse_request(b'{"kind": "measure"}')


def test_store_run_measures_each_wave_and_each_job(
    worker: WorkerProcess, io: str, kind: str, root: Path
) -> None:
    answer = measure(worker, io, root, CASE)
    assert len(answer.wall_s) == len(answer.cpu_s) == CASE.waves
    assert all(0 < wall_s < TIMEOUT_S for wall_s in answer.wall_s)
    assert all(cpu_s > 0 for cpu_s in answer.cpu_s)
    assert len(answer.latencies_s) == CASE.jobs * CASE.waves
    assert answer.chunks == CASE.chunks
    assert answer.facts["engine"] == kind
    # And the chunks that warm the threads up.
    assert len(list(root.rglob("*.bin"))) == CASE.chunks + CASE.threads


@pytest.mark.parametrize(
    ("prepared_with", "loaded_with", "verified"),
    [("require", "auto", True), ("require", "off", False), ("auto", "auto", False)],
    ids=["sealed", "sealed-but-off", "not-sealed"],
)
def test_load_run_verifies_where_files_are_sealed_and_it_is_not_off(
    worker: WorkerProcess, io: str, root: Path, prepared_with: str, loaded_with: str, verified: bool
) -> None:
    case = dataclasses.replace(CASE, op=LOAD)
    worker.ask(Request(PREPARE, io, str(root), case, prepared_with, files=case.chunks), TIMEOUT_S)
    request = Request(MEASURE, io, str(root), case, loaded_with, files=case.chunks)
    stats = cast("dict[str, int]", worker.ask(request, TIMEOUT_S).facts["engine_stats"])
    loads = [stats["verified_loads"], stats["unverified_loads"]]
    assert (loads[0] > 0, loads[1] > 0) == (verified, not verified)


def test_two_engines_take_turns_on_one_buffer(worker: WorkerProcess, io: str, root: Path) -> None:
    case = dataclasses.replace(CASE, op=LOAD)
    worker.ask(Request(PREPARE, io, str(root), case, "require", files=case.chunks), TIMEOUT_S)
    request = Request(MEASURE, io, str(root), case, "auto", beside="off", files=case.chunks)
    answer = worker.ask(request, TIMEOUT_S)
    assert answer.beside is not None
    for each, verified in ((answer, True), (answer.beside, False)):
        # Each wave twice, all of it compared.
        assert len(each.wall_s) == len(each.cpu_s) == 2 * case.waves
        assert each.checked_chunks == each.chunks == 2 * case.chunks
        assert each.page_cache["moved_bytes"] == each.chunks * case.chunk_bytes
        assert each.page_cache["storage_read_bytes"] >= each.page_cache["moved_bytes"]
        stats = cast("dict[str, int]", each.facts["engine_stats"])
        assert (stats["verified_loads"] > 0, stats["unverified_loads"] > 0) == (verified, not verified)


def test_load_run_reads_the_prepared_files_from_the_device(
    worker: WorkerProcess, io: str, root: Path
) -> None:
    case = Case(LOAD, CHUNK_BYTES, 2, 4, 2, waves=2)
    prepared(worker, io, root, files=16)
    answer = measure(worker, io, root, case, files=16)
    assert answer.checked_chunks == answer.chunks == case.chunks
    assert answer.page_cache["resident_before_bytes"] == 0
    assert answer.page_cache["moved_bytes"] == case.chunks * CHUNK_BYTES
    assert answer.page_cache["storage_read_bytes"] >= answer.page_cache["moved_bytes"]
    assert all(path.exists() for path in root.rglob("*.bin"))


def test_one_job_at_a_time_gives_one_latency_a_wave(worker: WorkerProcess, io: str, root: Path) -> None:
    answer = measure(worker, io, root, Case(STORE, CHUNK_BYTES, 2, 1, 8, waves=3))
    assert answer.latencies_s == answer.wall_s


def test_load_of_wrong_bytes_fails_the_run_and_the_worker_goes_on(
    worker: WorkerProcess, io: str, root: Path
) -> None:
    damaged = prepared(worker, io, root, files=8)[3]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    case = Case(LOAD, CHUNK_BYTES, 2, 4, 2)
    with pytest.raises(WorkerError, match="1 of 8 chunks were loaded with wrong bytes"):
        measure(worker, io, root, case, files=8)
    damaged.unlink()
    with pytest.raises(WorkerError, match="No such file"):
        measure(worker, io, root, case, files=8)
    assert measure(worker, io, root, CASE).chunks == CASE.chunks


def test_mixed_run_loads_behind_a_backlog_and_removes_what_it_stored(
    worker: WorkerProcess, io: str, root: Path
) -> None:
    before = prepared(worker, io, root, files=16)
    case = Case(MIXED, CHUNK_BYTES, 2, 1, 4, waves=4, backlog_jobs=8)
    answer = measure(worker, io, root, case, files=16)
    assert len(answer.idle_latencies_s) == case.waves
    assert 1 <= len(answer.latencies_s) <= case.waves
    assert answer.chunks == (case.backlog_jobs + len(answer.latencies_s)) * case.chunks_per_job
    # Names may stay, where removing them would make the next runs slow; data does not.
    assert sorted(path for path in root.rglob("*.bin") if path.stat().st_size) == before


@pytest.mark.parametrize("op", [STORE, LOAD])
def test_victim_run_has_gaps_of_an_idle_and_of_a_busy_engine(
    worker: WorkerProcess, io: str, root: Path, op: str
) -> None:
    if op == LOAD:
        prepared(worker, io, root, files=8)
    case = Case(op, CHUNK_BYTES, 2, 4, 2, waves=4, victim=True)
    answer = measure(worker, io, root, case, files=8)
    # It asks to sleep 200 µs.
    assert min(answer.gaps_s) >= 0.0002
    assert min(answer.idle_gaps_s) >= 0.0002
    assert answer.chunks >= case.wave_chunks


def test_existing_leaves_are_there_before_the_clock_runs(worker: WorkerProcess, io: str, root: Path) -> None:
    request = Request(MEASURE, io, str(root), CASE, existing_leaves=True)
    assert worker.ask(request, TIMEOUT_S).chunks == CASE.chunks


def test_wrong_backend_is_named(tmp_path: Path, root: Path) -> None:
    with (
        WorkerProcess("kvfs", "psync", {"KVFS_DISABLE_EXT": "1"}, tmp_path) as worker,
        pytest.raises(WorkerError, match="the extension is wanted, but kvfs's fallback is active"),
    ):
        measure(worker, "psync", root, CASE)


def test_arm_that_cannot_be_imported_says_why(tmp_path: Path, root: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('no vllm for this machine')")
    environment = {"PYTHONPATH": str(tmp_path)}
    with (
        WorkerProcess("fs", "stock", environment, tmp_path) as worker,
        pytest.raises(WorkerError, match="no vllm for this machine"),
    ):
        measure(worker, "stock", root, CASE)


def test_worker_that_does_not_answer_in_time_is_replaced(tmp_path: Path, root: Path) -> None:
    with WorkerProcess("kvfs", "psync", {"KVFS_DISABLE_EXT": "0"}, tmp_path) as worker:
        request = Request(MEASURE, "psync", str(root), CASE)
        with pytest.raises(WorkerError, match="did not answer within 0 s"):
            worker.ask(request, 0.0)
        other = tmp_path / "other"
        other.mkdir()
        assert measure(worker, "psync", other, CASE).chunks == CASE.chunks


@pytest.mark.skipif(bool(syscalls.unavailable()), reason=syscalls.unavailable())
def test_traced_run_counts_the_calls_of_its_jobs(
    worker: WorkerProcess, io: str, kind: str, root: Path, tmp_path: Path
) -> None:
    blocks: list[syscalls.StraceBlock] = []

    def attach(pid: int) -> syscalls.StraceBlock:
        assert pid != os.getpid()
        blocks.append(syscalls.StraceBlock(pid, tmp_path))
        return blocks[-1]

    case = Case(STORE, CHUNK_BYTES, 2, 4, 8)
    answer = worker.ask_traced(Request(MEASURE, io, str(root), case, traced=True), TIMEOUT_S, attach)
    calls = blocks[-1].calls
    assert answer.chunks == 32
    # Every chunk is one file, written once.
    writes = sum(calls[name] for name in ("pwrite64", "pwritev", "pwritev2", "write"))
    assert writes == answer.chunks, calls
    assert calls["close"] >= answer.chunks, calls
    assert not list(tmp_path.glob("trace-*")), "the trace is left behind"


def test_content_of_the_files_is_what_loads_expect(worker: WorkerProcess, io: str, root: Path) -> None:
    files = prepared(worker, io, root, files=2)
    content = chunks.Content(CHUNK_BYTES, runs._CONTENT_SEED)
    found = {
        number for path in files for number in range(2) if chunks.wrong_files(content, [(path, number)]) == []
    }
    assert found == {0, 1}
