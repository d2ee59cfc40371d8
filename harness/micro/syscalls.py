"""Count the system calls of a run by watching it with strace, between two marks that the run makes itself."""

import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harness.errors import HarnessError
from harness.micro.requests import BEGIN_MARK, END_MARK
from harness.processes import GuardedProcess

_ATTACH_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02
# "1234 openat(AT_FDCWD, ..." begins a call; "1234 <... openat resumed>" only goes on with one.
_CALL: Final = re.compile(r"^(?:\[pid\s+)?\d+\]?\s+(\w+)\(")
# The run waits this once, on purpose, before it reads its CPU time.
_OWN_CALLS: Final = {"clock_nanosleep": 1}


class TraceError(HarnessError):
    """A run cannot be traced here."""


def unavailable() -> str:
    """Return why nothing can be traced, or an empty string."""
    return "" if shutil.which("strace") else "strace is not installed (Debian: apt-get install strace)"


class StraceBlock:
    """strace on a process and all its threads.

    Args:
        pid: The process.
        directory: Gets a folder for the trace, removed at the end.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid = pid
        self._directory = Path(tempfile.mkdtemp(prefix="trace-", dir=directory))
        self._output = self._directory / "calls"
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Attach; return when every thread is watched.

        Raises:
            TraceError: strace cannot attach.
        """
        log_path = self._directory / "strace.log"
        self._strace = GuardedProcess(
            ["strace", "-f", "-s", "32", "-o", str(self._output), "-p", str(self._pid)],
            log_path=log_path,
            env=os.environ,
            cwd=self._directory,
        )
        deadline = time.monotonic() + _ATTACH_TIMEOUT_S
        while " attached" not in (text := log_path.read_text(errors="replace")):
            if self._strace.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise TraceError(f"strace cannot watch the run: {text.strip() or 'it says nothing'}")
            time.sleep(_POLL_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach and count."""
        self._strace.end()
        if kind is None:
            self.calls = count_calls(self._output.read_text(errors="replace").splitlines())
        self._end()

    def _end(self) -> None:
        self._strace.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


def count_calls(lines: Iterable[str]) -> Counter[str]:
    """Return how often each system call was begun between the marks of a trace.

    Raises:
        TraceError: A mark is missing, so what was counted would be something else.
    """
    calls: Counter[str] = Counter()
    inside = seen_end = False
    for line in lines:
        if BEGIN_MARK in line:
            inside = True
        elif END_MARK in line:
            seen_end = True
            break
        elif inside and (match := _CALL.match(line)):
            calls[match.group(1)] += 1
    if not seen_end:
        raise TraceError("the trace does not hold the marks of the measured part")
    return +(calls - Counter(_OWN_CALLS))
