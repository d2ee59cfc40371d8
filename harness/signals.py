"""How a session ends when it is asked to by a signal."""

import signal
from types import FrameType
from typing import NoReturn

from harness.errors import EXIT_TERMINATED


def end_in_order() -> None:
    """Make the signals that end a program end this one the way Ctrl-C does: through every `with` block."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
