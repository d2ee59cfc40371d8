"""Processes to be killed: forked in milliseconds by a small program, watched through shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self

import crash_workload
from crash_workload import Memory, Spec

from kvfs.fallback import crc32c

_PR_SET_PDEATHSIG: Final = 1
_WAIT_S: Final = 30.0
_SPEC_BYTES_MAX: Final = 4096
# A thread in the state T has stopped; D ends with the operation that it waits for; Z and X are no more.
_STOPPED: Final = frozenset("TtZX")


class Child:
    """One process of the nursery, alive until it is killed or has closed its engine.

    Attributes:
        pid: Its number.
        spec: What it does.
        memory: What it has done.
    """

    def __init__(self, pid: int, spec: Spec, memory: Memory) -> None:
        self.pid = pid
        self.spec = spec
        self.memory = memory
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it as it stands, and wait until it is gone with all that it held."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        assert self.await_end(_WAIT_S), f"process {self.pid} does not end"
        os.close(self._pidfd)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when it has not by then."""
        gone = select.poll()
        gone.register(self._pidfd, select.POLLIN)
        return bool(gone.poll(timeout_s * 1000))

    def stop(self) -> None:
        """Stop all its threads, and wait until they stand still."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        deadline = time.monotonic() + _WAIT_S
        while not self._stands_still():
            assert time.monotonic() < deadline, f"process {self.pid} does not stop"

    def go_on(self) -> None:
        """Let it run again."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def nameless_bytes(self, device: int) -> int:
        """Return what its files below the root without a name take, which no walk finds; it stands still."""
        found: dict[int, int] = {}
        # A test's captured output is such a file, too, and may lie on the same disk.
        below = f"{self.spec.root}/"
        with contextlib.suppress(FileNotFoundError):
            for link in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    status = link.stat()
                    ours = str(link.readlink()).startswith(below)
                    if ours and status.st_nlink == 0 and status.st_dev == device:
                        found[status.st_ino] = status.st_blocks * 512
        return sum(found.values())

    def _stands_still(self) -> bool:
        states = []
        # Threads and the process itself may end meanwhile.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                text = (task / "stat").read_text(encoding="utf-8")
                states.append(text.rpartition(")")[2].split()[0])
        return all(state in _STOPPED for state in states)


class Nursery:
    """The program that forks them; it runs while the context lasts, and they end with it."""

    def __enter__(self) -> Self:
        """Start the program."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = str(Path(__file__).parent)
        program = f"import sys; sys.path.append({here!r}); import crash_nursery; crash_nursery.main()"
        with theirs:
            command = [sys.executable, "-P", "-c", program, str(theirs.fileno())]
            self._program = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._control.close()
        self._program.wait(_WAIT_S)

    def fork(self, spec: Spec) -> Child:
        """Start a process."""
        fd = os.memfd_create("kvfs-crash")
        try:
            os.ftruncate(fd, crash_workload.MEMORY_BYTES)
            socket.send_fds(self._control, [json.dumps(asdict(spec)).encode()], [fd])
            pid = int.from_bytes(self._control.recv(8), "big")
            return Child(pid, spec, Memory(fd))
        finally:
            os.close(fd)


def main() -> None:
    """Fork a process for each request on the socket whose number is the argument."""
    # Nobody waits for the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Once, not in each of them.
    for module in ("kvfs_ext", "kvfs.fallback"):
        with contextlib.suppress(ImportError):
            __import__(module)
    crc32c.prepare()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            request, fds, _, _ = socket.recv_fds(control, _SPEC_BYTES_MAX, 1)
            if not request:
                # Nobody is there any more, and nobody needs what still runs.
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                crash_workload.run(Spec(**json.loads(request)), Memory(fds[0]))
                # What the program would do at its end is not this process's to do.
                os._exit(0)
            os.close(fds[0])
            control.sendall(pid.to_bytes(8, "big"))
