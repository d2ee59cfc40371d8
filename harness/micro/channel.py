"""How a worker talks to its session: JSON lines on standard input and output, and on nothing else."""

import json
import os


class Channel:
    """The worker's answers, on a descriptor that nothing else writes to."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        # Loggers that print to standard output go to the log instead.
        os.dup2(2, 1)

    def say(self, line: bytes) -> None:
        """Write a whole line. Blocks until it is taken."""
        while line:
            line = line[os.write(self._out, line) :]

    def say_status(self, status: str, **values: object) -> None:
        """Answer with a status and what belongs to it."""
        self.say(json.dumps({"status": status, **values}).encode() + b"\n")

    def say_error(self, text: str) -> None:
        """Answer that something went wrong."""
        self.say(json.dumps({"error": text}).encode() + b"\n")


def read_line() -> bytes:
    """Read one line without taking more: the next one may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line
