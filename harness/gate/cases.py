"""What the two wheels do in turns: small bursts of each operation, the same for both."""

import math
from dataclasses import dataclass, replace
from typing import Final

from harness.micro.cases import LOAD, LOOKUP, STORE, size_text

SUITE: Final = "gate"
BASE: Final = "base"
HEAD: Final = "head"
ARMS: Final = (BASE, HEAD)
WALL: Final = "wall_us_per_op"
CPU: Final = "cpu_us_per_op"
METRICS: Final = (WALL, CPU)

_SMOKE_DIVISOR: Final = 8


@dataclass(frozen=True)
class Case:
    """One operation, in bursts.

    Attributes:
        op: "load", "store" or "lookup".
        chunk_bytes: Size of a chunk.
        chunks: How many chunks a burst moves, or how many files those are that are looked up.
        rounds: How often each of them is moved or looked up in a burst.
    """

    op: str
    chunk_bytes: int
    chunks: int
    rounds: int = 1

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.op} {size_text(self.chunk_bytes)}"

    @property
    def ops(self) -> int:
        """How many chunks a burst counts; half of the keys that are looked up are of no file."""
        return self.chunks * self.rounds * (2 if self.op == LOOKUP else 1)

    def smaller(self) -> "Case":
        """Return as little of it as still does everything once."""
        return replace(self, chunks=math.ceil(self.chunks / _SMOKE_DIVISOR), rounds=1)


# A burst takes 10 to 40 ms: long beside the clock and the waking of a thread, short beside what disturbs a
# machine.
CASES: Final = (
    Case(LOAD, 64 << 10, 256),
    Case(LOAD, 1 << 20, 32),
    Case(STORE, 64 << 10, 128),
    Case(STORE, 1 << 20, 16),
    Case(LOOKUP, 64 << 10, 256, 8),
)


@dataclass(frozen=True)
class Burst:
    """What one burst took.

    Attributes:
        wall_s: From the first submission until all is done.
        cpu_s: The process's, all threads, until they rest.
        ops: Chunks that were reported done, each exactly once.
        moved_bytes: By the engine's own count.
        checked: Of how many every byte was compared, or the answer of a lookup.
        device_bytes: What went to or came from a block device meanwhile.
    """

    wall_s: float
    cpu_s: float
    ops: int
    moved_bytes: int
    checked: int
    device_bytes: int
