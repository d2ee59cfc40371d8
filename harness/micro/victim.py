"""A Python thread that ticks, as vLLM's scheduler would, and notes how long each tick really took."""

import threading
import time
from typing import Final

TICK_S: Final = 0.0002


class Victim:
    """Ticks from `start` to `stop`: asks to sleep 200 µs, again and again.

    What a tick takes beyond that is the wait for a core and then for the GIL. The thread does nothing else,
    so it hardly disturbs what it watches; yet it runs in runs of its own, whose CPU time is not recorded.
    """

    def __init__(self) -> None:
        self._gaps_s: list[float] = []
        self._running = False
        self._thread = threading.Thread(target=self._tick, name="victim", daemon=True)

    def start(self) -> None:
        """Begin to tick."""
        self._running = True
        self._thread.start()

    def stop(self) -> list[float]:
        """Stop and return the seconds of each tick."""
        self._running = False
        self._thread.join()
        return self._gaps_s

    def _tick(self) -> None:
        clock, sleep, note = time.perf_counter, time.sleep, self._gaps_s.append
        last = clock()
        while self._running:
            sleep(TICK_S)
            now = clock()
            note(now - last)
            last = now
