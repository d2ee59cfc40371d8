"""Run one command and make sure that nothing of it outlives the harness, however the harness ends.

The harness starts this file as a program of its own session and holds the other end of a pipe (the
lifeline). A "t" on the lifeline asks the command to end; a closed lifeline, which is what the kernel makes
of a harness that was killed, ends everything at once. As a child subreaper the guard inherits every orphan
of the command, so that no process can leave its tree; shared memory that they leave behind goes with them.

Run as a file, since a guard needs nothing but psutil: `python guard.py --lifeline FD -- COMMAND...`.
"""

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

TERMINATE: Final = b"t"
# What the guard says when it could not clear the tree; no command that it runs uses this status.
EXIT_NOT_CLEARED: Final = 125

_PR_SET_CHILD_SUBREAPER: Final = 36
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives on Linux
_POLL_S: Final = 0.1
_NOTE_EVERY_S: Final = 5.0
_REST_GRACE_S: Final = 1.0
_KILL_TIMEOUT_S: Final = 10.0
_TRACKER: Final = "resource_tracker"
_TRACKER_TIMEOUT_S: Final = 3.0


class _Tree:
    """The processes that descend from this one, and the shared memory that they use."""

    def __init__(self, always_unlink: Sequence[str]) -> None:
        self._self = psutil.Process()
        self._names_before = {path.name for path in _SHARED_MEMORY.iterdir()}
        self._regions = {_SHARED_MEMORY / name for name in always_unlink}

    def processes(self) -> list[psutil.Process]:
        return self._self.children(recursive=True)

    def is_over(self) -> bool:
        """Say whether all descendants have ended; those that only wait to be reaped have."""
        return all(_has_ended(process) for process in self.processes())

    def note_regions(self) -> None:
        """Remember which shared memory the tree has open now; a killed process cannot be asked."""
        for process in self.processes():
            for path in _open_regions(process.pid):
                if path.name not in self._names_before:
                    self._regions.add(path)

    def kill(self) -> bool:
        """Kill and reap until no descendant is left; say whether that was reached in time.

        Python's resource trackers go last: they end by themselves when nobody is left, and remove the named
        semaphores and shared memory that the killed ones had.
        """
        started = time.monotonic()
        while left := self.processes():
            waited_s = time.monotonic() - started
            if waited_s > _KILL_TIMEOUT_S:
                return False
            spared = _TRACKER if waited_s < _TRACKER_TIMEOUT_S else None
            for process in left:
                try:
                    if spared is None or spared not in " ".join(process.cmdline()):
                        process.kill()
                except psutil.Error:
                    continue
            psutil.wait_procs(left, timeout=_POLL_S)
        return True

    def unlink_regions(self) -> None:
        for path in self._regions:
            path.unlink(missing_ok=True)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _open_regions(pid: int) -> set[Path]:
    """Return the files under /dev/shm that a process has open or mapped."""
    found: set[Path] = set()
    prefix = f"{_SHARED_MEMORY}/"
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith(prefix) and not target.endswith(" (deleted)"):
                found.add(Path(target))
    except OSError:
        pass  # it ended meanwhile
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start = line.find(prefix)
            if start >= 0 and not line.endswith(" (deleted)"):
                found.add(Path(line[start:]))
    except OSError:
        pass
    return found


class _StopRequests:
    """Turn SIGTERM into a flag that the guard's loop sees; Ctrl-C belongs to the harness."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def _lifeline_says(lifeline: int, timeout_s: float) -> bytes | None:
    """Wait a little for word from the harness: None for nothing, b"" when it is gone."""
    readable, _, _ = select.select([lifeline], [], [], timeout_s)
    return os.read(lifeline, 1) if readable else None


def _end_gracefully(command: subprocess.Popen[bytes], tree: _Tree, lifeline: int, grace_s: float) -> None:
    """Ask the command to end and wait for it and its tree, unless the harness goes away meanwhile."""
    if command.poll() is None:
        command.terminate()
    deadline = time.monotonic() + grace_s
    command_ended = False
    while time.monotonic() < deadline:
        if command.poll() is not None:
            if tree.is_over():
                return
            # What it has not ended itself by now has been forgotten.
            if not command_ended:
                command_ended = True
                deadline = min(deadline, time.monotonic() + _REST_GRACE_S)
        if _lifeline_says(lifeline, _POLL_S) == b"":
            return


def _watch(command: subprocess.Popen[bytes], tree: _Tree, lifeline: int, grace_s: float) -> None:
    """Return when the command has ended by itself or has been told to."""
    stop = _StopRequests()
    note_at = 0.0
    while command.poll() is None:
        if time.monotonic() >= note_at:
            tree.note_regions()
            note_at = time.monotonic() + _NOTE_EVERY_S
        word = _lifeline_says(lifeline, _POLL_S)
        if word == b"":
            return
        if word == TERMINATE or stop.asked:
            tree.note_regions()
            _end_gracefully(command, tree, lifeline, grace_s)
            return


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status, 128 + the number of the signal that ended it."""
    parser = argparse.ArgumentParser(prog="guard.py", description=__doc__)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("--unlink", action="append", default=[], metavar="NAME")
    parser.add_argument("--remove", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    _become_subreaper()
    tree = _Tree(options.unlink)
    # Signals that the guard ignores would be ignored by the command, too: it starts first.
    command = subprocess.Popen(options.command)
    # The command has these; the guard's copies would hide their end from whoever reads them.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    try:
        _watch(command, tree, options.lifeline, options.grace_s)
        tree.note_regions()
    finally:
        cleared = tree.kill()
        tree.unlink_regions()
        for directory in options.remove:
            shutil.rmtree(directory, ignore_errors=True)
    if not cleared:
        names = ", ".join(f"{process.pid} ({process.name()})" for process in tree.processes())
        print(f"guard: processes that cannot be killed: {names}", file=sys.stderr)
        return EXIT_NOT_CLEARED
    status = command.returncode
    if status is None:  # ended by the guard
        return 128 + signal.SIGKILL
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
