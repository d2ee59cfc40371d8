"""The lookups of a tier, on an engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rig import Rig

DEADLINE_S = 30.0


@dataclass
class Request:
    """As vLLM describes one."""

    req_id: str = "a"
    # Where each of its keys ends, as vLLM notes it; tests that say nothing of it have a request without.
    _offload_key_positions: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[bytes], req_id: str = "a") -> Request:
        """Return a request whose keys are known in their order, before it asks about any."""
        return cls(req_id, {key: 16 * number for number, key in enumerate(keys, start=1)})


class TierLookup:
    """What answers a tier's lookups, with names for answers."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.lookups = rig.engine.tier_lookup("miss", "hit", "retry")
        self.ask = self.lookups.ask

    def end_step(self) -> None:
        """End a step and let the disk answer."""
        self.lookups.end_step()
        assert self.rig.engine.drain(DEADLINE_S)
