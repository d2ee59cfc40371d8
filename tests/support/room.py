"""What a directory takes on disk, watched while engines write there; and processes that store."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

# Files of the engines' own, and what a file system rounds up.
SLACK_BYTES = 128 << 10
_BLOCK_BYTES = 512

# Stores chunks of its own without end, or as many as it is told, and says so after each job.
_STORER = """
import sys, os
from kvfs import backend

base, root, capacity, first, size, jobs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
rows = 16
buffer = memoryview(bytearray(os.urandom(size) * rows)).cast("B", (rows, size))
engine = backend.load().Engine(base, buffer, 2, 2, capacity_bytes=capacity, space_root=root)
job = 0
while job != jobs:
    keys = [((first + job * rows + row) * 0x9E3779B1 % 2**32).to_bytes(4, "big") for row in range(rows)]
    engine.submit_store(job, b"".join(key + bytes(32) for key in keys), 36, list(range(rows)))
    engine.drain(60)
    engine.poll()
    job += 1
    print(engine.stats()["evicted_chunks"], flush=True)
engine.close()
"""


def disk_bytes(root: Path) -> tuple[int, int]:
    """Return what everything below a directory takes on disk, itself included; and first levels' part."""
    total = root.stat().st_blocks * _BLOCK_BYTES
    first_levels = 0
    for path, directories, files in os.walk(root):
        for name in [*directories, *files]:
            # Removed since its name was read.
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(f"{path}/{name}")
                total += status.st_blocks * _BLOCK_BYTES
                if name in directories and len(name) == len("abc"):
                    first_levels += status.st_blocks * _BLOCK_BYTES
    return total, first_levels


class RoomWatch:
    """Looks again and again what a directory takes, and what its file system has left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        # Without the first level's directories, which come on top of what is promised.
        self.peak_bytes = 0
        self.least_free_bytes = sys.maxsize

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look()

    def look(self) -> None:
        """Look once."""
        total, first_levels = disk_bytes(self._root)
        self.peak_bytes = max(self.peak_bytes, total - first_levels)
        free = os.statvfs(self._root)
        self.least_free_bytes = min(self.least_free_bytes, free.f_bavail * free.f_frsize)
        self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.look()


class Storer:
    """A process that stores chunks in a namespace of a limited root."""

    def __init__(
        self, base: Path, root: Path, capacity_bytes: int, *, first: int, size: int, jobs: int = -1
    ) -> None:
        arguments = [str(base), str(root), str(capacity_bytes), str(first), str(size), str(jobs)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _STORER, *arguments], stdout=subprocess.PIPE, text=True, cwd=root
        )

    def await_evictions(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until it has evicted so many chunks."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        for line in self._process.stdout:
            if int(line) >= count:
                return
            assert time.monotonic() < deadline, "too few evictions"
        raise AssertionError("the storing process ended")

    def finish(self) -> None:
        """Wait until it has stored what it was told."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=30)


@contextlib.contextmanager
def storing(*storers: Storer) -> Iterator[None]:
    """End processes that still run."""
    try:
        yield
    finally:
        for storer in storers:
            storer.kill()
