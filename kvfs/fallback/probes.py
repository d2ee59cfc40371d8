"""Questions to the disk on their way: collected, handed over, being looked at."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from kvfs.fallback.index import Question

# So many are handed over without being told to.
_COLLECTED_MAX: Final = 64
# Few, so that the threads share a batch; not one, because a look is cheaper than a turn of the lock.
_TAKEN_AT_ONCE: Final = 8


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

    def take(self) -> list[Question]:
        """Take all of them."""
        with self._lock:
            taken = [Question(key, 0) for key in self._keys]
            self._keys.clear()
            return taken


class ProbeQueue:
    """Questions that wait. Not thread-safe: the caller holds the engine's lock. No call blocks."""

    def __init__(self) -> None:
        self._collected: list[Question] = []
        self._waiting: deque[Question] = deque()
        # Handed over and not answered.
        self.unanswered = 0
        self.asked = 0

    @property
    def waiting(self) -> bool:
        """Whether there is a question for a thread."""
        return bool(self._waiting)

    def collect(self, question: Question) -> bool:
        """Take a question; tell whether it is time to hand them over."""
        self._collected.append(question)
        self.asked += 1
        return len(self._collected) >= _COLLECTED_MAX

    def hand_over(self, checks: list[Question]) -> None:
        """Let threads claim what was collected, and these."""
        self._waiting += self._collected + checks
        self.unanswered += len(self._collected) + len(checks)
        self._collected.clear()

    def claim(self) -> list[Question]:
        """Take some questions to answer; none when none wait."""
        return [self._waiting.popleft() for _ in range(min(_TAKEN_AT_ONCE, len(self._waiting)))]

    def release(self, count: int) -> None:
        """Note that so many questions that were claimed have been answered."""
        self.unanswered -= count

    def drop(self) -> None:
        """Forget all questions that nobody has claimed."""
        self.unanswered -= len(self._waiting)
        self._waiting.clear()
        self._collected.clear()
