"""The question of a tier's user, "is this key there, for this request?", and what is noted of requests."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import Final, Generic, TypeVar

from kvfs.fallback.checks import check_key
from kvfs.fallback.core import Core
from kvfs.jobs import HIT, MISS, RequestLike

_Answer = TypeVar("_Answer")
# The questions of one request in one step take less than this.
_STEP_S: Final = 0.05


class TierLookup(Generic[_Answer]):
    """See `kvfs.jobs.TierLookupLike`.

    The notes of the request that is asking lie in attributes, because the scheduler asks key by key.

    Args:
        core: The engine's.
        miss: Stands for a miss.
        hit: Stands for a hit.
        retry: Says that the disk is asked.
    """

    def __init__(self, core: Core, miss: _Answer, hit: _Answer, retry: _Answer) -> None:
        self._core = core
        self._miss = miss
        self._hit = hit
        self._retry = retry
        self._waiting_since_s: dict[str, float] = {}
        self._denied: dict[str, set[bytes]] = {}
        # Of the request that is asking; None between two.
        self._asking: str | None = None
        self._began_s = math.inf
        self._waits_since_s = math.inf
        self._denied_now: Collection[bytes] = ()
        self._must_wait = False
        # The key that it was the first to ask about in this step; None before that.
        self._first_asked: bytes | None = None

    def __bool__(self) -> bool:
        """Tell whether anything is noted of any request."""
        return bool(self._waiting_since_s or self._denied)

    def ask(self, key: bytes, req_context: RequestLike) -> _Answer:
        """Answer whether a key is there."""
        if req_context.req_id != self._asking:
            self._begin(req_context.req_id)
        if self._denied_now and key in self._denied_now:
            return self._miss
        check_key(key)
        if self._first_asked is not None and key != self._first_asked:
            self._core.ask_unseen(key)
            return self._retry
        self._first_asked = None
        verdict, asked = self._core.ask(key, self._waits_since_s)
        if verdict == HIT:
            return self._hit
        if verdict == MISS:
            # It may go on asking without an end of the step.
            if time.monotonic() - self._began_s > _STEP_S:
                self._end()
            return self._miss
        if asked:
            self._first_asked = key
        self._must_wait = True
        return self._retry

    def end_step(self, *_context: object) -> None:
        """Hand the step's questions to the threads."""
        self._end()
        self._core.submit_probes()

    def deny(self, keys: Iterable[bytes], request_id: str) -> None:
        """Make keys a miss for a request as long as it lives."""
        self._end()
        self._denied.setdefault(request_id, set()).update(keys)

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request."""
        self._end()
        self._waiting_since_s.pop(request_id, None)
        self._denied.pop(request_id, None)

    def _begin(self, request_id: str) -> None:
        """Turn to the request that asks from now on."""
        self._end()
        self._asking = request_id
        self._began_s = time.monotonic()
        self._waits_since_s = self._waiting_since_s.get(request_id, math.inf)
        self._denied_now = self._denied.get(request_id, ())

    def _end(self) -> None:
        """Put away what was noted of the request that has asked."""
        if self._asking is None:
            return
        if self._must_wait:
            self._waiting_since_s[self._asking] = self._began_s
        else:
            self._waiting_since_s.pop(self._asking, None)
        self._asking, self._waits_since_s, self._denied_now = None, math.inf, ()
        self._must_wait, self._first_asked = False, None
