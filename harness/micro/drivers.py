"""The interface through which a run drives vLLM's own tier and kvfs alike, and how a driver is found."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from harness.errors import HarnessError

IO_STOCK: Final = "stock"
IO_PYTHON: Final = "python"
IO_URING: Final = "uring"
IO_PSYNC: Final = "psync"


class DriverError(HarnessError):
    """An arm cannot be driven, or a job of it failed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One job that ended.

    Attributes:
        job_id: As submitted.
        latency_s: From submission until its last chunk was done, by the arm's own clock.
    """

    job_id: int
    latency_s: float


class Driver(Protocol):
    """One arm's engine. The thread that submits is the one that takes what finished."""

    @property
    def base_path(self) -> str:
        """Where the chunks' directories lie."""

    def submit(self, op: str, job_id: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Store rows of the primary buffer under keys, or load keys into rows. Does not block."""

    def finished(self) -> list[Finished]:
        """Take what has ended since the last call. Does not block.

        Raises:
            DriverError: A job failed.
        """

    def wait(self) -> None:
        """Block until no job is unfinished."""

    def facts(self) -> dict[str, object]:
        """Return what records say about the arm: `engine` and `o_direct`."""

    def close(self) -> None:
        """End the threads."""


class DriverModule(Protocol):
    """A module that holds one kind of driver."""

    def make(self, root: Path, view: memoryview, threads: int, io: str, checksum: str) -> Driver:
        """Return a driver with its threads started.

        Args:
            root: Directory of the namespace.
            view: The primary tier, int8, shape (rows, chunk_bytes).
            threads: For reads, and as many for writes.
            io: The I/O back end.
            checksum: kvfs's option of that name.

        Raises:
            DriverError: It cannot be driven here.
        """


def module_of(io: str) -> DriverModule:
    """Import the module that drives an I/O path.

    A worker imports the one that it measures and no other: vLLM alone takes many seconds and 700 MB.

    Raises:
        ImportError: It needs something that is not installed.
    """
    name = "stock_driver" if io == IO_STOCK else "kvfs_driver"
    return cast("DriverModule", importlib.import_module(f"harness.micro.{name}"))
