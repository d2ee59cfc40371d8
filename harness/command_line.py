"""What sessions have in common on the command line."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import click
from rich.console import Console

from harness.errors import EXIT_INTERRUPTED, HarnessError, UsageError
from harness.signals import end_in_order

# A log has no width of its own, and tables need some.
_PLAIN_WIDTH: Final = 150
_Command = TypeVar("_Command", bound=Callable[..., object])


def served_options(default_out: Path) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the options behind `harness.served.ServedOptions`."""
    path = click.Path(path_type=Path)
    options = (
        click.option("--out", type=path, default=default_out, help="Gets all results."),
        click.option("--work-dir", type=path, help="On the disk to use. [default: --out]"),
        click.option("--model-dir", type=path, help="Serve this model, not SmolLM2-135M."),
        click.option(
            "--server-timeout-s", type=click.FloatRange(1), default=600.0, help="For a server's start."
        ),
        click.option("--keep", is_flag=True, help="Leave the tiers' directories on the disk."),
    )

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def run_session(name: str, body: Callable[[Console], int], interrupted: str) -> NoReturn:
    """Run a session and end the program with its status; a user's mistake is one sentence, no traceback.

    Args:
        name: The session's.
        body: Does it, and returns the exit status; gets where it writes.
        interrupted: What there is to say after Ctrl-C, once all that was started has ended.
    """
    end_in_order(name)
    console = Console()
    try:
        status = body(console if console.is_terminal else Console(width=_PLAIN_WIDTH))
    except HarnessError as error:
        print(f"{name}: {error}", file=sys.stderr)
        status = error.exit_status
    except KeyboardInterrupt:
        print(f"{name}: interrupted; {interrupted}", file=sys.stderr)
        status = EXIT_INTERRUPTED
    sys.exit(status)


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
