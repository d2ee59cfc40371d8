"""What is noted of requests whose lookups the engine's knowledge alone does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Final

# The questions of one request in one step take less than this.
_STEP_S: Final = 0.05


class RequestNotes:
    """Since when requests wait for answers, and which keys failed to load for them.

    The notes of the request that is asking lie in attributes, because the scheduler asks key by key; the
    engine's `tier_lookup` reads and sets them (`kvfs.jobs.NotesLike`). Not thread-safe: vLLM calls a tier
    under its manager's lock.

    Attributes:
        request_id: The request that is asking, None between two.
        waiting_since_s: When it began to wait (`time.monotonic()`); infinity if it does not.
        denied: Keys whose load failed for it.
        must_wait: To be set when it has to wait for an answer.
        memory: What the engine then leaves for its next step, None if nothing.
    """

    # Attributes are read for each key, and are found faster so.
    __slots__ = (
        "_began_s",
        "_denied",
        "_memory",
        "_waiting_since_s",
        "denied",
        "memory",
        "must_wait",
        "request_id",
        "waiting_since_s",
    )

    def __init__(self) -> None:
        """Start with nothing noted."""
        # Of those that wait, both.
        self._waiting_since_s: dict[str, float] = {}
        self._memory: dict[str, object] = {}
        self._denied: dict[str, set[bytes]] = {}
        self._began_s = math.inf
        self.request_id: str | None = None
        self.waiting_since_s = math.inf
        self.denied: Collection[bytes] = ()
        self.must_wait = False
        self.memory: object = None

    def __bool__(self) -> bool:
        """Tell whether anything is noted."""
        return bool(self._waiting_since_s or self._denied)

    def begin(self, request_id: str) -> None:
        """Turn to the request that asks from now on."""
        self.end()
        self.request_id = request_id
        self._began_s = time.monotonic()
        self.waiting_since_s = self._waiting_since_s.get(request_id, math.inf)
        self.denied = self._denied.get(request_id, ())
        self.memory = self._memory.get(request_id)

    def end(self) -> None:
        """Put away what was noted of the request that has asked."""
        if self.request_id is None:
            return
        if self.must_wait:
            self._waiting_since_s[self.request_id] = self._began_s
            self._memory[self.request_id] = self.memory
        else:
            self._stop_waiting(self.request_id)
        self.request_id, self.waiting_since_s, self.denied, self.must_wait = None, math.inf, (), False
        self.memory = None

    def missed(self) -> None:
        """End the wait of a request that has its answer and goes on asking without an end of the step."""
        if time.monotonic() - self._began_s > _STEP_S:
            self.end()

    def deny(self, keys: Collection[bytes], request_id: str) -> None:
        """Make keys whose load failed a miss for a request as long as it lives.

        Without this it could be sent to the same bad chunk again and again (vLLM#49176).
        """
        self.end()
        self._denied.setdefault(request_id, set()).update(keys)

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request."""
        self.end()
        self._stop_waiting(request_id)
        self._denied.pop(request_id, None)

    def _stop_waiting(self, request_id: str) -> None:
        self._waiting_since_s.pop(request_id, None)
        self._memory.pop(request_id, None)
