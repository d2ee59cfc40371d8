"""Both engines on one root at once: they share the room, and remove each other's orphans."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from polling import DEADLINE_S, await_that
from room import SLACK_BYTES, RoomWatch, disk_bytes

import kvfs_ext
from kvfs import fallback
from kvfs.fallback import writers
from kvfs.jobs import HIT, EngineLike, IoBackend

CHUNK = 16384
COST = CHUNK + 4096
CAPACITY = 2 << 20
ROWS = 8


class Side:
    """An engine of one kind."""

    def __init__(self, io: IoBackend, base: Path, root: Path, **options: object) -> None:
        self.buffer = memoryview(bytearray(os.urandom(CHUNK)) * ROWS).cast("B", (ROWS, CHUNK))
        limits = {"capacity_bytes": CAPACITY, "space_root": str(root), "index_mode": "shared", **options}
        self.engine: EngineLike = io.Engine(str(base), self.buffer, 2, 2, **limits)  # type: ignore[arg-type]  # each of its own type
        assert await_that(lambda: self.engine.stats()["space_counted"] == 1)

    def await_scan(self) -> None:
        assert await_that(lambda: self.engine.stats()["scan_complete"] == 1)

    def store(self, first: int) -> None:
        """Store as many chunks as there are rows, until none is shed."""
        keys = b"".join(
            (number * 0x9E3779B1 % 2**32).to_bytes(4, "big") + bytes(32)
            for number in range(first, first + ROWS)
        )

        def is_stored() -> bool:
            self.engine.submit_store(first, keys, 36, list(range(ROWS)))
            assert self.engine.drain(DEADLINE_S)
            (done,) = self.engine.poll()
            assert set(done.outcomes) <= {0, errno.EAGAIN}
            return not any(done.outcomes)

        assert await_that(is_stored)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture(params=["one-namespace", "two-namespaces"])
def sides(request: pytest.FixtureRequest, root: Path) -> Iterator[list[Side]]:
    """Yield an engine of each kind on one root."""
    names = ("ns", "ns") if request.param == "one-namespace" else ("a", "b")
    sides = [Side(io, root / name, root) for io, name in zip((kvfs_ext, fallback), names, strict=True)]
    yield sides
    for side in sides:
        side.engine.close()


def test_both_together_stay_within_the_capacity(sides: list[Side], root: Path) -> None:
    with RoomWatch(root) as watch:
        for turn in range(40):
            sides[turn % 2].store(ROWS * turn)
    assert watch.peak_bytes <= CAPACITY + SLACK_BYTES
    assert disk_bytes(root)[0] > CAPACITY // 2
    assert sum(side.engine.stats()["evicted_chunks"] for side in sides) > 200
    # Each sees what both have taken.
    used = [side.engine.stats()["used_bytes"] for side in sides]
    assert all(0 < each <= CAPACITY for each in used)


def test_each_reads_the_others_file(root: Path) -> None:
    for first, second in ((kvfs_ext, fallback), (fallback, kvfs_ext)):
        one = Side(first, root / "ns", root)
        one.store(0)
        other = Side(second, root / "ns", root)
        magic, counted, unowned, *slots = struct.unpack("=8sQq1024q", (root / "kvfs.space").read_bytes())
        assert (magic, counted) == (b"KVFSSPC1", 1)
        # The first one's lease; it is alone, so that what it found is counted.
        assert max(slots) >= ROWS * COST
        assert 0 <= unowned < CAPACITY
        assert other.engine.stats()["used_bytes"] == unowned + sum(slots)
        one.engine.close()
        # What a closed one had belongs to nobody, and counts on.
        other.store(1000)
        assert other.engine.stats()["used_bytes"] >= ROWS * COST
        other.engine.close()
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("io", [kvfs_ext, fallback], ids=["extension", "fallback"])
def test_namespace_that_the_other_kind_has_left_goes_first(root: Path, io: IoBackend) -> None:
    other = fallback if io is kvfs_ext else kvfs_ext
    left = Side(other, root / "left", root)
    left.store(0)
    left.engine.close()
    assert len(list((root / "left").rglob("*.bin"))) == ROWS
    # Only a lock tells whether it is in use.
    side = Side(io, root / "own", root, index_mode="owner")
    for turn in range(1, 16):
        side.store(1000 * turn)
    assert list((root / "left").rglob("*.bin")) == []
    side.engine.close()


@pytest.mark.parametrize("io", [kvfs_ext, fallback], ids=["extension", "fallback"])
def test_namespace_that_the_other_kind_has_open_is_left_alone(root: Path, io: IoBackend) -> None:
    other = Side(fallback if io is kvfs_ext else kvfs_ext, root / "other", root)
    other.store(0)
    side = Side(io, root / "own", root)
    for turn in range(1, 16):
        side.store(1000 * turn)
    assert len(list((root / "other").rglob("*.bin"))) == ROWS
    side.engine.close()
    other.engine.close()


def test_each_removes_the_others_orphans_and_leaves_what_is_alive(tmp_path: Path) -> None:
    native = Side(kvfs_ext, tmp_path / "ns", tmp_path)
    python = Side(fallback, tmp_path / "ns", tmp_path)
    (own,) = [writers.temporary_name(str(tmp_path / "ns" / "config.json"))]
    live = Path(own)
    dead = tmp_path / "ns" / f"config.json_kvfs{(writers.writer_number() ^ 1 << 63):016x}{1:016x}.tmp"
    for io in (kvfs_ext, fallback):
        live.write_bytes(b"in flight")
        dead.write_bytes(b"left behind")
        third = Side(io, tmp_path / "ns", tmp_path)
        third.await_scan()
        assert third.engine.stats()["reclaimed_temporaries"] == 1
        assert live.exists()
        assert not dead.exists()
        third.engine.close()
    python.engine.close()
    # With the last engine of that writer its temporaries have become orphans.
    third = Side(kvfs_ext, tmp_path / "ns", tmp_path)
    assert await_that(lambda: not live.exists())
    third.engine.close()
    native.engine.close()


@pytest.mark.parametrize("io", [kvfs_ext, fallback], ids=["extension", "fallback"])
def test_what_one_evicts_the_other_learns_from_its_load(tmp_path: Path, io: IoBackend) -> None:
    # One that has room enough by its own limit, and evicts nothing itself.
    loader = Side(io, tmp_path / "ns", tmp_path, capacity_bytes=4 * CAPACITY)
    loader.store(0)
    evictor = Side(fallback if io is kvfs_ext else kvfs_ext, tmp_path / "ns", tmp_path)
    evictor.await_scan()
    evicted: list[bytes] = []
    for turn in range(1, 30):
        evictor.store(1000 * turn)
        evicted += evictor.engine.take_evicted()
    # Found by the scan, they are older than what it has stored itself.
    key = bytes(4) + bytes(32)
    assert key in evicted
    assert loader.engine.lookup(key) == HIT
    loader.engine.submit_load(1, key, 36, [0])
    assert loader.engine.drain(DEADLINE_S)
    (done,) = loader.engine.poll()
    assert done.outcomes == [errno.ENOENT]
    assert loader.engine.lookup(key) != HIT
    loader.engine.close()
    evictor.engine.close()
