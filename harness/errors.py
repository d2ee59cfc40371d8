"""What can go wrong in a measuring session, and the exit status of each kind."""

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143


class HarnessError(Exception):
    """A measurement could not be made; the message says what was wrong and what to do."""

    exit_status = EXIT_FAILED


class UsageError(HarnessError):
    """The user asked for something that cannot be; one line, no traceback."""

    exit_status = EXIT_USAGE


class OutputShapeError(HarnessError):
    """A tool's output is not what its pinned version writes."""
