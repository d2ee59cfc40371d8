"""Temporaries of writers who are gone are removed at the next start, and nobody else's."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

CHUNK = 4096
# An engine in a process of its own, which says that it has started.
_ENGINE = """
import sys
from kvfs import backend

buffer = memoryview(bytearray(4096)).cast("B", (1, 4096))
engine = backend.load().Engine(sys.argv[1], buffer, 1, 1, index_mode=sys.argv[2])
print("started", flush=True)
sys.stdin.read()
"""


class Process:
    """An engine elsewhere."""

    def __init__(self, base: Path, index_mode: str) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ENGINE, str(base), index_mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=base,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "started\n"
        self._inode = (base / "kvfs.lock").stat().st_ino

    def writer(self) -> int:
        """Return a number that its lock belongs to; four have the same byte."""
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "OFDLCK" and fields[-3].endswith(f":{self._inode}") and int(fields[-2]) > 1:
                return 4 * (int(fields[-2]) - 2)
        raise AssertionError("it holds no lock")

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.communicate(timeout=30)


def _name(path: Path, writer: int) -> Path:
    return path.with_name(f"{path.name}_kvfs{writer:016x}{os.getpid():08x}{7:08x}.tmp")


def _place(rig: Rig, writer: int) -> list[Path]:
    """Leave temporaries as a writer does: of a chunk, of the snapshot, of a probe."""
    chunk = rig.path(rig.key(1))
    chunk.parent.mkdir(parents=True, exist_ok=True)
    paths = [_name(path, writer) for path in (chunk, rig.base / "kvfs.index", rig.base / ".kvfs_probe")]
    for path in paths:
        path.write_bytes(b"half")
    return paths


@pytest.mark.parametrize("mode", ["owner", "shared"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_temporaries_of_a_dead_writer_are_removed_at_the_next_start(
    start_rig: StartRig, storage: Path, mode: str, how: signal.Signals
) -> None:
    process = Process(storage, mode)
    writer = process.writer()
    process.end(how)
    paths = _place(start_rig(storage / "elsewhere"), writer)
    paths = [storage / path.relative_to(storage / "elsewhere") for path in paths]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=3)
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("mode", ["owner", "shared"])
def test_temporaries_of_a_live_writer_stay(start_rig: StartRig, storage: Path, mode: str) -> None:
    process = Process(storage, mode)
    try:
        writer = process.writer()
        paths = _place(start_rig(storage, index_mode="shared"), writer)
        rig = start_rig(storage, index_mode="shared")
        assert rig.await_stats(scan_complete=1)
        assert all(path.exists() for path in paths)
        assert rig.engine.stats()["reclaimed_temporaries"] == 0
    finally:
        process.end(signal.SIGKILL)
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=3)


def test_owner_that_becomes_shared_stays_alive_to_others(start_rig: StartRig, storage: Path) -> None:
    process = Process(storage, "owner")
    try:
        inode = (storage / "kvfs.lock").stat().st_ino
        writer = process.writer()
        start_rig(storage, index_mode="shared")
        # It notices once it is asked; it holds its byte before and after that.
        assert (storage / "kvfs.lock").stat().st_ino == inode
        rig = start_rig(storage, index_mode="shared")
        paths = _place(rig, writer)
        again = start_rig(storage, index_mode="shared")
        assert again.await_stats(scan_complete=1, reclaimed_temporaries=0)
        assert all(path.exists() for path in paths)
    finally:
        process.end(signal.SIGKILL)


FOREIGN = [
    "{}_0123456789abcdef.tmp",
    "{}.tmp",
    "{}_kvfs.tmp",
    "{}_kvfs0123456789abcdef0123456789abcde.tmp",
    "{}_kvfs0123456789abcdef0123456789abcdeg.tmp",
    "{}_kvfs0123456789ABCDEF0123456789ABCDEF.tmp",
    "{}_kvfs0123456789abcdef0123456789abcdef.tmp.old",
    "{}_vllm0123456789abcdef0123456789abcdef.tmp",
    "{}_kvfs0123456789abcdef0123456789abcdef.bin",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_temporaries_of_others_stay(start_rig: StartRig, storage: Path, name: str) -> None:
    rig = start_rig(storage)
    chunk = rig.path(rig.key(1))
    chunk.parent.mkdir(parents=True)
    paths = [path.with_name(name.format(path.name)) for path in (chunk, storage / "config.json")]
    for path in paths:
        path.write_bytes(b"not ours")
    rig.engine.close()
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=0)
    assert all(path.read_bytes() == b"not ours" for path in paths)


def test_temporaries_elsewhere_and_what_cannot_be_removed_stay(start_rig: StartRig, storage: Path) -> None:
    dead = "0123456789abcdef"
    name = f"x_kvfs{dead}{0:016x}.tmp"
    (storage / "notes").mkdir()
    (storage / "notes" / name).write_bytes(b"not ours")
    # A directory of such a name is no temporary.
    (storage / name).mkdir()
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=0)
    assert (storage / "notes" / name).exists()
    assert (storage / name).is_dir()


def test_link_of_a_temporary_is_removed_and_not_its_target(start_rig: StartRig, storage: Path) -> None:
    target = storage / "target"
    target.write_bytes(b"not ours")
    link = storage / f"x_kvfs{'0123456789abcdef'}{0:016x}.tmp"
    link.symlink_to(target)
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=1)
    assert not link.is_symlink()
    assert target.read_bytes() == b"not ours"


def test_two_engines_of_one_process_leave_each_others_temporaries(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    keys = [rig.key(number) for number in range(200)]
    job = rig.submit("store", keys, [0] * 200)
    for _ in itertools.takewhile(lambda _: rig.engine.stats()["inflight_jobs"], range(20)):
        other = start_rig(storage, num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
        assert other.await_stats(scan_complete=1)
        other.engine.close()
    assert rig.finish()[job].outcomes == [0] * 200
