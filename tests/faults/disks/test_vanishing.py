"""Files that vanish or change under an engine, on each file system: a miss for their keys, for no other."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuse_mount import FuseMount
from polling import await_that

from kvfs.jobs import HIT, CompletionLike

if TYPE_CHECKING:
    from rig import Rig

    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

SIZE_BYTES = 65536


def _stored(rig: Rig, count: int) -> tuple[list[bytes], list[bytes]]:
    """Store chunks and return their keys and contents."""
    keys = [rig.key(number) for number in range(count)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(count)]
    assert rig.store(keys, range(count)).outcomes == [0] * count
    assert rig.verdicts(keys) == [HIT] * count
    return keys, chunks


def test_hit_deleted_then_loaded_is_a_miss_for_that_key_alone(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=6, chunk_size_bytes=SIZE_BYTES)
    keys, chunks = _stored(rig, 3)
    rig.path(keys[1]).unlink()
    # From memory it is there; the load finds out.
    assert rig.verdicts(keys) == [HIT] * 3
    completion = rig.load(keys, [3, 4, 5])
    assert completion.outcomes == [0, errno.ENOENT, 0]
    assert completion.bytes_moved == 2 * SIZE_BYTES
    assert (rig.tier.row(3), rig.tier.row(5)) == (chunks[0], chunks[2])
    first, gone, last = rig.verdicts(keys)
    assert (first, last) == (HIT, HIT)
    assert gone != HIT
    assert rig.store(keys, range(3)).outcomes == [0] * 3
    assert rig.verdicts(keys) == [HIT] * 3


def test_directories_deleted_are_made_again_by_the_next_store(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place / "namespace", num_chunks=6, chunk_size_bytes=SIZE_BYTES)
    keys, chunks = _stored(rig, 3)
    shutil.rmtree(place / "namespace")
    assert rig.load(keys, [3, 4, 5]).outcomes == [errno.ENOENT] * 3
    assert HIT not in rig.verdicts(keys)
    assert rig.store(keys, range(3)).outcomes == [0] * 3
    assert rig.load(keys, [3, 4, 5]).outcomes == [0] * 3
    assert [rig.tier.row(row) for row in (3, 4, 5)] == chunks


def _begin_load(rig: Rig, fuse: FuseMount, key: bytes, row: int) -> int:
    """Start a load that has opened its file and waits for the first bytes."""
    fuse.rule("hold", "read", times=1)
    job_id = rig.submit("load", [key], [row])
    assert fuse.await_held(1, "read")
    return job_id


def test_file_deleted_while_it_is_read_still_loads_whole(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    (key,), (chunk,) = _stored(rig, 1)
    job_id = _begin_load(rig, fuse, key, 1)
    rig.path(key).unlink()
    fuse.clear()
    assert rig.finish()[job_id].outcomes == [0]
    assert rig.tier.row(1) == chunk


def test_file_cut_while_it_is_read_is_a_failed_load_and_removed(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    (key,), _ = _stored(rig, 1)
    job_id = _begin_load(rig, fuse, key, 1)
    os.truncate(fuse.shown(rig.path(key)), SIZE_BYTES // 2)
    fuse.clear()
    assert rig.finish()[job_id].outcomes == [errno.EBADMSG]
    assert not rig.path(key).exists()
    assert rig.engine.stats()["removed_files"] == 1


def test_file_cut_and_replaced_while_it_is_read_leaves_the_new_one(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    (key,), (chunk,) = _stored(rig, 1)
    job_id = _begin_load(rig, fuse, key, 1)
    shown = fuse.shown(rig.path(key))
    os.truncate(shown, SIZE_BYTES // 2)
    fresh = shown.with_name("fresh")
    fresh.write_bytes(chunk)
    fresh.rename(shown)
    fuse.clear()
    assert rig.finish()[job_id].outcomes == [errno.EBADMSG]
    assert shown.read_bytes() == chunk
    assert rig.engine.stats()["removed_files"] == 0


def test_late_answer_of_an_old_look_does_not_undo_a_failed_load(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(
        fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES, index_mode="shared", negative_ttl_s=3600.0
    )
    assert rig.await_stats(scan_complete=1)
    key = rig.key(1)
    path = rig.place(key)
    fuse.rule("hold", "getattr", name=path.name, times=1)
    rig.engine.probe(key)
    rig.engine.submit_probes()
    # The look has found the file and waits for its size.
    assert fuse.await_held(1, "getattr")
    fuse.shown(path).unlink()
    rig.submit("load", [key], [0])
    ended: list[CompletionLike] = []

    def load_ended() -> bool:
        ended.extend(rig.engine.poll())
        return bool(ended)

    assert await_that(load_ended)
    assert [done.outcomes for done in ended] == [[errno.ENOENT]]
    fuse.clear()
    assert rig.engine.drain(30)
    assert rig.engine.stats()["probes"] == 1
    # The old look says that the file is there with its right size; it went after that.
    assert rig.engine.lookup(key) != HIT
