"""Sample what a phase does to the machine: the disk's throughput and use, a directory's size, the CPUs."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from harness import storage

INTERVAL_S: Final = 0.5
# A walk over a large directory must not become the load: it may take so much of the time.
_WALK_SHARE: Final = 0.05


@dataclass
class Samples:
    """One value for each interval that has passed.

    Attributes:
        disk_read_mb_per_s: Of the whole device, whoever read; empty where the disk is no block device.
        disk_write_mb_per_s: The same of writes.
        disk_busy_percent: Share of the time in which the device had something to do.
        disk_used_bytes: What the tier's directory takes on the disk; between two long walks, the last value.
        cpu_percent: Of all CPUs together.
    """

    disk_read_mb_per_s: list[float] = field(default_factory=list)
    disk_write_mb_per_s: list[float] = field(default_factory=list)
    disk_busy_percent: list[float] = field(default_factory=list)
    disk_used_bytes: list[float] = field(default_factory=list)
    cpu_percent: list[float] = field(default_factory=list)


def device_under(directory: Path) -> str | None:
    """Return the block device that a directory lies on, such as "vda1"; None where it has none.

    Overlays, network and memory file systems have none, and some file systems hide theirs.
    """
    number = directory.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    name = link.resolve().name if link.exists() else None
    return name if name in psutil.disk_io_counters(perdisk=True) else None


class Watch:
    """Samples on a thread of its own for as long as the block lasts.

    Args:
        device: As `device_under` says it; None samples no disk.
        directory: The tier's; None where there is none.
        interval_s: Between two samples.
    """

    def __init__(self, device: str | None, directory: Path | None, interval_s: float = INTERVAL_S) -> None:
        self._device = device
        self._directory = directory
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._next_walk = 0.0
        self._used_bytes = 0.0
        self.samples = Samples()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before, counted = time.monotonic(), self._count()
        psutil.cpu_percent()  # counts from here on
        while not self._stop.wait(max(0.0, before + self._interval_s - time.monotonic())):
            now, count = time.monotonic(), self._count()
            passed_s = now - before
            # Where a walk or a busy machine has made it late, the rate stands for each interval since.
            self._add(counted, count, passed_s, max(1, int(passed_s / self._interval_s)))
            before, counted = now, count

    def _count(self) -> tuple[int, int, int]:
        """Return the bytes that the device has read and written, and its busy milliseconds."""
        if self._device is None:
            return 0, 0, 0
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)[self._device]
        return counters.read_bytes, counters.write_bytes, counters.busy_time

    def _add(
        self, before: tuple[int, int, int], after: tuple[int, int, int], passed_s: float, times: int
    ) -> None:
        samples = self.samples
        if self._device is not None:
            read, written, busy_ms = (now - then for now, then in zip(after, before, strict=True))
            samples.disk_read_mb_per_s += [read / 1e6 / passed_s] * times
            samples.disk_write_mb_per_s += [written / 1e6 / passed_s] * times
            samples.disk_busy_percent += [min(100.0, busy_ms / 10 / passed_s)] * times
        if self._directory is not None:
            samples.disk_used_bytes += [self._used(self._directory)] * times
        samples.cpu_percent += [psutil.cpu_percent()] * times

    def _used(self, directory: Path) -> float:
        started = time.monotonic()
        if started >= self._next_walk:
            try:
                self._used_bytes = float(storage.used_bytes(directory))
            except OSError:
                return self._used_bytes  # a file went while it was looked at
            ended = time.monotonic()
            self._next_walk = ended + (ended - started) / _WALK_SHARE
        return self._used_bytes
