"""The arms of the micro benchmark, in the order of a round, and what each one's worker is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from harness.errors import UsageError
from harness.micro.drivers import IO_PSYNC, IO_PYTHON, IO_STOCK, IO_URING

_EXTENSION: Final = {"KVFS_DISABLE_EXT": "0"}
_NO_EXTENSION: Final = {"KVFS_DISABLE_EXT": "1"}
IO_CHOICES: Final = (IO_URING, IO_PSYNC)


@dataclass(frozen=True)
class Arm:
    """One way to move the same chunks.

    Attributes:
        name: As in records.
        io: Its I/O path; empty for fio, which is no tier.
        worker: The worker that runs it; arms that need the same imports share one.
        environment: Variables of that worker.
        traced: Whether its system calls are counted; once is enough for what runs twice.
        optional: Whether a machine without it is still fit to measure the others.
    """

    name: str
    io: str
    worker: str
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    traced: bool = True
    optional: bool = False

    @property
    def label(self) -> str:
        """The arm as people read it."""
        return f"{self.name} ({self.io})" if self.name == "kvfs" else self.name


STOCK: Final = Arm("fs", IO_STOCK, "fs")
# The same again: what differs between these two is noise.
STOCK_AGAIN: Final = Arm("fs-aa", IO_STOCK, "fs", traced=False)
# Many containers forbid io_uring.
KVFS: Final = {io: Arm("kvfs", io, "kvfs", _EXTENSION, optional=io == IO_URING) for io in IO_CHOICES}
FALLBACK: Final = Arm("kvfs-fallback", IO_PYTHON, "kvfs-fallback", _NO_EXTENSION)
FIO: Final = Arm("fio", "", "", traced=False, optional=True)
NAMES: Final = (STOCK.name, "kvfs", FALLBACK.name, FIO.name)


def choose(names: Sequence[str], io: Sequence[str]) -> list[Arm]:
    """Return the arms of a round; `fs` comes twice, at both ends, as the measure of noise.

    Raises:
        UsageError: An unknown name, or nothing to measure.
    """
    for option, known, given in (("--arms", NAMES, names), ("--io", IO_CHOICES, io)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f"{option}: {unknown[0]!r} is unknown; choose from {','.join(known)}")
    chosen: list[Arm] = []
    if STOCK.name in names:
        chosen.append(STOCK)
    if "kvfs" in names:
        chosen += [KVFS[choice] for choice in IO_CHOICES if choice in io]
    if FALLBACK.name in names:
        chosen.append(FALLBACK)
    if not chosen:
        raise UsageError("--arms and --io leave nothing to measure: fio alone is a limit without an arm")
    if FIO.name in names:
        chosen.append(FIO)
    if STOCK.name in names:
        chosen.append(STOCK_AGAIN)
    return chosen
