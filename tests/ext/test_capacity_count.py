"""The count at the start agrees with what evicting gives back, and closing gives back what was leased."""

from __future__ import annotations

from pathlib import Path

from crash_check import physical
from polling import await_that

import kvfs_ext

CHUNK = 4096
CHUNKS = 128


def _keys(*, one_directory: bool) -> list[bytes]:
    """Return keys whose files share a directory, or have one each in the same few above."""
    first = [bytes([0, 0 if one_directory else 2 * number, 0]) for number in range(CHUNKS)]
    return [start + number.to_bytes(29, "big") + bytes(4) for number, start in enumerate(first)]


def _start(base: Path, capacity_bytes: int) -> kvfs_ext.Engine:
    buffer = memoryview(bytearray(CHUNKS * CHUNK)).cast("B", (CHUNKS, CHUNK))
    engine = kvfs_ext.Engine(str(base), buffer, 1, 1, capacity_bytes=capacity_bytes)
    assert await_that(lambda: engine.stats()["space_counted"] == 1 and engine.stats()["scan_complete"] == 1)
    return engine


def _fill(base: Path, keys: list[bytes]) -> kvfs_ext.Engine:
    """Store chunks where there is room for all; return the engine, closed."""
    engine = _start(base, 1 << 30)
    engine.submit_store(1, b"".join(keys), 36, list(range(CHUNKS)))
    assert engine.drain(60.0)
    assert engine.poll()[0].outcomes == [0] * CHUNKS
    engine.close()
    return engine


def _evict_a_fifth(base: Path) -> tuple[kvfs_ext.Engine, int]:
    """Start with room for four fifths of what is there; return the engine and its capacity."""
    found = physical(base)
    capacity = (found.total_bytes) * 4 // 5
    engine = _start(base, capacity)
    # Beyond nine tenths nothing is evicted, and pruning comes last.
    assert await_that(lambda: engine.stats()["used_bytes"] <= capacity * 19 // 20)
    return engine, capacity


def test_chunks_of_one_directory_are_not_promised_less_than_they_take(tmp_path: Path) -> None:
    # Each evicted chunk gave back a directory's 4 KiB, of which the count at the start had one for all.
    _fill(tmp_path, _keys(one_directory=True))
    engine, _ = _evict_a_fifth(tmp_path)
    assert engine.stats()["evicted_chunks"] > 0
    assert engine.stats()["used_bytes"] >= physical(tmp_path).total_bytes
    engine.close()


def test_no_more_chunks_are_evicted_than_it_takes(tmp_path: Path) -> None:
    # Chunks were evicted for the bytes of directories that waited to be removed: twice as many small ones.
    _fill(tmp_path, _keys(one_directory=False))
    engine, capacity = _evict_a_fifth(tmp_path)
    needed = (capacity * 5 // 4 - capacity * 9 // 10) // (CHUNK + 4096)
    assert needed <= engine.stats()["evicted_chunks"] <= needed + 8
    engine.close()


def test_closed_engine_gives_back_its_lease_and_its_slot(tmp_path: Path) -> None:
    # It kept both until it was dropped, and whoever came next was not alone and did not count.
    closed = _fill(tmp_path, _keys(one_directory=False))
    found = physical(tmp_path)
    engine = _start(tmp_path, 1 << 30)
    assert engine.stats()["used_bytes"] == found.total_bytes
    engine.close()
    assert closed.stats()["inflight_jobs"] == 0
