"""Tests of starting and ending programs: one that dies, one that is slow, and nothing that stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.processes import GuardedProcess
from harness.server import Server, ServerError, ServerSpec, free_port

ROOT = Path(__file__).resolve().parents[2]
STANDIN = Path(__file__).with_name("standin_server.py")
RUN_STANDIN = Path(__file__).with_name("run_standin.py")
SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_S = 20.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {TIMEOUT_S:.0f} s"
        time.sleep(0.02)


class Started:
    """What a stand-in server started, as it reported it."""

    def __init__(self, report: Path) -> None:
        region, *pids = report.read_text().split()
        self.region = SHARED_MEMORY / region
        self.processes = [psutil.Process(int(pid)) for pid in pids]

    def left(self) -> list[psutil.Process]:
        return [process for process in self.processes if process.is_running()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def spec(tmp_path: Path, log: Path) -> ServerSpec:
    port = free_port()
    return ServerSpec(
        command=[sys.executable, str(STANDIN), str(port), str(tmp_path / "started")],
        base_url=f"http://127.0.0.1:{port}",
        log_path=log,
        ready_timeout_s=TIMEOUT_S,
    )


def test_server_ends_with_all_that_it_started(spec: ServerSpec, tmp_path: Path) -> None:
    with Server(spec) as server:
        server.wait_until_up()
        server.check_alive()
        started = Started(tmp_path / "started")
        assert len(started.left()) == 4
        assert started.region.exists()
    assert started.left() == []
    assert not started.region.exists()


def test_server_whose_block_fails_ends_with_all_that_it_started(spec: ServerSpec, tmp_path: Path) -> None:
    seen = []

    def be_interrupted() -> None:
        with Server(spec) as server:
            server.wait_until_up()
            seen.append(Started(tmp_path / "started"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    (started,) = seen
    assert started.left() == []
    assert not started.region.exists()


def test_server_that_dies_at_start_raises_with_the_last_lines_of_its_log(tmp_path: Path, log: Path) -> None:
    script = "import sys; print('x' * 10 + '\\nunknown flag --bad', flush=True); sys.exit(3)"
    spec = ServerSpec([sys.executable, "-c", script], f"http://127.0.0.1:{free_port()}", log)
    with pytest.raises(ServerError) as caught, Server(spec) as server:
        server.wait_until_up()
    message = str(caught.value)
    assert message.startswith("the server ended with status 3 before it was up")
    assert str(log) in message
    assert message.endswith("unknown flag --bad")


def test_server_that_dies_at_start_leaves_no_process(tmp_path: Path, log: Path) -> None:
    """An engine can fail while its other processes wait for it."""
    report = tmp_path / "pid"
    script = (
        "import pathlib, subprocess; "
        f"pathlib.Path({str(report)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid)); "
        "raise SystemExit(1)"
    )
    spec = ServerSpec([sys.executable, "-c", script], f"http://127.0.0.1:{free_port()}", log)
    with pytest.raises(ServerError), Server(spec) as server:
        server.wait_until_up()
    assert not psutil.pid_exists(int(report.read_text()))


def test_server_with_a_flag_that_vllm_refuses_shows_what_vllm_said(tmp_path: Path, log: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import argparse; argparse.ArgumentParser().parse_args()",
        "--no-such-flag",
    ]
    spec = ServerSpec(command, f"http://127.0.0.1:{free_port()}", log)
    with pytest.raises(ServerError, match="unrecognized arguments: --no-such-flag"), Server(spec) as server:
        server.wait_until_up()


def test_server_that_does_not_answer_in_time_is_ended(log: Path) -> None:
    spec = ServerSpec(["sleep", "600"], f"http://127.0.0.1:{free_port()}", log, ready_timeout_s=0.3)
    server = Server(spec)
    with pytest.raises(ServerError, match=r"did not answer http://\S+/health within"), server:
        server.wait_until_up()
    assert server._process.tree() == []


def test_server_that_dies_later_is_noticed(spec: ServerSpec, tmp_path: Path) -> None:
    with Server(spec) as server:
        server.wait_until_up()
        started = Started(tmp_path / "started")
        started.processes[0].kill()
        wait_until(lambda: server._process.poll() is not None, "the end of the server")
        with pytest.raises(ServerError, match=r"(?s)ended with status 137.*the stand-in is up"):
            server.check_alive()
    assert started.left() == []


def test_command_that_does_not_exist_says_so(log: Path) -> None:
    spec = ServerSpec(["/nonexistent/program"], f"http://127.0.0.1:{free_port()}", log)
    with pytest.raises(ServerError, match="No such file or directory"), Server(spec) as server:
        server.wait_until_up()


@pytest.fixture
def harness_process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs the stand-in the way the benchmark runs vLLM, and is up."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(RUN_STANDIN), str(tmp_path)],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            wait_until((tmp_path / "up").exists, "the stand-in")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signal_to_the_harness_leaves_no_process_behind(
    harness_process: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGKILL is what nox sends half a second after Ctrl-C: then the guard has to do it alone."""
    started = Started(tmp_path / "started")
    assert len(started.left()) == 4
    os.killpg(harness_process.pid, number)
    harness_process.wait(TIMEOUT_S)
    wait_until(lambda: not started.left() and not started.region.exists(), "the end of all that it started")


def test_end_asks_first_and_returns_the_status(tmp_path: Path, log: Path) -> None:
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print('up', flush=True); time.sleep(600)"
    )
    process = GuardedProcess([sys.executable, "-c", script], log_path=log, env=os.environ, cwd=tmp_path)
    wait_until(lambda: "up" in process.tail(), "the program")
    assert process.end() == 7


def test_end_kills_what_does_not_end_by_itself(tmp_path: Path, log: Path) -> None:
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = GuardedProcess(
        [sys.executable, "-c", script], log_path=log, env=os.environ, cwd=tmp_path, grace_s=0.2
    )
    wait_until(lambda: "up" in process.tail(), "the program")
    processes = process.tree()
    assert process.end() == 128 + signal.SIGKILL
    assert [left for left in processes if left.is_running()] == []


def test_named_shared_memory_is_removed_even_if_nobody_saw_it_open(tmp_path: Path, log: Path) -> None:
    name = f"kvfs_test_{os.getpid()}"
    script = f"open('/dev/shm/{name}', 'w').close()"
    process = GuardedProcess(
        [sys.executable, "-c", script], log_path=log, env=os.environ, cwd=tmp_path, unlink=[name]
    )
    wait_until(lambda: process.poll() is not None, "the end of the program")
    assert process.end() == 0
    assert not (SHARED_MEMORY / name).exists()


def test_shared_memory_of_others_is_left_alone(spec: ServerSpec, tmp_path: Path) -> None:
    other = SHARED_MEMORY / f"kvfs_other_{os.getpid()}"
    with other.open("wb") as file:
        try:
            with Server(spec) as server:
                server.wait_until_up()
            assert other.exists()
            assert not file.closed
        finally:
            other.unlink()
