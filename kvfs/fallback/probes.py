"""Questions to the disk on their way: collected, handed over, being looked at."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, NamedTuple

# So many are handed over without being told to.
_COLLECTED_MAX: Final = 64
# Few, so that the threads share a batch; not one, because a look is cheaper than a turn of the lock.
_TAKEN_AT_ONCE: Final = 8
# A disk that does not answer is asked the same again at every step; no more than this.
_OUTSTANDING_MAX: Final = 65_536


class Question(NamedTuple):
    """A key that the disk is asked about."""

    key: bytes
    # When it was handed over (`time.monotonic()`); None checks whether a MISS was right.
    asked_at: float | None


class Checks:
    """Keys that the owner called a miss, until the disk is asked whether that was right. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        # In their order, each once.
        self._keys: dict[bytes, None] = {}
        self.asked = 0

    def add(self, key: bytes) -> None:
        """Note a key, unless as many wait as go together."""
        with self._lock:
            if len(self._keys) < _COLLECTED_MAX and key not in self._keys:
                self._keys[key] = None
                self.asked += 1

    def take(self) -> list[bytes]:
        """Take all of them."""
        with self._lock:
            taken = list(self._keys)
            self._keys.clear()
            return taken


class ProbeQueue:
    """Questions that wait. Not thread-safe: the caller holds the engine's lock. No call blocks."""

    def __init__(self) -> None:
        self._collected: list[bytes] = []
        self._collected_unseen: list[bytes] = []
        self._waiting: deque[Question] = deque()
        # Of keys that were asked about unseen: they come after all others.
        self._unseen: deque[Question] = deque()
        # Handed over and not answered.
        self.unanswered = 0

    @property
    def waiting(self) -> bool:
        """Whether there is a question for a thread."""
        return bool(self._waiting or self._unseen)

    @property
    def due(self) -> bool:
        """Whether it is time to hand over what was collected."""
        return len(self._collected) + len(self._collected_unseen) >= _COLLECTED_MAX

    def collect(self, key: bytes, *, unseen: bool = False) -> bool:
        """Take a question; False where too many wait."""
        collected = len(self._collected) + len(self._collected_unseen)
        if collected + len(self._waiting) + len(self._unseen) >= _OUTSTANDING_MAX:
            return False
        (self._collected_unseen if unseen else self._collected).append(key)
        return True

    def hand_over(self, checks: list[bytes]) -> None:
        """Let threads claim what was collected, and these."""
        now = time.monotonic()
        self._waiting += [Question(key, now) for key in self._collected]
        self._unseen += [Question(key, now) for key in self._collected_unseen]
        self._waiting += [Question(key, None) for key in checks]
        self.unanswered += len(self._collected) + len(self._collected_unseen) + len(checks)
        self._collected.clear()
        self._collected_unseen.clear()

    def claim(self) -> list[Question]:
        """Take some questions to answer; none when none wait."""
        queue = self._waiting or self._unseen
        return [queue.popleft() for _ in range(min(_TAKEN_AT_ONCE, len(queue)))]

    def release(self, count: int) -> None:
        """Note that so many questions that were claimed have been answered."""
        self.unanswered -= count

    def drop(self) -> None:
        """Forget all questions that nobody has claimed."""
        self.unanswered -= len(self._waiting) + len(self._unseen)
        for each in (self._waiting, self._unseen, self._collected, self._collected_unseen):
            each.clear()
