"""Verdicts on keys: asked in one step, answered off the scheduler's thread, kept for a request's life."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvfs.jobs import SUCCESS


class _Probe:
    """One question to the disk. An answer belongs to this object, never to a later one of the same key."""

    __slots__ = ("present", "request_ids")

    def __init__(self) -> None:
        self.present: bool | None = None
        self.request_ids: set[str] = set()


class LookupTable:
    """What is known of the keys that live requests ask for.

    Not thread-safe: vLLM calls a tier under its manager's lock. Requests that ask for one key share a
    probe; when the last of them ends, the verdict goes, so that a later request asks the disk again.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._probes: dict[bytes, _Probe] = {}
        self._keys_by_request: dict[str, set[bytes]] = {}
        self._unsent: list[tuple[bytes, _Probe]] = []
        self._in_flight: dict[int, list[_Probe]] = {}
        self._next_batch_id = 0

    def ask(self, key: bytes, request_id: str) -> bool | None:
        """Return whether the chunk is on disk, or None while that is unknown."""
        probe = self._probes.get(key)
        if probe is None:
            probe = self._probes[key] = _Probe()
            self._unsent.append((key, probe))
        if request_id not in probe.request_ids:
            probe.request_ids.add(request_id)
            self._keys_by_request.setdefault(request_id, set()).add(key)
        return probe.present

    def take_batch(self) -> tuple[int, list[bytes]] | None:
        """Return an id and the keys that were asked for and not sent yet, None if there are none."""
        batch = [(key, probe) for key, probe in self._unsent if probe.request_ids]
        self._unsent.clear()
        if not batch:
            return None
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        self._in_flight[batch_id] = [probe for _, probe in batch]
        return batch_id, [key for key, _ in batch]

    def answer(self, batch_id: int, outcomes: Sequence[int]) -> None:
        """Take the answers to a batch, one errno a key."""
        for probe, outcome in zip(self._in_flight.pop(batch_id), outcomes, strict=True):
            probe.present = outcome == SUCCESS

    def deny(self, keys: Collection[bytes]) -> None:
        """Turn the verdicts on keys whose load failed into a miss, so that vLLM computes them.

        Without this the same request would be sent to the same bad chunk again and again (vLLM#49176).
        """
        for key in keys:
            probe = self._probes.get(key)
            if probe is not None and probe.present is not None:
                probe.present = False

    def forget(self, request_id: str) -> None:
        """Drop what only this request asked for."""
        for key in self._keys_by_request.pop(request_id, ()):
            probe = self._probes[key]
            probe.request_ids.discard(request_id)
            if not probe.request_ids:
                del self._probes[key]

    @property
    def waiting(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._in_flight)
