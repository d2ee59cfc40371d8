"""Processes that carry out a `Subject`'s commands: commanded over a socket, and killed like one that crashes.

A small program forks them on request, which takes milliseconds where starting one takes a second; a fork of
the tests' own process would have its threads and open files.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from lookup_subject import WAIT_S, Subject

from kvfs import backend


class Worker:
    """A process with a `Subject`, seen from the test's process.

    Args:
        connection: To the process.
        pid: Its number.
        name: What to call it.
        history: Gets what was done with it.
    """

    def __init__(self, connection: Connection, pid: int, name: str, history: list[str]) -> None:
        self._connection = connection
        self._name = name
        self._history = history
        self._pidfd = os.pidfd_open(pid)

    def call(self, command: str, *arguments: object) -> Any:
        """Have a command carried out and return what it returned, which has a type of its own; as `end`."""
        self.begin(command, *arguments)
        return self.end()

    def begin(self, command: str, *arguments: object) -> None:
        """Send a command; `end` returns what came of it."""
        self._history.append(f"{self._name}: {command}{arguments}")
        self._connection.send((command, arguments))

    def end(self) -> Any:
        """Return what the command returned.

        Raises:
            AssertionError: It failed, or the process ended; the message says how.
        """
        assert self._connection.poll(2 * WAIT_S), "the process does not answer"
        try:
            succeeded, result = self._connection.recv()
        except EOFError:
            raise AssertionError("the process ended by itself") from None
        assert succeeded, result
        return result

    def kill(self) -> None:
        """End the process as it stands, and wait until it is gone with all that it held."""
        self._history.append(f"{self._name}: killed")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        gone = select.poll()
        gone.register(self._pidfd, select.POLLIN)
        assert gone.poll(WAIT_S * 1000), "the process does not end"
        os.close(self._pidfd)
        self._connection.close()


class Nursery:
    """The program that forks the processes; it runs while the context lasts."""

    def __enter__(self) -> Self:
        """Start the program."""
        self._control, theirs = socket.socketpair()
        here = str(Path(__file__).parent)
        program = f"import sys; sys.path.append({here!r}); import lookup_process; lookup_process.main()"
        with theirs:
            command = [sys.executable, "-P", "-c", program, str(theirs.fileno())]
            self._program = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        return self

    def __exit__(self, *_: object) -> None:
        """End it; processes that still run end with their connections."""
        self._control.close()
        self._program.wait(WAIT_S)

    def fork(self, name: str, history: list[str]) -> Worker:
        """Start a process; see `Worker` for the arguments."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        pid = int.from_bytes(self._control.recv(8), "big")
        return Worker(Connection(ours.detach()), pid, name, history)


def main() -> None:
    """Fork a process for each request on the socket whose number is the argument."""
    # Nobody waits for the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    backend.load()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            request, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(Connection(fds[0]))
                # What the program would do at its end is not this process's to do.
                os._exit(0)
            os.close(fds[0])
            control.sendall(pid.to_bytes(8, "big"))


def _serve(connection: Connection) -> None:
    subject = Subject()
    while True:
        try:
            command, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        result: tuple[bool, object]
        try:
            result = True, getattr(subject, command)(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test's process wants to know
            result = False, f"{command}: {error!r}\n{traceback.format_exc()}"
        connection.send(result)
