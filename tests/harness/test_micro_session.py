"""Tests of the micro benchmark as its users run it: everything once, arms that are missing, and Ctrl-C."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import psutil
import pytest
from click.testing import CliRunner

import harness
from harness import records
from harness.errors import EXIT_USAGE
from harness.micro.__main__ import COMMAND
from harness.micro.options import Options
from harness.records import Record

ROOT = Path(harness.__file__).resolve().parents[1]
WAIT_S = 60.0
POLL_S = 0.05
HAS_FIO, HAS_STRACE = shutil.which("fio") is not None, shutil.which("strace") is not None


class Usage(NamedTuple):
    """A disk as `shutil.disk_usage` describes it, as far as it is asked."""

    free: int


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "harness.micro", "--out", str(out), *options]


def run(out: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({} if path is None else {"PATH": path})}
    return subprocess.run(
        command(out, *options), capture_output=True, text=True, check=False, cwd=ROOT, env=env
    )


TIMES = {"wall_us_per_chunk", "cpu_us_per_chunk", "gb_per_s", "job_latency_ms"}
GAPS = {"victim_gap_us", "victim_gap_idle_us"}
ARMS = [("fs", "stock"), ("fs-aa", "stock"), ("kvfs", "psync"), ("kvfs-fallback", "python")]
# Operation, threads, jobs and chunks of each, as many as one MiB has.
CASES = {
    *((op, threads, jobs, 16 // jobs) for op in ("store", "load") for threads in (1, 16) for jobs in (1, 16)),
    *(("mixed", threads, 1, 16) for threads in (1, 16)),
}
PICTURES = {
    *(f"micro-{op}-{jobs}" for op in ("store", "load") for jobs in ("many-jobs", "one-job")),
    *(f"micro-lookup-{state}" for state in ("idle", "busy")),
}
LOOKUP_METRICS = {"scheduler_cpu_ns_per_key", "verdict_wall_ms", "verdict_own_ms", "retry_steps"}
# Arm and mode of everyone who looks up.
LOOKUP_ARMS = {
    *((arm, "stock") for arm in ("fs", "fs-aa")),
    *((arm, mode) for arm in ("kvfs", "kvfs-fallback") for mode in ("owner", "shared")),
}


def metrics_by_case(found: Sequence[Record], arm: str, io: str) -> dict[tuple[object, ...], set[str]]:
    by_case: dict[tuple[object, ...], set[str]] = {}
    for record in found:
        case = record.case
        if record.arm == arm and case["io"] == io:
            key = (case["op"], case["threads"], case["jobs"], case["chunks_per_job"])
            by_case.setdefault(key, set()).add(record.metric)
    return by_case


def check_lookups(found: Sequence[Record]) -> None:
    measured: dict[tuple[object, ...], set[str]] = {}
    for record in found:
        case = record.case
        assert (case["keys"], len(record.values)) == (64, 2)
        place = (record.arm, case["mode"], case["pattern"], case["busy"])
        measured.setdefault(place, set()).add(record.metric)
    patterns = ("hit", "half", "miss")
    expected = {
        (*arm, pattern, busy) for arm in LOOKUP_ARMS for pattern in patterns for busy in (False, True)
    }
    assert measured == dict.fromkeys(expected, LOOKUP_METRICS)


def check_arm(found: Sequence[Record], arm: str, io: str) -> None:
    by_case = metrics_by_case(found, arm, io)
    for case in CASES:
        idle = {"job_latency_idle_ms"} if case[0] == "mixed" else set()
        assert by_case[case] - GAPS - {"syscalls_per_chunk"} == TIMES | idle, (arm, case)
    for op in ("store", "load"):
        measured = {metric for case, metrics in by_case.items() if case[0] == op for metric in metrics}
        assert measured >= GAPS, (arm, op)
        # Counted once an arm; the second round of fs shows nothing new.
        assert ("syscalls_per_chunk" in measured) is (HAS_STRACE and arm != "fs-aa"), (arm, op)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smoke_measures_every_case_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Every operation, arm and metric, in one chunk size; where fio or strace is not installed it says so.

    All arms load what lies in the directory that vLLM's own tier names, so that kvfs names the same.
    """
    out = tmp_path / "out"
    done = run(out, "--smoke", "--chunk", "64KiB", "--threads", "1,16")
    assert done.returncode == 0, done.stdout + done.stderr
    everything = records.read(out / "records.jsonl")
    check_lookups([record for record in everything if record.case["op"] == "lookup"])
    found = [record for record in everything if record.case["op"] != "lookup"]
    uring_missing = "not measured: kvfs (uring): " in done.stdout
    for arm, io in [*ARMS, *([] if uring_missing else [("kvfs", "uring")])]:
        check_arm(found, arm, io)
    limit = {record.case["op"] for record in found if record.arm == "fio"}
    assert limit == ({"store", "load"} if HAS_FIO else set())
    assert HAS_FIO or "not measured: fio: fio is not installed" in done.stdout
    assert HAS_STRACE or "not measured: syscalls_per_chunk: strace is not installed" in done.stdout
    for record in found:
        if record.metric == "gb_per_s" and record.arm != "fio":
            assert record.env["page_cache"]
            check_bytes_were_compared(record)
    assert re.search(r"64 KiB 16x1, 16 threads +kvfs \(psync\)", done.stdout)
    assert re.search(r"64 keys, half, busy +kvfs shared", done.stdout)
    pictures = {f"{name}.{suffix}" for name in PICTURES for suffix in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {"records.jsonl", "micro.md", "logs", *pictures}
    assert all((out / name).stat().st_size > 1000 for name in pictures)
    assert not any(path.is_dir() for path in (out / "logs").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scale_is_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--smoke", "--op", "lookup", "--arms", "kvfs", "--scale", "200", "--scale-keys", "5000"]
    done = run(out, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [record for record in records.read(out / "records.jsonl") if record.case["op"] != "lookup"]
    by_op: dict[tuple[object, object], set[str]] = {}
    for record in found:
        by_op.setdefault((record.case["op"], record.case["keys"]), set()).add(record.metric)
    assert by_op == {
        ("start", 200): {
            *("startup_ms", "scan_files_per_s", "index_bytes_per_key", "restart_ms"),
            *("victim_gap_us", "victim_gap_idle_us"),
        },
        ("index", 5000): {
            *("insert_keys_per_s", "index_bytes_per_key", "index_bytes_per_key_max"),
            *("lookup_hit_ns", "lookup_miss_ns", "prefix_hit_ns_per_key", "prefix_miss_ns"),
        },
    }
    assert re.search(r"200 files +kvfs owner", done.stdout)
    assert re.search(r"5000 keys +kvfs ", done.stdout)
    assert not list(out.glob("kvfs-micro-*"))


def check_bytes_were_compared(record: Record) -> None:
    (checked,) = cast("list[int]", record.env["checked_chunks"])
    jobs, chunks_per_job = cast("int", record.case["jobs"]), cast("int", record.case["chunks_per_job"])
    if record.case["op"] == "load":
        assert checked == jobs * chunks_per_job
    else:
        assert checked >= min(8, chunks_per_job)


def test_tools_that_are_not_installed_are_reported_as_missing(tmp_path: Path) -> None:
    options = ["--smoke", "--op", "store", "--chunk", "64KiB", "--threads", "1", "--no-victim"]
    done = run(tmp_path / "out", *options, "--arms", "kvfs,fio", "--io", "psync", path=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not measured: fio: fio is not installed" in done.stdout
    assert "not measured: syscalls_per_chunk: strace is not installed" in done.stdout


def test_session_without_any_arm_says_why(tmp_path: Path) -> None:
    (tmp_path / "kvfs_ext.py").write_text("raise ImportError('built for another machine')")
    python_path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": python_path}
    arguments = command(tmp_path / "out", "--smoke", "--arms", "kvfs", "--op", "load")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT, env=env)
    assert done.returncode == 1
    assert "no arm can be measured here" in done.stderr
    assert "built for another machine" in done.stderr


@pytest.fixture
def signals() -> Iterator[None]:
    """Take back how the command line, run in this process, has signals handled."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def refusal(out: Path, *options: str) -> str:
    """Run the command line, which must end as for a mistake of the user; return what it says."""
    result = CliRunner().invoke(COMMAND, ["--out", str(out), *options])
    assert result.exit_code == EXIT_USAGE, result.output
    assert isinstance(result.exception, SystemExit)
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--op", "delete"], "'delete' is no operation"),
        (["--threads", "0"], "'0' is no number of threads from 1 to 1024"),
        (["--chunk", "1000"], "a whole number of pages"),
        (["--arms", "nfs"], "'nfs' is unknown"),
        (["--chunk", "8MiB", "--max-bytes", "1MiB"], "a chunk of 8 MiB is more than a run may move"),
        (["--keys", "1"], "a prompt has 2 to 1000000 keys"),
        (["--op", "lookup", "--arms", "fio"], "leave nothing to measure"),
    ],
    ids=["op", "threads", "chunk", "arms", "max-bytes", "keys", "fio-looks-nothing-up"],
)
def test_wrong_option_ends_with_a_sentence_and_status_2(
    tmp_path: Path, signals: None, options: list[str], message: str
) -> None:
    assert message in refusal(tmp_path / "out", *options)


def test_directory_that_is_too_small_is_refused(tmp_path: Path, signals: None) -> None:
    said = refusal(tmp_path / "out", "--backlog", "900000GiB", "--op", "mixed", "--arms", "kvfs")
    assert "are needed at once: use another --dir, or a smaller --max-bytes or --backlog" in said
    assert not list((tmp_path / "out").glob("kvfs-micro-*"))


def test_directory_without_room_for_the_files_of_the_scale_is_refused(tmp_path: Path, signals: None) -> None:
    said = refusal(tmp_path / "out", "--op", "lookup", "--arms", "kvfs", "--scale", "100000000")
    assert "use another --dir or a smaller --scale" in said
    assert not list((tmp_path / "out").glob("kvfs-micro-*"))


def planned_backlogs(*options: str) -> dict[int, int]:
    """Return the bytes of the mixed case's backlog by chunk size, as the command line means it."""
    context = COMMAND.make_context("micro", ["--op", "mixed", "--threads", "16", *options])
    planned = Options(**context.params).plan().cases
    return {case.chunk_bytes: case.backlog_jobs * case.chunks_per_job * case.chunk_bytes for case in planned}


def test_backlog_is_4_gib_by_default_and_at_most_4096_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(free=100 << 30))
    options = ["--dir", str(tmp_path / "not-made-yet"), "--chunk", "64KiB,1MiB,8MiB"]
    assert planned_backlogs(*options) == {64 << 10: 256 << 20, 1 << 20: 4 << 30, 8 << 20: 4 << 30}
    assert planned_backlogs(*options, "--backlog", "1GiB")[1 << 20] == 1 << 30


def test_backlog_takes_no_more_than_a_small_disk_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(free=2 << 30))
    (backlog_bytes,) = planned_backlogs("--dir", str(tmp_path), "--chunk", "1MiB").values()
    assert 512 << 20 < backlog_bytes < 1 << 30


@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminate"]
)
def test_interruption_ends_every_process_and_removes_the_data(
    tmp_path: Path, signal_number: int, status: int
) -> None:
    out = tmp_path / "out"
    options = ["--op", "load", "--chunk", "1MiB", "--arms", "kvfs,kvfs-fallback", "--io", "psync"]
    with subprocess.Popen(
        command(out, *options, "--runs", "1000"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            children = _await_first_file(process, out)
            process.send_signal(signal_number)
            process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == status
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive
    assert not list(out.glob("kvfs-micro-*")), "data is left on the disk"


def _await_first_file(process: subprocess.Popen[str], out: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + WAIT_S
    while not any(out.glob("kvfs-micro-*/**/*.bin")):
        assert process.poll() is None, f"it ended with status {process.returncode}"
        assert time.monotonic() < deadline, "nothing was stored"
        time.sleep(POLL_S)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    return children
