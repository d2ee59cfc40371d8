"""What is evicted, and in which order; what is not; and who learns of it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that

from kvfs.jobs import HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

CHUNK = 16384
COST = CHUNK + 4096
ROWS = 16
CAPACITY = 100 * COST


def _keys(first: int, count: int) -> list[bytes]:
    """Return keys in directories of their own."""
    return [
        (number * 0x9E3779B1 % 2**32).to_bytes(4, "big") + bytes(32) for number in range(first, first + count)
    ]


def _start(start_rig: StartRig, base: Path, **options: object) -> Rig:
    options = {"capacity_bytes": CAPACITY, **options}
    rig = start_rig(base, num_chunks=2 * ROWS, chunk_size_bytes=CHUNK, **options)
    for row in range(ROWS):
        rig.tier.fill(row, seed=row)
    assert rig.await_stats(space_counted=1, scan_complete=1)
    return rig


def _store_job(rig: Rig, keys: list[bytes]) -> None:
    assert await_that(lambda: not any(rig.store(keys, list(range(len(keys)))).outcomes))


def _store(rig: Rig, keys: list[bytes]) -> None:
    """Store keys as one job after another, each whole."""
    for at in range(0, len(keys), ROWS):
        _store_job(rig, keys[at : at + ROWS])


def _fill_until_evicted(rig: Rig, first: int) -> set[bytes]:
    """Store chunks one by one until some are evicted and no more will be; return the evicted keys."""
    evicted: set[bytes] = set()
    number = first

    def some_are() -> bool:
        nonlocal number
        assert rig.store(_keys(number, 1), [0]).outcomes[0] in (0, errno.EAGAIN)
        number += 1
        evicted.update(rig.engine.take_evicted())
        return bool(evicted)

    assert await_that(some_are)
    assert await_that(lambda: _is_quiet(rig))
    evicted.update(rig.engine.take_evicted())
    return evicted


def _is_quiet(rig: Rig) -> bool:
    before = rig.engine.stats()
    time.sleep(0.05)
    after = rig.engine.stats()
    return before["evicted_chunks"] == after["evicted_chunks"] and after["used_bytes"] <= CAPACITY * 95 // 100


@pytest.mark.parametrize("min_free_bytes", [None, COST], ids=["", "some-kept-free"])
@pytest.mark.parametrize("capacity_chunks", [4.8, 6, 7.5, 12, 19])
def test_capacity_for_few_chunks_takes_in_new_ones_for_ever(
    start_rig: StartRig, storage: Path, capacity_chunks: float, min_free_bytes: int | None
) -> None:
    capacity_bytes = int(capacity_chunks * COST)
    rig = _start(start_rig, storage, capacity_bytes=capacity_bytes, min_free_bytes=min_free_bytes)
    for key in _keys(0, 40):
        _store_job(rig, [key])
        assert rig.engine.stats()["used_bytes"] <= capacity_bytes


def test_what_was_used_longest_ago_goes_first(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    old, loaded, touched = (_keys(100 * number, ROWS) for number in range(3))
    for keys in (loaded, touched, old):
        _store(rig, keys)
    rig.engine.touch(b"".join(touched), 36)
    assert rig.load(loaded, list(range(ROWS, 2 * ROWS))).outcomes == [0] * ROWS
    evicted: set[bytes] = set()
    # The first two evictions, of at least five chunks each.
    evicted |= _fill_until_evicted(rig, 1000)
    evicted |= _fill_until_evicted(rig, 2000)
    assert len(evicted & set(old)) >= 5
    if len(evicted) < ROWS:
        assert evicted <= set(old)
    assert not evicted & {*touched, *loaded} or set(old) <= evicted


def test_the_end_of_a_prefix_goes_before_its_beginning(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    prefix = _keys(0, ROWS)
    _store(rig, prefix)
    evicted = _fill_until_evicted(rig, 1000)
    gone = [key in evicted for key in prefix]
    assert any(gone)
    # Each key that is gone has taken all that come after it along.
    assert gone == sorted(gone)
    assert not gone[0] or all(gone)


@pytest.mark.parametrize("use", ["load", "touch"])
def test_used_together_the_first_keys_count_as_used_last(
    start_rig: StartRig, storage: Path, use: str
) -> None:
    rig = _start(start_rig, storage)
    prefix = _keys(0, ROWS)
    # In the other order.
    for key in reversed(prefix):
        _store(rig, [key])
    for key in prefix:
        _store(rig, [key])
    if use == "load":
        rig.load(prefix, list(range(ROWS, 2 * ROWS)))
    else:
        rig.engine.touch(b"".join(prefix), 36)
    evicted = _fill_until_evicted(rig, 1000)
    gone = [key in evicted for key in prefix]
    assert any(gone)
    assert gone == sorted(gone)


def test_chunks_of_earlier_lives_go_first_and_by_age(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=CHUNK)
    keys = _keys(0, 60)
    assert rig.store(keys, [0] * 60).outcomes == [0] * 60
    for number, key in enumerate(keys):
        os.utime(rig.path(key), (1_000_000 + number, 1_000_000 + number))
    rig.engine.close()
    # Not from what the engine remembers of their use.
    (storage / "kvfs.index").unlink(missing_ok=True)
    rig = _start(start_rig, storage)
    evicted = _fill_until_evicted(rig, 1000)
    count = len(evicted)
    assert 0 < count < 40
    assert evicted == set(keys[:count])


@pytest.mark.parametrize("mode", ["owner", "shared"])
def test_what_is_evicted_is_a_miss_at_once_and_reported_once(
    start_rig: StartRig, storage: Path, mode: str
) -> None:
    rig = _start(start_rig, storage, index_mode=mode)
    keys = _keys(0, 40)
    _store(rig, keys)
    evicted = _fill_until_evicted(rig, 1000)
    unknown = MISS if mode == "owner" else RETRY
    assert len(evicted) == rig.engine.stats()["evicted_chunks"]
    for key in evicted:
        assert rig.engine.lookup(key) == unknown
        assert not rig.path(key).exists()
    rig.ask(sorted(evicted))
    assert set(rig.verdicts(sorted(evicted))) == {MISS}
    left = [key for key in keys if key not in evicted]
    assert set(rig.verdicts(left)) == {HIT}
    assert rig.engine.take_evicted() == []
    # They can come back.
    again = sorted(evicted)[:3]
    _store(rig, again)
    assert rig.verdicts(again) == [HIT] * 3


def test_directories_that_are_empty_then_go_but_for_the_first_level(
    start_rig: StartRig, storage: Path
) -> None:
    rig = _start(start_rig, storage)
    _store(rig, _keys(0, 90))
    evicted = _fill_until_evicted(rig, 1000)
    assert await_that(lambda: not any(rig.path(key).parent.exists() for key in evicted))
    assert all(rig.path(key).parent.parent.is_dir() for key in evicted)


def test_chunks_that_are_being_loaded_stay_and_come_whole(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage, max_inflight_read_bytes=1, threads=(1, 1))
    loaded = _keys(0, ROWS)
    _store(rig, loaded)
    rounds = 60
    jobs = [rig.submit("load", loaded, list(range(ROWS, 2 * ROWS))) for _ in range(rounds)]
    # While those wait: more than everything, several times.
    stores = [rig.submit("store", _keys(1000 + at, ROWS), list(range(ROWS))) for at in range(0, 800, ROWS)]
    done = rig.finish()
    assert [done[job].outcomes for job in jobs] == [[0] * ROWS] * rounds
    assert [rig.tier.row(ROWS + row) for row in range(ROWS)] == [rig.tier.row(row) for row in range(ROWS)]
    assert {code for job in stores for code in done[job].outcomes} <= {0, errno.EAGAIN}
    assert rig.engine.stats()["pinned_chunks"] == 0


def test_loads_beside_evictions_return_the_right_bytes_or_nothing(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    rounds, hits = 0, 0

    def one_round() -> bool:
        nonlocal rounds, hits
        keys = _keys(ROWS * rounds, ROWS)
        earlier = _keys(ROWS * max(0, rounds - 5), ROWS)
        store = rig.submit("store", keys, list(range(ROWS)))
        load = rig.submit("load", earlier, list(range(ROWS, 2 * ROWS)))
        done = rig.finish()
        assert set(done[store].outcomes) <= {0, errno.EAGAIN}
        for row, outcome in enumerate(done[load].outcomes):
            assert outcome in (0, errno.ENOENT)
            hits += outcome == 0
            assert outcome or rig.tier.row(ROWS + row) == rig.tier.row(row)
        rounds += 1
        return rig.engine.stats()["evicted_chunks"] > 300

    assert await_that(one_round)
    assert hits > 100


def test_victim_that_cannot_be_removed_is_skipped_and_others_go(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    keys = _keys(0, ROWS)
    _store(rig, keys)
    stuck = keys[-1]
    rig.path(stuck).unlink()
    # Not even root unlinks a directory.
    rig.path(stuck).mkdir()
    evicted = _fill_until_evicted(rig, 1000)
    assert evicted
    assert stuck not in evicted
    assert rig.engine.stats()["evict_failures"] == 1
    assert rig.path(stuck).is_dir()
    # It is not tried again and again.
    assert rig.engine.lookup(stuck) == MISS
    evicted = _fill_until_evicted(rig, 2000)
    assert evicted
    assert rig.engine.stats()["evict_failures"] == 1


def test_link_in_a_victims_place_is_left_and_not_followed(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage / "ns")
    keys = _keys(0, ROWS)
    _store(rig, keys)
    precious = storage / "precious"
    precious.mkdir()
    path = rig.path(keys[-1])
    (precious / path.name).write_bytes(b"not ours")
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(precious)
    _fill_until_evicted(rig, 1000)
    assert (precious / path.name).read_bytes() == b"not ours"
    assert rig.engine.stats()["evict_failures"] == 1


def test_chunks_that_others_removed_are_no_failures(start_rig: StartRig, storage: Path) -> None:
    rig = _start(start_rig, storage)
    keys = _keys(0, ROWS)
    _store(rig, keys)
    for key in keys[8:]:
        rig.path(key).unlink()
    _fill_until_evicted(rig, 1000)
    assert rig.engine.stats()["evict_failures"] == 0


def _fill_namespace(start_rig: StartRig, base: Path, first: int, written_at: int) -> list[Path]:
    """Store 25 chunks and close; return their files, each of which is said to be a second newer."""
    rig = start_rig(base, num_chunks=1, chunk_size_bytes=CHUNK)
    keys = _keys(first, 25)
    assert rig.store(keys, [0] * 25).outcomes == [0] * 25
    rig.engine.close()
    paths = [rig.path(key) for key in keys]
    for number, path in enumerate(paths):
        os.utime(path, (written_at + number, written_at + number))
    return paths


def test_namespaces_that_nobody_uses_go_first_and_the_oldest_chunks_of_them(
    start_rig: StartRig, storage: Path
) -> None:
    newer = _fill_namespace(start_rig, storage / "deep" / "newer", 0, 2_000_000)
    older = _fill_namespace(start_rig, storage / "older", 100, 1_000_000)
    rig = _start(start_rig, storage / "own", space_root=str(storage))
    own = _keys(500, 16)
    _store(rig, own)
    evicted = _fill_until_evicted_elsewhere(rig, [*older, *newer])
    assert evicted == [*older, *newer][: len(evicted)]
    assert not evicted[-1].parent.exists()
    assert set(rig.verdicts(own)) == {HIT}
    # Of one's own none were evicted, and others' keys are nobody's news.
    assert rig.engine.take_evicted() == []
    assert rig.engine.stats()["evicted_chunks"] == len(evicted)


def _fill_until_evicted_elsewhere(rig: Rig, paths: list[Path]) -> list[Path]:
    number = 1000

    def some_are() -> bool:
        nonlocal number
        rig.store(_keys(number, 1), [0])
        number += 1
        return not all(path.exists() for path in paths)

    assert await_that(some_are)
    assert await_that(lambda: _is_quiet(rig))
    return [path for path in paths if not path.exists()]


@pytest.mark.parametrize("kind", ["live", "stock"])
def test_namespaces_of_others_are_left_alone(start_rig: StartRig, storage: Path, kind: str) -> None:
    others = _fill_namespace(start_rig, storage / "other", 0, 1_000_000)
    if kind == "live":
        start_rig(storage / "other", num_chunks=1, chunk_size_bytes=CHUNK, index_mode="shared")
    else:
        # A stock vLLM has no such file, in use or not.
        (storage / "other" / "kvfs.lock").unlink()
    strangers = storage / "mine" / "abc" / "de_g0" / f"{'abcde0' * 4}.bin"
    strangers.parent.mkdir(parents=True)
    strangers.write_bytes(bytes(CHUNK))
    rig = _start(start_rig, storage / "own", space_root=str(storage))
    evicted = _fill_until_evicted(rig, 1000)
    assert evicted
    assert all(path.exists() for path in [*others, strangers])


def test_files_that_are_no_chunks_are_left_alone(start_rig: StartRig, storage: Path) -> None:
    unused = _fill_namespace(start_rig, storage / "unused", 0, 1_000_000)
    bystanders = [
        unused[0].with_name("notes.txt"),
        unused[1].parent.parent / "file.bin",
        storage / "unused" / "x",
    ]
    for path in bystanders:
        path.write_bytes(b"not ours")
    rig = _start(start_rig, storage / "own", space_root=str(storage))
    _store(rig, _keys(1000, 300))
    assert not any(path.exists() for path in unused)
    assert [path.read_bytes() for path in bystanders] == [b"not ours"] * 3
