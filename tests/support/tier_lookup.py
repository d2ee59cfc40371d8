"""The lookups of a tier, on an engine."""

from __future__ import annotations

from dataclasses import dataclass

from rig import Rig

DEADLINE_S = 30.0


@dataclass
class Request:
    """As vLLM describes one."""

    req_id: str = "a"


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
