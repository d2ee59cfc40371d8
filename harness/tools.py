"""Talk to a tool that is kept loaded in a process of its own, see `tool_worker.py`."""

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from harness import tool_worker
from harness.errors import HarnessError
from harness.processes import GuardedProcess

_WORKER_PROGRAM: Final = Path(tool_worker.__file__)
_LOAD_TIMEOUT_S: Final = 300.0


class ToolError(HarnessError):
    """A tool failed, ended, or took too long."""


class Tool:
    """One tool, loaded in the background from the moment that this is made.

    Args:
        name: "guidellm" or "lm-eval".
        directory: Gets the tool's log, and a folder for its temporary files.
        env: Variables beside the inherited ones.
    """

    def __init__(self, name: str, directory: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._received = b""
        self._unanswered = 0
        self._version = ""
        self._process = GuardedProcess(
            [sys.executable, str(_WORKER_PROGRAM), name],
            log_path=directory / f"{name}.log",
            env={**os.environ, **env, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
            cwd=directory,
            talks=True,
            grace_s=1.0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._process.kill()  # it holds nothing that would have to be saved

    @property
    def log_path(self) -> Path:
        """Where it logs."""
        return self._process.log_path

    def version(self) -> str:
        """Return the tool's version; waits until it is loaded.

        Raises:
            ToolError: It could not be loaded.
        """
        if not self._version:
            self._version = str(self._answer(_LOAD_TIMEOUT_S)["version"])
        return self._version

    def run(self, request: Mapping[str, object], timeout_s: float) -> None:
        """Send a request and wait until it has been carried out.

        Raises:
            ToolError: The tool failed, ended or took longer than `timeout_s`.
        """
        self.submit(request)
        self.wait(timeout_s)

    def submit(self, request: Mapping[str, object]) -> None:
        """Send a request; the tool carries it out when it is done with earlier ones.

        Raises:
            ToolError: The tool has ended.
        """
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("has ended") from error
        self._unanswered += 1

    def wait(self, timeout_s: float) -> None:
        """Wait until all requests have been carried out; the time-out is for each.

        Raises:
            ToolError: The tool failed, ended or took longer.
        """
        self.version()
        while self._unanswered:
            # An answer that says that it failed is one, too.
            self._unanswered -= 1
            self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> Mapping[str, object]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._failure(f"did not answer within {timeout_s:.0f} s")
            readable, _, _ = select.select([self._process.stdout], [], [], remaining_s)
            if not readable:
                continue
            received = os.read(self._process.stdout.fileno(), 65536)
            if not received:
                raise self._failure("has ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer = cast("dict[str, object]", json.loads(line))
        if not answer["ok"]:
            raise self._failure(f"failed: {answer['error']}")
        return answer

    def _failure(self, what: str) -> ToolError:
        return ToolError(
            f"{self.name} {what}; the last lines of its log ({self._process.log_path}):\n"
            f"{self._process.tail(15)}"
        )
