"""Tests of the micro benchmark as its users run it: everything once, arms that are missing, and Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

import harness
from harness import records
from harness.records import Record

ROOT = Path(harness.__file__).resolve().parents[1]
WAIT_S = 60.0
POLL_S = 0.05


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "harness.micro", "--out", str(out), *options]


def run(out: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({} if path is None else {"PATH": path})}
    return subprocess.run(
        command(out, *options), capture_output=True, text=True, check=False, cwd=ROOT, env=env
    )


def of_arm(found: Sequence[Record], arm: str, io: str) -> set[tuple[object, str]]:
    return {
        (record.case["op"], record.metric)
        for record in found
        if record.arm == arm and record.case["io"] == io
    }


TIMES = ("wall_us_per_chunk", "cpu_us_per_chunk", "gb_per_s", "job_latency_ms")
EXPECTED = {
    *((op, metric) for op in ("store", "load", "mixed") for metric in TIMES),
    ("mixed", "job_latency_idle_ms"),
    *((op, metric) for op in ("store", "load") for metric in ("victim_gap_us", "victim_gap_idle_us")),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smoke_runs_every_arm_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(out, "--smoke", "--chunk", "64KiB", "--threads", "2", "--shape", "4x4")
    assert done.returncode == 0, done.stdout + done.stderr
    found = records.read(out / "records.jsonl")
    for arm, io in (("fs", "stock"), ("fs-aa", "stock"), ("kvfs", "psync"), ("kvfs-fallback", "python")):
        assert of_arm(found, arm, io) >= EXPECTED, arm
    for optional, io in (("kvfs (uring)", "uring"), ("fio", "uring")):
        name = optional.split(" ")[0]
        assert of_arm(found, name, io) or f"not measured: {optional}: " in done.stdout, done.stdout
    assert all(record.env["page_cache"] for record in found if record.metric == "gb_per_s")
    assert re.search(r"64 KiB 4x4, 2 threads +kvfs \(psync\)", done.stdout)
    left = {path.name for path in out.iterdir()}
    assert left == {
        "records.jsonl",
        "micro.md",
        "logs",
        *(f"micro-{op}-many-jobs.{suffix}" for op in ("store", "load") for suffix in ("png", "svg")),
    }
    assert not any(path.is_dir() for path in (out / "logs").iterdir())


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--op", "delete"], "'delete' is no operation"),
        (["--threads", "0"], "'0' is no number of threads from 1 to 1024"),
        (["--chunk", "1000"], "a whole number of pages"),
        (["--arms", "nfs"], "'nfs' is unknown"),
        (["--chunk", "8MiB", "--max-bytes", "1MiB"], "a chunk of 8 MiB is more than a run may move"),
    ],
    ids=["op", "threads", "chunk", "arms", "max-bytes"],
)
def test_wrong_option_ends_with_a_sentence_and_status_2(
    tmp_path: Path, options: list[str], message: str
) -> None:
    done = run(tmp_path / "out", *options)
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_directory_that_is_too_small_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--backlog", "900000GiB", "--op", "mixed", "--arms", "kvfs")
    assert done.returncode == 2
    assert "are needed at once: use another --dir, or a smaller --max-bytes or --backlog" in done.stderr


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
