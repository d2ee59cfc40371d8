"""What is noted of a request's lookups, where the engine's answer alone is not enough."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY


class LookupNotes:
    """Keys that live requests wait for, and keys whose load failed for them.

    False while there is nothing: then the engine's HIT and MISS are the answer. Not thread-safe: vLLM calls
    a tier under its manager's lock.
    """

    def __init__(self, probe: Callable[[bytes], None]) -> None:
        """Start with nothing noted.

        Args:
            probe: Asks the disk about a key.
        """
        self._probe = probe
        self._waiting: dict[str, set[bytes]] = {}
        self._denied: dict[str, set[bytes]] = {}

    def __bool__(self) -> bool:
        """Tell whether there is anything to look at."""
        return bool(self._waiting or self._denied)

    def resolve(self, key: bytes, request_id: str, verdict: int) -> int:
        """Return the answer to a request: `HIT`, `MISS`, or `RETRY` while the disk is asked.

        Args:
            key: What the request asks for.
            request_id: The request.
            verdict: What the engine says.
        """
        if key in self._denied.get(request_id, ()):
            return MISS
        waiting = self._waiting.get(request_id)
        if waiting is not None and key in waiting and verdict != RETRY:
            # Its question has been answered. If a step took longer than the time to live, the answer counts
            # all the same: otherwise it would be asked again in every step, for ever.
            waiting.remove(key)
            if not waiting:
                del self._waiting[request_id]
            return MISS if verdict == EXPIRED else verdict
        if verdict in (HIT, MISS):
            return verdict
        self._probe(key)
        self._waiting.setdefault(request_id, set()).add(key)
        return RETRY

    def deny(self, keys: Collection[bytes], request_id: str) -> None:
        """Make keys whose load failed a miss for a request as long as it lives.

        Without this it could be sent to the same bad chunk again and again (vLLM#49176).
        """
        self._denied.setdefault(request_id, set()).update(keys)

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request."""
        self._waiting.pop(request_id, None)
        self._denied.pop(request_id, None)
