"""Defects that injected faults have found, each in its smallest form."""

from __future__ import annotations

import errno
from pathlib import Path

from fault_cases import SETUPS
from fault_namespace import Memory, start
from fault_run import bounded, run_job
from fault_seam import FOREVER, Fault, Seam
from polling import await_that


def test_close_snapshot_write_moves_nothing_ends_without_a_snapshot(seam: Seam, tmp_path: Path) -> None:
    # close() called write() again and again, for ever.
    seam.reset()
    memory = Memory(SETUPS[0].chunk_size_bytes)
    engine = start(SETUPS[0], tmp_path / "namespace", memory)
    assert run_job(engine, memory, "store", ["new_1"]) == {"new_1": 0}
    assert await_that(lambda: engine.stats()["scan_complete"] == 1)
    seam.add(Fault("write", 1, FOREVER, effect="short", size_bytes=0))
    with seam.active():
        bounded("close", engine.close)
    assert [hit.call for hit in seam.hits()] == ["write"]
    assert sorted(path.suffix for path in (tmp_path / "namespace").iterdir() if path.is_file()) == [".lock"]
    seam.reset()


def test_start_probe_finds_no_directory_once_makes_none_of_its_own_name(seam: Seam, tmp_path: Path) -> None:
    # The probe's file has no directory in its path; its own name was taken for that.
    seam.reset()
    setup = SETUPS[4]
    seam.add(Fault("openat_create", 1, error=errno.ENOENT))
    with seam.active():
        engine = start(setup, tmp_path / "namespace", Memory(setup.chunk_size_bytes))
    assert len(seam.hits()) == 1
    engine.close()
    assert [path.name for path in (tmp_path / "namespace").iterdir()] == ["kvfs.lock"]
    seam.reset()
