"""The arms of the micro benchmark, in the order of a round, and what each one's worker is told."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from harness.errors import UsageError
from harness.micro.drivers import IO_PSYNC, IO_PYTHON, IO_STOCK, IO_URING

_EXTENSION: Final = {"KVFS_DISABLE_EXT": "0"}
_NO_EXTENSION: Final = {"KVFS_DISABLE_EXT": "1"}
IO_CHOICES: Final = (IO_URING, IO_PSYNC)
_UNVERIFIED: Final = "kvfs-unverified"
_FIO: Final = "fio"


def label_of(name: str, io: str) -> str:
    """Return an arm as people read it: with its I/O path, where it has several."""
    return f"{name} ({io})" if name in ("kvfs", _UNVERIFIED, _FIO) and io else name


@dataclass(frozen=True)
class Arm:
    """One way to move the same chunks.

    Attributes:
        name: As in records.
        io: Its I/O path; empty for fio, which is no tier.
        worker: The worker that runs it; arms that need the same imports share one.
        environment: Variables of that worker.
        checksum: kvfs's option of that name.
        traced: Whether its system calls are counted; once is enough for what runs twice.
        optional: Whether a machine without it is still fit to measure the others.
    """

    name: str
    io: str
    worker: str
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    checksum: str = "auto"
    traced: bool = True
    optional: bool = False

    @property
    def label(self) -> str:
        """The arm as people read it."""
        return label_of(self.name, self.io)


STOCK: Final = Arm("fs", IO_STOCK, "fs")
# The same again: what differs between these two is noise.
STOCK_AGAIN: Final = Arm("fs-aa", IO_STOCK, "fs", traced=False)
# Many containers forbid io_uring.
KVFS: Final = {io: Arm("kvfs", io, "kvfs", _EXTENSION, optional=io == IO_URING) for io in IO_CHOICES}
# The same without checksums, to tell what they cost. Only beside it the files that are loaded have any.
UNVERIFIED: Final = {
    io: dataclasses.replace(arm, name=_UNVERIFIED, checksum="off", traced=False) for io, arm in KVFS.items()
}
FALLBACK: Final = Arm("kvfs-fallback", IO_PYTHON, "kvfs-fallback", _NO_EXTENSION)
FIO: Final = Arm(_FIO, "", "", traced=False, optional=True)
NAMES: Final = (STOCK.name, "kvfs", FALLBACK.name, FIO.name)
CHOICES: Final = (*NAMES, _UNVERIFIED)


def choose(names: Sequence[str], io: Sequence[str]) -> list[Arm]:
    """Return the arms of a round; `fs` comes twice, at both ends, as the measure of noise.

    Raises:
        UsageError: An unknown name, or nothing to measure.
    """
    for option, known, given in (("--arms", CHOICES, names), ("--io", IO_CHOICES, io)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f"{option}: {unknown[0]!r} is unknown; choose from {','.join(known)}")
    if _UNVERIFIED in names and "kvfs" not in names:
        raise UsageError(f"--arms: {_UNVERIFIED} is what kvfs is compared with: name kvfs, too")
    by_name = {
        STOCK.name: [STOCK],
        "kvfs": [KVFS[choice] for choice in IO_CHOICES if choice in io],
        _UNVERIFIED: [UNVERIFIED[choice] for choice in IO_CHOICES if choice in io],
        FALLBACK.name: [FALLBACK],
    }
    chosen = [arm for name, arms in by_name.items() if name in names for arm in arms]
    if not chosen:
        raise UsageError("--arms and --io leave nothing to measure: fio alone is a limit without an arm")
    if FIO.name in names:
        chosen.append(FIO)
    if STOCK.name in names:
        chosen.append(STOCK_AGAIN)
    return chosen


def beside(arm: Arm, chosen: Sequence[Arm]) -> Arm | None:
    """Return the chosen arm that takes turns with this one, in its process, where they load, or None.

    How fast memory is loaded into depends on where its pages lie, by a factor of two (docs/performance.md):
    arms that are compared to a few percent share one buffer.
    """
    other = UNVERIFIED.get(arm.io)
    return other if arm == KVFS.get(arm.io) and other in chosen else None


def wants_seals(chosen: Sequence[Arm]) -> bool:
    """Tell whether the files that all arms load have checksums: where some arm leaves out what they cost."""
    return any(arm.name == _UNVERIFIED for arm in chosen)
