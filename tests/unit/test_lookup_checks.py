"""What the owner calls a miss is checked behind its back, since some who store take no lock."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

DEADLINE_S = 30.0
# So many checks wait; more are dropped.
WAITING = 64


@pytest.fixture
def start_owner(start_rig: StartRig, storage: Path) -> Callable[..., Rig]:
    """Return a function that starts the owner of the namespace, with its scan done."""

    def start(**options: object) -> Rig:
        rig = start_rig(storage, index_mode="owner", **options)
        assert rig.await_stats(scan_complete=1, owner=1)
        return rig

    return start


def _check(rig: Rig) -> int:
    """Have the checks that wait answered; return whether the engine still is the owner."""
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    return rig.engine.stats()["owner"]


def test_chunk_of_a_writer_without_a_lock_makes_the_owner_share(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    keys = [rig.key(number) for number in range(6)]
    for key in keys[:3]:
        rig.place(key)
    # The first prompt is missed.
    assert rig.verdicts(keys) == [MISS] * 6
    assert rig.engine.stats()["owner"] == 1
    assert _check(rig) == 0
    assert rig.verdicts(keys) == [RETRY] * 6
    rig.ask(keys)
    assert rig.verdicts(keys) == [HIT] * 3 + [MISS] * 3
    # For good.
    for key in keys[:3]:
        rig.path(key).unlink()
    rig.load(keys[:3], range(3))
    assert _check(rig) == 0
    assert rig.verdicts(keys[:3]) == [RETRY] * 3


@pytest.mark.parametrize("ttl_s", [0.0, 3600.0])
def test_absence_is_checked_too(start_owner: Callable[..., Rig], ttl_s: float) -> None:
    rig = start_owner(negative_ttl_s=ttl_s)
    key = rig.key(1)
    rig.ask([key])
    rig.place(key)
    assert rig.engine.lookup(key) == MISS
    assert _check(rig) == 0
    # That it is wrong the check does not tell; whoever asks is told.
    assert rig.engine.lookup(key) == (MISS if ttl_s else EXPIRED)
    rig.ask([key])
    assert rig.engine.lookup(key) == HIT


def test_miss_that_was_right_leaves_the_owner_what_it_is(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    keys = [rig.key(number) for number in range(40)]
    rig.path(keys[0]).mkdir(parents=True)
    rig.place(keys[1]).write_bytes(b"short")
    for _ in range(5):
        assert rig.verdicts(keys) == [MISS] * 40
        assert _check(rig) == 1
    assert rig.engine.stats()["checks"] >= 40
    assert list(rig.engine.poll()) == []


def test_store_of_this_engine_explains_a_chunk(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    keys = [rig.key(number) for number in range(20)]
    assert rig.verdicts(keys) == [MISS] * 20
    rig.store(keys, [0] * 20)
    assert _check(rig) == 1
    assert rig.verdicts(keys) == [HIT] * 20


def test_store_under_way_explains_a_chunk(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner(num_chunks=1, chunk_size_bytes=512, threads=(4, 4))
    for round_number in range(60):
        keys = [rig.key(40 * round_number + number) for number in range(40)]
        assert rig.verdicts(keys) == [MISS] * 40
        rig.submit("store", keys, [0] * 40)
        # Whatever they find of these stores: a file that is there before its op has ended is the one to see.
        rig.engine.submit_probes()
        rig.finish()
        assert rig.engine.stats()["owner"] == 1


def test_key_whose_load_failed_is_not_checked(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner(num_chunks=1)
    key = rig.key(1)
    rig.store([key], [0])
    assert rig.load([key], [1]).outcomes == [errno.EINVAL]
    assert rig.verdicts([key] * 3) == [MISS] * 3
    assert _check(rig) == 1
    assert rig.engine.stats()["checks"] == 0


def test_load_that_fails_before_the_check_explains_a_chunk(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner(num_chunks=1)
    key = rig.key(1)
    assert rig.engine.lookup(key) == MISS
    rig.store([key], [0])
    assert rig.load([key], [1]).outcomes == [errno.EINVAL]
    # The file is there, of this engine's own making, and its key is no hit.
    assert rig.path(key).exists()
    assert _check(rig) == 1
    assert rig.engine.lookup(key) == MISS


def test_no_more_than_64_checks_wait(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    keys = [rig.key(number) for number in range(3 * WAITING)]
    rig.place(keys[2 * WAITING])
    assert rig.verdicts(keys) == [MISS] * len(keys)
    assert rig.engine.stats()["checks"] == WAITING
    # That one was dropped, until somebody asks again.
    assert _check(rig) == 1
    assert rig.engine.lookup(keys[2 * WAITING]) == MISS
    assert rig.engine.stats()["checks"] == WAITING + 1
    assert _check(rig) == 0


def test_checks_go_with_the_64th_question(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    rig.place(rig.key(0))
    assert rig.engine.lookup(rig.key(0)) == MISS
    for number in range(100, 100 + WAITING):
        rig.engine.probe(rig.key(number))
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.stats()["owner"] == 0


def test_engine_that_shares_checks_nothing(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=3600.0)
    assert rig.await_stats(scan_complete=1)
    keys = [rig.key(number) for number in range(10)]
    rig.ask(keys[:5])
    assert rig.verdicts(keys) == [MISS] * 5 + [RETRY] * 5
    assert _check(rig) == 0
    stats = rig.engine.stats()
    assert (stats["probes"], stats["checks"]) == (5, 0)


def test_checks_that_wait_when_the_engine_closes_are_dropped(start_owner: Callable[..., Rig]) -> None:
    rig = start_owner()
    rig.place(rig.key(0))
    assert rig.engine.lookup(rig.key(0)) == MISS
    rig.engine.close()
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.lookup(rig.key(0)) != HIT
