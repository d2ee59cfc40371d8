"""Start, watch and end the programs that the harness runs, each under a guard of its own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import psutil

from harness import guard
from harness.errors import HarnessError

_GUARD_PROGRAM: Final = Path(guard.__file__)
# Longer than the guard itself may take to clear its tree, after the grace that it gives the command.
_CLEARING_TIMEOUT_S: Final = 20.0


class GuardedProcess:
    """A command, all that it starts, and the shared memory that they leave; ended together.

    Use it as a context manager: leaving the block normally asks the command to end, leaving it by an
    exception (Ctrl-C is one) kills. When the harness itself is killed, the guard ends the command.

    Args:
        command: Program and arguments.
        log_path: Gets the command's output, standard error alone when `talks` is set.
        env: The command's whole environment.
        cwd: Its directory.
        talks: Connect pipes to its standard input and output.
        grace_s: How long it may take to end by itself when it is asked to.
        unlink: Names under /dev/shm that are removed at the end even if nobody saw them open.
        remove: Directories that are removed at the end with all that is in them.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str],
        cwd: Path,
        talks: bool = False,
        grace_s: float = 10.0,
        unlink: Sequence[str] = (),
        remove: Sequence[Path] = (),
    ) -> None:
        self.log_path = log_path
        self._grace_s = grace_s
        lifeline, self._lifeline = os.pipe()
        leftovers = [*(f"--unlink={name}" for name in unlink), *(f"--remove={path}" for path in remove)]
        try:
            with log_path.open("wb") as log:
                self._guard = subprocess.Popen(
                    [
                        sys.executable,
                        str(_GUARD_PROGRAM),
                        f"--lifeline={lifeline}",
                        f"--grace-s={grace_s}",
                        *leftovers,
                        "--",
                        *command,
                    ],
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else log,
                    stderr=log,
                    env=dict(env),
                    cwd=cwd,
                    pass_fds=[lifeline],
                    # Ctrl-C goes to the terminal's process group; the guard must outlive it.
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.end()
        else:
            self.kill()

    @property
    def stdin(self) -> IO[bytes]:
        """The command's standard input, when it `talks`."""
        assert self._guard.stdin is not None
        return self._guard.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The command's standard output, when it `talks`."""
        assert self._guard.stdout is not None
        return self._guard.stdout

    def poll(self) -> int | None:
        """Return the command's exit status, or None while it runs."""
        return self._guard.poll()

    def tree(self) -> list[psutil.Process]:
        """Return the command's processes as they are now."""
        try:
            return psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def end(self) -> int:
        """Ask the command to end, kill what is left after the grace, and return its exit status.

        Raises:
            HarnessError: Processes are left.
        """
        if self.poll() is None and self._lifeline >= 0:
            # A broken pipe: it ended by itself a moment ago.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, guard.TERMINATE)
        return self._await_guard(self._grace_s + _CLEARING_TIMEOUT_S)

    def kill(self) -> int:
        """End the command and all that it started at once; return its exit status.

        Raises:
            HarnessError: Processes are left.
        """
        self._cut_lifeline()
        return self._await_guard(_CLEARING_TIMEOUT_S)

    def _await_guard(self, timeout_s: float) -> int:
        started = self.tree()
        try:
            status = self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = guard.EXIT_NOT_CLEARED
        finally:
            self._cut_lifeline()
            for pipe in (self._guard.stdin, self._guard.stdout):
                if pipe is not None:
                    pipe.close()
        left = _still_running(started)
        if status == guard.EXIT_NOT_CLEARED or left:
            names = ", ".join(f"{process.pid} ({process.name()})" for process in left) or "unknown"
            raise HarnessError(
                f"processes of {self.log_path.name} could not be ended: {names}; end them by hand before the "
                "next measurement"
            )
        return status

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Kill those that outlived their guard and return those that outlive that, too."""
    left = [process for process in processes if process.is_running()]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(left, timeout=2)
    return list(alive)


def wait_for_exit(process: GuardedProcess, timeout_s: float) -> int:
    """Wait until the command has ended by itself.

    Raises:
        HarnessError: It had not ended after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while (status := process.poll()) is None:
        if time.monotonic() > deadline:
            raise HarnessError(
                f"{process.log_path.stem} did not end within {timeout_s:.0f} s; the last lines of its log "
                f"({process.log_path}):\n{process.tail()}"
            )
        time.sleep(0.1)
    return status
