"""What is promised away is what lies there, whoever has made it and whoever removes it."""

from __future__ import annotations

import errno
import fcntl
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash_check import physical
from polling import await_that

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

CHUNK = 16384
COST = CHUNK + 4096
CAPACITY = 100 * COST
ROWS = 16


def _keys(first: int, count: int, directories: int) -> list[bytes]:
    """Return keys in so many directories."""
    return [
        (number % directories * 0x9E3779B1 % 2**32 & 0xFFFFF000).to_bytes(4, "big")
        + number.to_bytes(28, "big")
        + bytes(4)
        for number in range(first, first + count)
    ]


def _start(start_rig: StartRig, base: Path, **options: object) -> Rig:
    options = {"capacity_bytes": CAPACITY, "index_mode": "shared", **options}
    rig = start_rig(base, num_chunks=ROWS, chunk_size_bytes=CHUNK, **options)
    assert rig.await_stats(space_counted=1, scan_complete=1)
    return rig


def _store(rig: Rig, keys: list[bytes]) -> None:
    def is_stored() -> bool:
        outcomes = rig.store(keys, list(range(len(keys)))).outcomes
        assert set(outcomes) <= {0, errno.EAGAIN}
        return not any(outcomes)

    assert await_that(is_stored)


def _agrees(rig: Rig, root: Path, engines: int) -> bool:
    """Tell whether no less is promised than there is, and no more than that and each engine's lease.

    Directories of the first level count only if they were there at the start.
    """
    try:
        found = physical(root)
    except FileNotFoundError:
        # It is still evicting.
        return False
    more = rig.engine.stats()["used_bytes"] - found.bound_bytes - found.promised_bytes
    return 0 <= more <= engines * max(COST, CAPACITY // 256) + found.slack_bytes


@pytest.mark.parametrize("directories", [4, 200], ids=["shared-directories", "one-each"])
def test_each_may_evict_what_others_have_stored(start_rig: StartRig, storage: Path, directories: int) -> None:
    # Each eviction of another's chunk lost 4 KiB where its directory stayed: after 30 minutes, nearly all.
    sides = [_start(start_rig, storage) for _ in range(2)]
    for turn in range(60):
        _store(sides[turn % 2], _keys(ROWS * turn, ROWS, directories))
        if turn % 10 == 0:
            # What it has learnt of is the oldest to it, and goes first.
            sides.append(_start(start_rig, storage))
            sides.pop(0).engine.close()
    assert sum(rig.engine.stats()["evicted_chunks"] for rig in sides) > 0
    assert await_that(lambda: all(_agrees(rig, storage, 2) for rig in sides)), (
        [rig.engine.stats() for rig in sides],
        physical(storage),
    )


def test_room_that_the_dead_have_left_promised_is_counted_again(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    _store(rig, _keys(0, ROWS, 200))
    slot_of_the_dead = 24 + 8 * 700
    with (storage / "kvfs.space").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(slot_of_the_dead)
        file.write(struct.pack("=q", CAPACITY))

    def is_met() -> bool:
        return (storage / "kvfs.space").read_bytes()[slot_of_the_dead:][:8] == bytes(8)

    assert await_that(is_met)
    assert await_that(lambda: _agrees(rig, storage, 1)), (rig.engine.stats(), physical(storage))
    assert rig.engine.stats()["evicted_chunks"] == 0


def test_directories_left_empty_by_who_was_killed_are_removed_and_given_back(
    start_rig: StartRig, storage: Path
) -> None:
    # With one that lives, nothing is counted anew.
    living = _start(start_rig, storage)
    _store(living, _keys(0, ROWS, 1 << 20))
    for path in storage.rglob("*.bin"):
        path.unlink()
    leaves = list(storage.glob("???/*"))
    assert len(leaves) == ROWS
    before = living.engine.stats()["used_bytes"]
    _start(start_rig, storage)
    assert await_that(lambda: not any(path.exists() for path in leaves))
    # Of what was removed by hand nobody has given back the files.
    left = before - ROWS * 4096
    assert await_that(lambda: left <= living.engine.stats()["used_bytes"] <= left + COST)


def test_temporaries_of_the_dead_are_removed_and_given_back_while_another_lives(
    start_rig: StartRig, storage: Path
) -> None:
    living = _start(start_rig, storage)
    for turn in range(2):
        _store(living, _keys(ROWS * turn, ROWS, 200))
    assert await_that(lambda: _agrees(living, storage, 1))
    before = living.engine.stats()["used_bytes"]
    path = living.path(_keys(0, 1, 200)[0])
    writer, pid = 0x123456789ABCDEF0, 1
    left = [path.with_name(f"{path.name}_kvfs{writer:016x}{pid:08x}{count:08x}.tmp") for count in range(8)]
    for temporary in left:
        temporary.write_bytes(bytes(CHUNK))
    # Those that nobody has reserved room for: that they are given back shows in what was there before.
    second = _start(start_rig, storage)
    assert not any(temporary.exists() for temporary in left)
    assert second.engine.stats()["reclaimed_temporaries"] == len(left)
    wanted = before - len(left) * CHUNK
    # The second may keep a lease of what it has given back.
    assert await_that(lambda: wanted <= living.engine.stats()["used_bytes"] <= wanted + COST)


def test_directories_that_are_empty_stay_where_nothing_is_limited(start_rig: StartRig, storage: Path) -> None:
    (storage / "abc" / "de_g0").mkdir(parents=True)
    rig = start_rig(storage)
    assert rig.await_stats(scan_complete=1)
    assert (storage / "abc" / "de_g0").is_dir()


@pytest.mark.parametrize("size", [1, 4096, 4097, CHUNK - 1], ids=lambda size: f"{size}-bytes")
def test_wrong_file_that_a_store_replaces_gives_its_room_back(
    start_rig: StartRig, storage: Path, size: int
) -> None:
    (key,) = _keys(7, 1, 1 << 20)
    rig = start_rig(storage)
    path = rig.path(key)
    rig.engine.close()
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    rig = _start(start_rig, storage)
    assert rig.engine.stats()["used_bytes"] == sum(
        (physical(storage).total_bytes, physical(storage).promised_bytes)
    )
    _store(rig, [key])
    assert rig.engine.stats()["healed_files"] == 1
    assert await_that(lambda: _agrees(rig, storage, 1)), (rig.engine.stats(), physical(storage))


def test_store_that_fails_after_making_its_directory_has_paid_for_it(
    start_rig: StartRig, storage: Path
) -> None:
    # Where files have a name from the start, the temporary's is too long; without, this is as any other.
    keys = [bytes([number]) * 113 + bytes(4) for number in range(ROWS)]
    rig = _start(start_rig, storage)
    outcomes = rig.store(keys, list(range(ROWS))).outcomes
    assert set(outcomes) <= {0, errno.ENAMETOOLONG}
    assert len(list(storage.glob("???/*"))) == ROWS
    assert await_that(lambda: _agrees(rig, storage, 1)), (rig.engine.stats(), physical(storage))
