"""The promise of `capacity_bytes` and `min_free_bytes`, checked with the blocks on disk while stores run."""

from __future__ import annotations

import errno
import fcntl
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that, small_buffer, until_admitted
from room import SLACK_BYTES, RoomWatch, Storer, disk_bytes, storing

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, Rig, StartRig

CHUNK = 16384
COST = CHUNK + 4096
# For four chunks, a directory each, and what rounding up takes at most.
LEAST = 4 * (CHUNK + 2 * 4096)
MIB = 1 << 20
ROWS = 16


def _keys(first: int, count: int) -> list[bytes]:
    """Return keys in directories of their own."""
    return [
        (number * 0x9E3779B1 % 2**32).to_bytes(4, "big") + bytes(32) for number in range(first, first + count)
    ]


def _start(start_rig: StartRig, base: Path, capacity_bytes: int, **options: object) -> Rig:
    rig = start_rig(base, num_chunks=ROWS, chunk_size_bytes=CHUNK, capacity_bytes=capacity_bytes, **options)
    for row in range(ROWS):
        rig.tier.fill(row, seed=row)
    assert rig.await_stats(space_counted=1)
    return rig


def _store_all(rig: Rig, keys: list[bytes]) -> int:
    """Store keys until none is shed; return how often one was."""
    sheds = 0
    left = list(keys)

    def store_what_is_left() -> bool:
        nonlocal left, sheds
        batch = left[:ROWS]
        outcomes = rig.store(batch, list(range(len(batch)))).outcomes
        assert set(outcomes) <= {0, errno.EAGAIN}
        shed = [key for key, outcome in zip(batch, outcomes, strict=True) if outcome]
        sheds += len(shed)
        left = shed + left[ROWS:]
        return not left

    assert await_that(store_what_is_left)
    return sheds


@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_stores_stay_within_the_capacity_while_they_run(
    start_rig: StartRig, storage: Path, use_o_direct: bool
) -> None:
    capacity = 4 * MIB
    rig = _start(start_rig, storage, capacity, use_o_direct=use_o_direct)
    with RoomWatch(storage) as watch:
        _store_all(rig, _keys(0, 3 * capacity // COST))
    assert watch.looks > 2
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    stats = rig.engine.stats()
    assert stats["evicted_chunks"] * COST == stats["evicted_bytes"]
    assert stats["evicted_chunks"] >= capacity // COST
    assert stats["evict_failures"] == 0
    # Not more than needed: most of it is still there.
    assert rig.engine.stats()["index_keys"] * COST > capacity * 7 // 10
    assert stats["used_bytes"] <= capacity


def test_without_limits_nothing_is_counted_or_shared(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    rig.store(_keys(0, 4), [0, 1, 2, 3])
    stats = rig.engine.stats()
    names = ("used_bytes", "free_bytes", "space_counted", "capacity_sheds", "evicted_chunks")
    assert [stats[name] for name in names] == [0] * 5
    assert not (storage / "kvfs.space").exists()
    assert rig.engine.take_evicted() == []


def test_start_above_the_capacity_evicts_at_once(start_rig: StartRig, storage: Path) -> None:
    capacity = 2 * MIB
    before = start_rig(storage, num_chunks=1, chunk_size_bytes=CHUNK)
    keys = _keys(0, 2 * capacity // COST)
    assert before.store(keys, [0] * len(keys)).outcomes == [0] * len(keys)
    before.engine.close()
    assert disk_bytes(storage)[0] > capacity
    rig = _start(start_rig, storage, capacity)
    assert await_that(lambda: disk_bytes(storage)[0] <= capacity + disk_bytes(storage)[1])
    with RoomWatch(storage) as watch:
        _store_all(rig, _keys(10_000, 64))
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    # No more went than had to.
    assert disk_bytes(storage)[0] >= capacity * 7 // 10


def test_capacity_holds_right_after_a_restart(start_rig: StartRig, storage: Path) -> None:
    capacity = 2 * MIB
    with RoomWatch(storage) as watch:
        for life in range(4):
            rig = _start(start_rig, storage, capacity)
            _store_all(rig, _keys(1000 * life, capacity // COST // 2))
            rig.engine.close()
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    assert disk_bytes(storage)[0] > capacity // 2


def test_capacity_holds_after_writers_were_killed(start_rig: StartRig, storage: Path) -> None:
    capacity = 2 * MIB
    with RoomWatch(storage) as watch:
        for life in range(3):
            base = storage / "ns"
            storer = Storer(base, storage, capacity, first=10_000 * life, size=CHUNK)
            with storing(storer):
                storer.await_evictions(20 * life + 10)
        rig = _start(start_rig, storage / "ns", capacity, space_root=str(storage))
        _store_all(rig, _keys(50_000, capacity // COST))
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    assert list(storage.rglob("*.tmp")) == []


@pytest.mark.parametrize("namespaces", [1, 3], ids=["one-namespace", "three-namespaces"])
def test_capacity_holds_for_several_processes_on_one_root(storage: Path, namespaces: int) -> None:
    capacity = 4 * MIB
    with RoomWatch(storage) as watch:
        storers = [
            Storer(storage / f"ns{number % namespaces}", storage, capacity, first=10_000 * number, size=CHUNK)
            for number in range(3)
        ]
        with storing(*storers):
            for storer in storers:
                storer.await_evictions(30)
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    assert disk_bytes(storage)[0] > capacity // 2


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_room_that_other_processes_leave_behind_can_be_used(
    start_rig: StartRig, tmp_path: Path, is_killed: bool
) -> None:
    root, capacity, size = tmp_path, 16 * MIB, 65536
    namespace = root / "ns"
    rig = start_rig(
        namespace,
        num_chunks=ROWS,
        chunk_size_bytes=size,
        capacity_bytes=capacity,
        space_root=str(root),
        index_mode="shared",
    )
    assert rig.await_stats(space_counted=1, scan_complete=1)
    for turn in range(3):
        # To the other one these are the oldest.
        _store_all(rig, _keys(1_000_000 * turn, 64))
        first, jobs = 1_000_000 * turn + 1000, -1 if is_killed else 20
        other = Storer(namespace, root, capacity, first=first, size=size, jobs=jobs)
        with storing(other):
            if is_killed:
                other.await_evictions(100)
            else:
                other.finish()
    # What the others have left is not known yet.
    _store_all(rig, _keys(9_000_000, 256))
    assert await_that(lambda: rig.engine.stats()["used_bytes"] <= disk_bytes(root)[0] + capacity // 4)
    assert disk_bytes(root)[0] > capacity // 2


def test_chunks_of_unused_namespaces_give_back_their_directories_too(
    start_rig: StartRig, tmp_path: Path
) -> None:
    left = _start(start_rig, tmp_path / "left", 8 * MIB, space_root=str(tmp_path), index_mode="owner")
    _store_all(left, _keys(0, 200))
    left.engine.close()
    # All that was there is too much for it.
    rig = _start(start_rig, tmp_path / "ns", 3 * MIB, space_root=str(tmp_path))
    assert await_that(lambda: rig.engine.stats()["used_bytes"] <= 3 * MIB * 9 // 10)
    assert await_that(lambda: abs(rig.engine.stats()["used_bytes"] - disk_bytes(tmp_path)[0]) <= SLACK_BYTES)


def test_start_while_another_process_stands_still_serves_and_stores_later(
    start_rig: StartRig, storage: Path
) -> None:
    known, new = _keys(0, 2)
    before = _start(start_rig, storage, MIB)
    _store_all(before, [known])
    before.engine.close()
    with (storage / "kvfs.space").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rig = start_rig(storage, num_chunks=ROWS, chunk_size_bytes=CHUNK, capacity_bytes=MIB)
        assert rig.load([known], [0]).outcomes == [0]
        assert rig.store([new], [0]).outcomes == [errno.EAGAIN]
        assert rig.engine.stats()["capacity_sheds"] == 1
    assert rig.await_stats(space_counted=1)
    assert rig.engine.stats()["used_bytes"] > CHUNK
    _store_all(rig, [new])


def test_second_engine_on_the_root_shares_the_capacity(start_rig: StartRig, storage: Path) -> None:
    capacity = 3 * MIB
    rigs = [_start(start_rig, storage / name, capacity, space_root=str(storage)) for name in ("a", "b")]
    rng = random.Random(5)
    with RoomWatch(storage) as watch:
        for turn in range(12):
            _store_all(rng.choice(rigs), _keys(100 * turn, 32))
    assert watch.peak_bytes <= capacity + SLACK_BYTES
    assert sum(rig.engine.stats()["evicted_chunks"] for rig in rigs) > 100


def test_same_chunks_stored_again_count_once(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage, 40 * COST)
    keys = _keys(0, ROWS)
    for _ in range(20):
        assert rig.store(keys, list(range(ROWS))).outcomes == [0] * ROWS
    stats = rig.engine.stats()
    assert (stats["duplicate_stores"], stats["capacity_sheds"], stats["evicted_chunks"]) == (19 * ROWS, 0, 0)


def test_failed_stores_hold_no_room(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage, 40 * COST)
    key = rig.key(1)
    rig.path(key).mkdir(parents=True)
    for _ in range(100):
        assert rig.store([key, key], [0, ROWS]).outcomes == [errno.EISDIR, errno.EINVAL]
    assert rig.store(_keys(0, ROWS), list(range(ROWS))).outcomes == [0] * ROWS
    assert rig.engine.stats()["capacity_sheds"] == 0


def test_chunks_that_loads_remove_give_their_room_back(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage, 60 * COST)
    for turn in range(10):
        keys = _keys(100 * turn, ROWS)
        _store_all(rig, keys)
        for key in keys:
            # In as many blocks; of one cut shorter, only what is left can be given back.
            rig.path(key).write_bytes(bytes(CHUNK - 1))
        assert set(rig.load(keys, list(range(ROWS))).outcomes) == {errno.EBADMSG}
    assert rig.engine.stats()["evicted_chunks"] == 0


@pytest.mark.parametrize("capacity_bytes", [1, LEAST - 1], ids=str)
def test_capacity_for_less_than_four_chunks_is_refused(
    start_rig: StartRig, tmp_path: Path, capacity_bytes: int
) -> None:
    with pytest.raises(ValueError, match=rf"capacity_bytes must be at least {LEAST} .*got {capacity_bytes}"):
        start_rig(tmp_path / "ns", chunk_size_bytes=CHUNK, capacity_bytes=capacity_bytes)
    assert not (tmp_path / "ns").exists()
    start_rig(tmp_path / "ns", chunk_size_bytes=CHUNK, capacity_bytes=LEAST)


@pytest.mark.parametrize("name", ["capacity_bytes", "min_free_bytes"])
@pytest.mark.parametrize("value", ["1", 1.5, object()], ids=["text", "float", "object"])
def test_limit_that_is_no_integer_raises_type_error(
    io: IoBackend, tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(TypeError):
        io.Engine(str(tmp_path), small_buffer(), 1, 1, **{name: value})  # type: ignore[arg-type]  # the test


@pytest.mark.parametrize("name", ["capacity_bytes", "min_free_bytes"])
@pytest.mark.parametrize("value", [0, -1], ids=str)
def test_limit_below_one_raises_value_error(io: IoBackend, tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        io.Engine(str(tmp_path), small_buffer(), 1, 1, **{name: value})  # type: ignore[arg-type]  # of any limit


@pytest.mark.needs_root
def test_min_free_bytes_are_left_on_the_file_system(start_rig: StartRig, mount: Mount) -> None:
    directory = mount("tmpfs", options="size=12m")
    least = 5 * MIB
    rig = start_rig(
        directory / "ns",
        num_chunks=ROWS,
        chunk_size_bytes=CHUNK,
        min_free_bytes=least,
        space_root=str(directory),
    )
    with RoomWatch(directory) as watch:
        _store_all(rig, _keys(0, 1500))
        # Others take room, too.
        (directory / "other").write_bytes(bytes(2 * MIB))
        assert await_that(lambda: disk_bytes(directory)[0] < 7 * MIB)
        (directory / "other").unlink()
    assert watch.least_free_bytes >= least - 2 * MIB
    assert rig.engine.stats()["evicted_chunks"] > 1000
    with RoomWatch(directory) as watch:
        _store_all(rig, _keys(5000, 500))
    assert watch.least_free_bytes >= least - SLACK_BYTES
    assert rig.engine.stats()["free_bytes"] >= least


@pytest.mark.needs_root
def test_min_free_bytes_beside_a_small_capacity_never_stop_stores(start_rig: StartRig, mount: Mount) -> None:
    # Free room for some chunks and three quarters of one more: too little for a store, and that must be
    # reason enough to evict, although half a chunk would be left.
    directory = mount("tmpfs", options="size=4m")
    before = _start(start_rig, directory / "ns", 12 * COST, space_root=str(directory))
    free_bytes = before.engine.stats()["free_bytes"]
    before.engine.close()
    rig = _start(
        start_rig,
        directory / "ns",
        12 * COST,
        min_free_bytes=free_bytes - 6 * CHUNK - 3 * CHUNK // 4,
        space_root=str(directory),
    )
    _store_all(rig, _keys(0, 100))
    assert rig.engine.stats()["evicted_chunks"] > 80


@pytest.mark.needs_root
def test_first_start_with_a_capacity_on_a_disk_that_chunks_have_filled_makes_room(
    start_rig: StartRig, mount: Mount
) -> None:
    directory = mount("tmpfs", options="size=4m")
    before = start_rig(directory, num_chunks=1, chunk_size_bytes=CHUNK)
    keys = _keys(0, 400)
    assert set(before.store(keys, [0] * 400).outcomes) == {0, errno.ENOSPC}
    before.engine.close()
    # To the last byte; not even the engine's own small file fits.
    with (directory / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - always raised, to end the loop
    rig = _start(start_rig, directory, 3 * MIB)
    assert await_that(lambda: disk_bytes(directory)[0] <= 3 * MIB)
    assert until_admitted(lambda: rig.store(_keys(5000, ROWS), list(range(ROWS)))).outcomes == [0] * ROWS


@pytest.mark.needs_root
def test_start_with_a_capacity_on_a_read_only_disk_serves_what_is_there(
    start_rig: StartRig, mount: Mount
) -> None:
    directory = mount("tmpfs", options="size=4m")
    key = _keys(0, 1)[0]
    before = start_rig(directory, num_chunks=2, chunk_size_bytes=CHUNK)
    chunk = before.tier.fill(0, seed=1)
    before.store([key], [0])
    before.engine.close()
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
    rig = start_rig(directory, num_chunks=2, chunk_size_bytes=CHUNK, capacity_bytes=3 * MIB)
    assert rig.load([key], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert set(rig.store(_keys(1, 2), [0, 0]).outcomes) == {errno.EAGAIN}
    assert rig.engine.stats()["evicted_chunks"] == 0
    subprocess.run(["mount", "-o", "remount,rw", str(directory)], check=True, timeout=30)
    assert until_admitted(lambda: rig.store(_keys(1, 2), [0, 0])).outcomes == [0, 0]
