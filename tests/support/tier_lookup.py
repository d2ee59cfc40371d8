"""The function that answers a tier's lookups, with the notes that it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rig import Rig

from kvfs.vllm_adapter.lookup import RequestNotes

DEADLINE_S = 30.0


@dataclass
class Request:
    """As vLLM describes one."""

    req_id: str = "a"


class Notes(RequestNotes):
    """Those of the tier, which count how often they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def begin(self, request_id: str) -> None:
        self.calls.append(f"begin {request_id}")
        super().begin(request_id)

    def missed(self) -> None:
        self.calls.append("missed")
        super().missed()


@dataclass
class TierLookup:
    """The function of an engine, with the notes that it uses."""

    rig: Rig
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.ask: Callable[[bytes, Request], str] = self.rig.engine.tier_lookup(
            self.notes, "miss", "hit", "retry"
        )

    def end_step(self) -> None:
        """End a step and let the disk answer."""
        self.notes.end()
        self.rig.engine.submit_probes()
        assert self.rig.engine.drain(DEADLINE_S)
