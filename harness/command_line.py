"""What the sessions that run vLLM have in common on the command line."""

import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from harness.errors import UsageError

# A log has no width of its own, and tables need some.
_PLAIN_WIDTH: Final = 150


def make_console() -> Console:
    """Return where a session writes."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def writable(directory: Path, option: str) -> Path:
    """Make a directory and prove that it can be written.

    Raises:
        UsageError: It cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {directory}: cannot write there ({error.strerror}); name another directory"
        ) from error
    return directory.resolve()


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse a comma-separated list of positive numbers.

    Raises:
        UsageError: Something else is in it.
    """
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = (0,)
    if any(number < 1 for number in found):
        raise UsageError(f"{option} {text!r}: give positive numbers, separated by commas")
    return found
