"""How a session ends when it is asked to by a signal."""

import signal
import sys
from types import FrameType
from typing import NoReturn

from harness.errors import EXIT_TERMINATED


def end_in_order(session: str) -> None:
    """Make the signals that end a program end this one the way Ctrl-C does: through every `with` block.

    Args:
        session: What says on standard error that it was ended.
    """

    def terminate(number: int, _frame: FrameType | None) -> NoReturn:
        print(f"{session}: ended by {signal.Signals(number).name}", file=sys.stderr)
        raise SystemExit(EXIT_TERMINATED)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, terminate)
