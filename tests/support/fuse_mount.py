"""A FUSE file system for one test module: started, told how to misbehave, ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from polling import await_that

_ANSWER_TIMEOUT_S: Final = 20.0


class FuseMount:
    """The directory `directory` as a FUSE file system at `mount_point`, by a process of its own.

    That process dies with this one, and requests that it holds fail then.

    Raises:
        OSError: It could not be mounted; its own output says why.
    """

    def __init__(self, mount_point: Path, directory: Path) -> None:
        self.mount_point = mount_point
        # Where the same files are without FUSE in between.
        self.directory = directory
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        program = Path(__file__).with_name("fuse_server.py")
        arguments = [str(mount_point), str(directory), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                pass_fds=[theirs.fileno()],
                # Where PYTHONSAFEPATH is set, a program's own directory is not searched.
                env={**os.environ, "PYTHONPATH": str(program.parent)},
            )
        if self._control.recv(64) != b"mounted":
            self._process.wait(_ANSWER_TIMEOUT_S)
            raise OSError(f"the FUSE file system did not start (status {self._process.returncode})")

    def rule(
        self,
        action: str,
        *ops: str,
        code: int = 0,
        skip: int = 0,
        times: int = 0,
        every: int = 1,
        direct: bool = False,
        name: str = "",
        interruptible: bool = False,
    ) -> None:
        """Let requests of these kinds "fail", be "short", or "hold"; `fuse_server.Rule` explains the rest."""
        self._ask(
            do="rule",
            ops=list(ops),
            action=action,
            code=code,
            skip=skip,
            times=times,
            every=every,
            direct=direct,
            name=name,
            interruptible=interruptible,
        )

    def set_uncached(self, *, on: bool) -> None:
        """Open files past the page cache from now on, or not."""
        self._ask(do="uncached", on=on)

    def shown(self, path: Path) -> Path:
        """Return where a file of this file system is without FUSE in between."""
        return self.directory / path.relative_to(self.mount_point)

    def clear(self) -> None:
        """Behave again, and answer what is held."""
        self._ask(do="clear")

    def held(self, *ops: str) -> int:
        """Return how many requests of these kinds, or of any, are held now."""
        return self._count("held", ops)

    def seen(self, *ops: str) -> int:
        """Return how many requests of these kinds have come since the start."""
        return self._count("seen", ops)

    def await_held(self, count: int, *ops: str) -> bool:
        """Poll until so many requests are held; False when that does not happen within the bound."""
        return await_that(lambda: self.held(*ops) >= count)

    def kill(self) -> None:
        """End the process at once: what it holds fails, and the file system is dead until it is unmounted."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_ANSWER_TIMEOUT_S)

    def end(self) -> None:
        """Let go of what is held; the process ends with the mount, which the caller takes away next."""
        if self._process.poll() is None:
            self.set_uncached(on=False)
            self.clear()

    def reap(self) -> None:
        """Wait for the process after the file system was unmounted, and kill it if it stays."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._control.close()

    def _count(self, what: str, ops: tuple[str, ...]) -> int:
        counts = self._ask(do="counts")[what]
        return sum(count for op, count in counts.items() if not ops or op in ops)

    def _ask(self, **command: object) -> dict[str, dict[str, int]]:
        self._control.send(json.dumps(command).encode())
        answer: dict[str, dict[str, int]] = json.loads(self._control.recv(65536))
        return answer
