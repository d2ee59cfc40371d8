"""What an engine says of a key at once: each state of docs/lookup.md, as the owner and as one of several."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import EXPIRED, HIT, MISS, CompletionLike

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

DEADLINE_S = 30.0


def _await_completion(rig: Rig) -> CompletionLike:
    """Poll, and nothing else, until a job has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while not (completions := rig.engine.poll()):
        assert time.monotonic() < deadline
    (completion,) = completions
    return completion


def test_lookup_key_never_met_is_a_miss_to_the_owner_alone(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(5)]
    # Asking does not change it.
    assert rig.verdicts(keys * 2) == [unknown] * 10
    assert rig.engine.stats()["index_keys"] == 0


def test_lookup_key_that_was_stored_is_a_hit(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(8)]
    assert rig.store(keys[:4], range(4)).outcomes == [0] * 4
    assert rig.verdicts(keys) == [HIT] * 4 + [unknown] * 4
    assert rig.engine.stats()["index_keys"] == 4


def test_lookup_key_that_was_stored_by_somebody_else_before_is_a_hit(start_scanned: StartRig) -> None:
    rig = start_scanned()
    rig.place(rig.key(1))
    assert rig.store([rig.key(1)], [0]).bytes_moved == 0
    assert rig.engine.stats()["duplicate_stores"] == 1
    assert rig.engine.lookup(rig.key(1)) == HIT


def test_lookup_key_that_a_probe_found_is_a_hit(start_scanned: StartRig) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(3)]
    rig.place(keys[0])
    rig.place(keys[1])
    rig.ask(keys[:2])
    assert rig.verdicts(keys[:2]) == [HIT, HIT]


def test_lookup_key_that_the_scan_found_is_a_hit(
    start_rig: StartRig, storage: Path, index_mode: str, unknown: int
) -> None:
    first = start_rig(storage)
    keys = [first.key(number) for number in range(4)]
    first.store(keys[:3], range(3))
    first.engine.close()
    rig = start_rig(storage, index_mode=index_mode)
    assert rig.await_stats(scan_complete=1, index_keys=3)
    assert rig.verdicts(keys) == [HIT, HIT, HIT, unknown]


@pytest.mark.parametrize("there", ["nothing", "short", "long", "directory", "link", "fifo"])
def test_lookup_key_of_which_a_probe_found_no_chunk_is_a_miss_while_that_is_believed(
    start_scanned: StartRig, there: str
) -> None:
    rig = start_scanned()
    key = rig.key(1)
    path = rig.path(key)
    path.parent.mkdir(parents=True)
    match there:
        case "short":
            path.write_bytes(bytes(rig.tier.chunk_size_bytes - 1))
        case "long":
            path.write_bytes(bytes(rig.tier.chunk_size_bytes + 1))
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(rig.place(rig.key(2)))
        case "fifo":
            os.mkfifo(path)
    rig.ask([key])
    assert rig.verdicts([key] * 3) == [MISS] * 3
    assert rig.engine.stats()["index_keys"] == 0


def test_lookup_absence_that_is_over_is_expired_but_to_the_owner(
    start_scanned: StartRig, index_mode: str
) -> None:
    rig = start_scanned(negative_ttl_s=0)
    rig.ask([rig.key(1)])
    assert rig.verdicts([rig.key(1)] * 2) == [MISS if index_mode == "owner" else EXPIRED] * 2


def test_lookup_question_changes_nothing_before_its_answer(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(3)]
    rig.place(keys[0])
    for key in keys:
        rig.engine.probe(key)
        assert rig.engine.lookup(key) == unknown
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.verdicts(keys) == [HIT, MISS, MISS]


@pytest.mark.parametrize(
    ("there", "row", "outcome"),
    [
        pytest.param("nothing", 1, errno.ENOENT, id="removed"),
        pytest.param("short", 1, errno.EBADMSG, id="cut"),
        pytest.param("long", 1, errno.EBADMSG, id="grown"),
        pytest.param("directory", 1, errno.EISDIR, id="directory"),
        pytest.param("link", 1, errno.ELOOP, id="link"),
        pytest.param("chunk", 8, errno.EINVAL, id="row-outside-the-buffer"),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["of-a-hit", "of-an-unknown-key"])
def test_lookup_key_whose_load_failed_is_no_hit_whatever_the_reason(
    start_scanned: StartRig, there: str, row: int, outcome: int, known: bool, unknown: int
) -> None:
    rig = start_scanned(num_chunks=8)
    key = rig.key(1)
    if known:
        rig.store([key], [0])
        assert rig.engine.lookup(key) == HIT
        rig.path(key).unlink()
    path = rig.path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    match there:
        case "short":
            path.write_bytes(b"short")
        case "long":
            path.write_bytes(bytes(rig.tier.chunk_size_bytes + 1))
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(rig.place(rig.key(2)))
        case "chunk":
            rig.place(key)
    rig.submit("load", [key], [row])
    assert _await_completion(rig).outcomes == [outcome]
    assert rig.verdicts([key] * 2) == [unknown] * 2
    assert rig.engine.lookup_prefix(key, 36) == 0
    assert rig.engine.stats()["index_keys"] == 0


def test_lookup_key_whose_load_failed_is_a_hit_again_after_a_store(start_scanned: StartRig) -> None:
    rig = start_scanned()
    key = rig.key(1)
    for seed in range(3):
        assert rig.load([key], [1]).outcomes == [errno.ENOENT]
        chunk = rig.tier.fill(0, seed=seed)
        assert rig.store([key], [0]).outcomes == [0]
        assert rig.engine.lookup(key) == HIT
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
        # A load that went well leaves it as it is.
        assert rig.engine.lookup(key) == HIT
        rig.path(key).unlink()


@pytest.mark.parametrize("present", [True, False])
def test_lookup_key_whose_load_failed_is_what_the_next_probe_says(
    start_scanned: StartRig, present: bool
) -> None:
    rig = start_scanned()
    key = rig.key(1)
    assert rig.load([key], [1]).outcomes == [errno.ENOENT]
    if present:
        rig.place(key)
    rig.ask([key])
    assert rig.engine.lookup(key) == (HIT if present else MISS)


def test_lookup_of_a_job_with_good_and_bad_keys_tells_them_apart(
    start_scanned: StartRig, unknown: int
) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(6)]
    rig.store(keys, [0] * 6)
    for key in keys[1::2]:
        rig.path(key).unlink()
    assert rig.load(keys, range(6)).outcomes == [0, errno.ENOENT] * 3
    assert rig.verdicts(keys) == [HIT, unknown] * 3
    assert rig.engine.stats()["index_keys"] == 3


def test_lookup_of_a_store_in_flight_is_no_hit(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned(num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    keys = [rig.key(number) for number in range(100)]
    rig.submit("store", keys, [0] * 100)
    # 100 MiB cannot be on disk yet.
    assert rig.engine.lookup(keys[-1]) == unknown
    assert rig.engine.drain(60)
    assert rig.verdicts(keys) == [HIT] * 100


def test_lookup_knows_of_every_store_and_load_that_can_be_polled(
    start_scanned: StartRig, unknown: int
) -> None:
    rig = start_scanned()
    for number in range(100):
        key = rig.key(number)
        rig.submit("store", [key], [0])
        assert _await_completion(rig).outcomes == [0]
        assert rig.engine.lookup(key) == HIT
        rig.path(key).unlink()
        rig.submit("load", [key], [1])
        assert _await_completion(rig).outcomes == [errno.ENOENT]
        assert rig.engine.lookup(key) == unknown


def test_lookup_of_a_store_that_failed_is_as_before(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned(num_chunks=1, max_queued_store_bytes=1)
    blocked, outside, absent = (rig.key(number) for number in range(3))
    rig.path(blocked).mkdir(parents=True)
    rig.ask([absent])
    assert rig.store([blocked], [0]).outcomes == [errno.EISDIR]
    assert rig.store([outside], [1]).outcomes == [errno.EINVAL]
    assert rig.store([absent], [1]).outcomes == [errno.EINVAL]
    assert rig.verdicts([blocked, outside, absent]) == [unknown, unknown, MISS]
    # Shed: the queue has room for one.
    shed = rig.store([rig.key(number) for number in range(10, 20)], [0] * 10)
    assert rig.verdicts([rig.key(number) for number in range(10, 20)]) == [
        unknown if outcome else HIT for outcome in shed.outcomes
    ]


def test_lookup_of_loads_that_close_cancelled_is_no_hit(start_scanned: StartRig) -> None:
    rig = start_scanned(num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    key = rig.key(1)
    rig.store([key], [0])
    job_id = rig.submit("load", [key] * 2000, [0] * 2000)
    rig.engine.close()
    assert errno.ECANCELED in rig.finish()[job_id].outcomes
    assert rig.engine.lookup(key) != HIT
