"""Temporaries of a forked writer that died are orphans, though its parent and siblings live."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash_nursery import Nursery
from crash_workload import PHASE as PHASE_PLACE
from crash_workload import SCANNED, WORKING, Spec
from polling import await_that

from kvfs import backend

if TYPE_CHECKING:
    from crash_nursery import Child

pytestmark = pytest.mark.uninstrumented


def _start(nursery: Nursery, base: Path) -> Child:
    module = "kvfs_ext" if backend.describe()[0] == "extension" else "kvfs.fallback"
    spec = Spec(module, str(base), str(base), 4096, None, 8, "auto", "auto", 1)
    child = nursery.fork(spec)
    assert await_that(lambda: child.memory[PHASE_PLACE] >= WORKING)
    return child


def test_forks_of_one_process_are_different_writers(tmp_path: Path) -> None:
    # The Python engine drew its number when it was imported, so that all forks had one number.
    with Nursery() as nursery:
        children = [_start(nursery, tmp_path) for _ in range(2)]
        held = set()
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            inode = (tmp_path / "kvfs.lock").stat().st_ino
            fields = line.split()
            if f":{inode}" in line and fields[1] == "OFDLCK":
                held.add((fields[-2], fields[-1]))
        for child in children:
            assert child.memory[SCANNED] in (0, 1)
            os.kill(child.pid, signal.SIGKILL)
    # Byte 0 for those that share, and one byte for each writer.
    assert len([place for place in held if place != ("0", "0")]) == 2
