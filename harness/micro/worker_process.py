"""A worker as the session sees it: started once an arm, asked for run after run, watched for time."""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import harness
from harness.errors import HarnessError
from harness.micro.requests import Answer, Request, WorkerError, parse_answer, request_line
from harness.processes import GuardedProcess

# The harness may lie in a source tree whose kvfs has no extension: it goes last on the worker's path, so that
# an installed wheel answers `import kvfs`.
_PROGRAM: Final = (
    "import importlib, sys; sys.path.append(sys.argv.pop(1)); "
    "sys.exit(importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:]))"
)
_MODULE: Final = "harness.micro.worker"
_SOURCE_ROOT: Final = Path(harness.__file__).resolve().parents[1]
_START_TIMEOUT_S: Final = 300.0
# One thread a pool is enough for NumPy's copies, and fewer threads are there when runs are forked.
_ENVIRONMENT: Final = {
    "PYTHONSAFEPATH": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class WorkerProcess:
    """One worker, which imports what its arm needs in the background from the moment that this is made.

    Args:
        name: The log's name.
        argument: Of the module's `main`; here the I/O path, see `drivers.py`.
        environment: Variables beside the inherited ones.
        log_dir: Gets the worker's log.
        module: What the process runs, and answers requests.
    """

    def __init__(
        self,
        name: str,
        argument: str,
        environment: Mapping[str, str],
        log_dir: Path,
        module: str = _MODULE,
    ) -> None:
        self._name = name
        self._arguments = (module, argument)
        self._environment = environment
        self._log_dir = log_dir
        self._start()

    def _start(self) -> None:
        self._received = b""
        self._ready = False
        self._process = GuardedProcess(
            [sys.executable, "-c", _PROGRAM, str(_SOURCE_ROOT), *self._arguments],
            log_path=self._log_dir / f"{self._name}.log",
            env={**os.environ, **_ENVIRONMENT, **self._environment},
            cwd=self._log_dir,
            talks=True,
            grace_s=1.0,
        )

    def __enter__(self) -> Self:
        """Return the worker, to be ended on leaving."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the worker and the run that it may be in: neither holds anything to be saved."""
        self._process.kill()

    def ask(self, request: Request, timeout_s: float) -> Answer:
        """Do one run and return what it measured.

        Raises:
            WorkerError: The run failed, ended or took longer than `timeout_s`.
        """
        return parse_answer(self.exchange(request_line(request), timeout_s))

    def exchange(self, line: bytes, timeout_s: float) -> dict[str, object]:
        """Do the run that a line asks for and return the fields of its answer; errors as in `ask`."""
        self._send(line)
        return self._receive(timeout_s)

    def ask_traced(
        self, request: Request, timeout_s: float, attach: Callable[[int], AbstractContextManager[object]]
    ) -> Answer:
        """Do one run with a tracer on its process while the measured part lasts.

        Args:
            request: The run, which stops for the tracer.
            timeout_s: For each part of it.
            attach: Called with the run's pid; returns the block in which it is traced.

        Raises:
            WorkerError: As in `ask`.
            HarnessError: What the tracer raises.
        """
        self._send(request_line(request))
        ready = self._receive(timeout_s)
        try:
            with attach(cast("int", ready["pid"])):
                self._send(b"go\n")
                self._receive(timeout_s)
        except HarnessError:
            # The run still waits for its tracer, and would take the next request for a word to itself.
            self._restart()
            raise
        self._send(b"go on\n")
        return parse_answer(self._receive(timeout_s))

    def _restart(self) -> None:
        self._process.kill()
        self._start()

    def _send(self, line: bytes) -> None:
        if not self._ready:
            self._ready = "status" in self._receive(_START_TIMEOUT_S)
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("has ended") from error

    def _receive(self, timeout_s: float) -> dict[str, object]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._failure(f"did not answer within {timeout_s:.0f} s")
            readable, _, _ = select.select([self._process.stdout], [], [], remaining_s)
            if not readable:
                continue
            received = os.read(self._process.stdout.fileno(), 1 << 20)
            if not received:
                raise self._failure("has ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        fields = cast("dict[str, object]", json.loads(line))
        if "error" in fields:
            raise WorkerError(str(fields["error"]))
        return fields

    def _failure(self, what: str) -> WorkerError:
        """Start a new worker in place of one that does not answer; return what to raise."""
        error = WorkerError(
            f"the worker {self._name} {what}; the last lines of its log ({self._process.log_path}):\n"
            f"{self._process.tail(15)}"
        )
        self._restart()
        return error
