"""Transfers that take several system calls: chunks above 2 GiB, and signals that interrupt."""

from __future__ import annotations

import mmap
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

# One system call moves at most 2,147,479,552 bytes on Linux.
CALL_BYTES_MAX = 0x7FFFF000
LARGE_SIZE_BYTES = (2 << 30) + 4096
MARKS = [0, CALL_BYTES_MAX - 1, CALL_BYTES_MAX, 2 << 30, LARGE_SIZE_BYTES - 1]


@pytest.mark.slow
def test_batch_store_chunk_above_2_gib_writes_it_whole(io: IoBackend, tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    with mmap.mmap(-1, LARGE_SIZE_BYTES) as memory:
        for number, mark in enumerate(MARKS, 1):
            memory[mark] = number
        io.batch_store([f"{path}.tmp"], [str(path)], [memory])
    try:
        assert path.stat().st_size == LARGE_SIZE_BYTES
        with path.open("rb") as file:
            for number, mark in enumerate(MARKS, 1):
                file.seek(mark)
                assert file.read(1) == bytes([number])
    finally:
        # pytest keeps the directories of the last runs.
        path.unlink()


@pytest.mark.slow
def test_batch_load_chunk_above_2_gib_reads_it_whole(io: IoBackend, tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    try:
        with path.open("wb") as file:
            for number, mark in enumerate(MARKS, 1):
                file.seek(mark)
                file.write(bytes([number]))
        with mmap.mmap(-1, LARGE_SIZE_BYTES) as memory:
            io.batch_load([str(path)], [memory])
            assert [memory[mark] for mark in MARKS] == [1, 2, 3, 4, 5]
        # A valid file stays.
        assert path.stat().st_size == LARGE_SIZE_BYTES
    finally:
        path.unlink()


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """Interrupt this process each millisecond of its work; yield the list of signals that arrived."""
    arrived: list[int] = []
    # Not SIGALRM, which the time-out of the test itself uses.
    previous = signal.signal(signal.SIGPROF, lambda number, _frame: arrived.append(number))
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    yield arrived
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, previous)


@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_batch_under_signals_round_trips(
    io: IoBackend, storage: Path, signals: list[int], use_o_direct: bool
) -> None:
    chunks = [bytes([number]) * (1 << 20) for number in range(8)]
    loaded = [bytearray(1 << 20) for _ in chunks]
    names = [str(storage / f"{number}.bin") for number in range(8)]
    deadline = time.monotonic() + 30
    while len(signals) < 10 and time.monotonic() < deadline:
        io.batch_store([f"{name}.tmp" for name in names], names, list(chunks), use_o_direct)
        io.batch_load(names, list(loaded), use_o_direct)
        assert loaded == chunks
        assert io.batch_lookup(names) == [True] * 8
        for name in names:
            Path(name).unlink()
    assert len(signals) >= 10


def test_engine_under_signals_round_trips(start_rig: StartRig, storage: Path, signals: list[int]) -> None:
    rig = start_rig(storage, num_chunks=16, chunk_size_bytes=1 << 18)
    chunks = [rig.tier.fill(number, seed=number) for number in range(8)]
    deadline = time.monotonic() + 30
    rounds = 0
    while (len(signals) < 10 or rounds < 3) and time.monotonic() < deadline:
        keys = [rig.key(8 * rounds + number) for number in range(8)]
        assert rig.store(keys, range(8)).outcomes == [0] * 8
        assert rig.load(keys, range(8, 16)).outcomes == [0] * 8
        assert [rig.tier.row(number) for number in range(8, 16)] == chunks
        rounds += 1
    assert len(signals) >= 10
