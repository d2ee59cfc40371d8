"""A worker as the session sees it: started, listened to, given orders, stopped for a look, killed."""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast

import psutil

import harness
from harness.errors import HarnessError
from harness.processes import GuardedProcess
from harness.soak.worker import Job

_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); from harness.soak import worker; "
    "sys.exit(worker.main(sys.argv[1:]))"
)
_SOURCE_ROOT: Final = Path(harness.__file__).resolve().parents[1]
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.001
# A thread in the state T has stopped; Z and X are no more.
_STOPPED: Final = frozenset("TtZX")


class Worker:
    """A worker process; reports are taken by a thread, so that it never waits for its reader.

    Args:
        name: The log's name.
        job: What it is told.
        log_dir: Gets its log.

    Raises:
        HarnessError: It does not start; the message has the end of its log.
    """

    def __init__(self, name: str, job: Job, log_dir: Path) -> None:
        self.name = name
        self.job = job
        self._process = GuardedProcess(
            [sys.executable, "-c", _PROGRAM, str(_SOURCE_ROOT), job.line()],
            log_path=log_dir / f"{name}.log",
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            cwd=log_dir,
            talks=True,
        )
        self.counts: Counter[str] = Counter()
        # Keys, in hex, whose loads have failed as damaged.
        self.damaged: set[str] = set()
        self.pid = 0
        self._latencies: dict[str, list[float]] = {"store": [], "load": []}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.pid and not job.verify:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise HarnessError(f"{name} did not start; the end of its log:\n{self._process.tail()}")
            time.sleep(_POLL_S)
            self.listen()

    def listen(self) -> None:
        """Take the reports that have come."""
        while not self._lines.empty():
            report = json.loads(self._lines.get())
            self.pid = report["pid"]
            # Each report has all since the start.
            self.counts = Counter(cast("dict[str, int]", report["counts"]))
            for kind, values in cast("dict[str, list[float]]", report["latencies"]).items():
                self._latencies[kind] += values
            self.damaged.update(report["damaged"])

    def take_latencies(self, kind: str) -> list[float]:
        """Return the times of jobs since the last call, in ms."""
        taken, self._latencies[kind] = self._latencies[kind], []
        return taken

    def load(self, key: bytes) -> None:
        """Have a key loaded next."""
        self._say(key.hex())

    def close(self) -> int:
        """Have it close its engine and end; return its exit status."""
        self._say("stop")
        return self.await_end()

    def await_end(self) -> int:
        """Wait until it has ended by itself; return its exit status."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while (status := self._process.poll()) is None:
            if time.monotonic() > deadline:
                self.end()
                raise HarnessError(f"{self.name} does not end; the end of its log:\n{self._process.tail()}")
            time.sleep(_POLL_S)
        self._finish()
        return status

    def kill(self) -> None:
        """End it as it stands, which leaves what a crash leaves."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(HarnessError):
            self.await_end()

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()

    def death(self) -> str:
        """Return a sentence if it has ended by itself, "" while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        return (
            f"{self.name} ended by itself with status {status}; the end of its log:\n{self._process.tail()}"
        )

    def stop(self) -> None:
        """Stop all its threads, and wait until they stand still."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while not self._stands_still():
            if time.monotonic() > deadline:
                raise HarnessError(f"{self.name} does not stop for a look")

    def go_on(self) -> None:
        """Let it run again."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def resources(self) -> tuple[int, int, int]:
        """Return its memory in bytes, its open descriptors and its threads."""
        process = psutil.Process(self.pid)
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    def _say(self, text: str) -> None:
        # It may have ended, which is noticed elsewhere.
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{text}\n".encode())
            self._process.stdin.flush()

    def _finish(self) -> None:
        self._reader.join(_END_TIMEOUT_S)
        self.listen()
        self._process.end()

    def _read(self) -> None:
        # The pipe is closed under us when the worker is ended from outside.
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                # A killed one leaves half a line.
                if line.endswith(b"\n"):
                    self._lines.put(line)

    def _stands_still(self) -> bool:
        states = []
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                text = (task / "stat").read_text(encoding="utf-8")
                states.append(text.rpartition(")")[2].split()[0])
        return all(state in _STOPPED for state in states)
