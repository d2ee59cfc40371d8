"""Stores stop for a while when the disk takes none; docs/capacity.md, "Bad disks"."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Final

from kvfs.jobs import SUCCESS

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
# What the next store would meet, too.
_PAUSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class StorePause:
    """Lets jobs through one at a time, after longer and longer pauses, until a store ends well. Thread-safe.

    Args:
        clock: Seconds since some start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._paused = False
        self._pause_s = 0.0
        self._until = 0.0

    def admits(self) -> bool:
        """Tell whether a job's stores may be tried. While paused, True once at the end of each pause."""
        with self._lock:
            if not self._paused:
                return True
            now = self._clock()
            if now < self._until:
                return False
            # This job's stores will tell. If they take long, the next one is not let through meanwhile.
            self._pause_s = min(2 * self._pause_s, _LONGEST_S)
            self._until = now + self._pause_s
            return True

    def note(self, outcome: int) -> None:
        """Note how a store has ended that was no duplicate."""
        with self._lock:
            if outcome == SUCCESS:
                self._paused = False
            elif outcome in _PAUSING and not self._paused:
                self._paused = True
                self._pause_s = _FIRST_S
                self._until = self._clock() + self._pause_s
