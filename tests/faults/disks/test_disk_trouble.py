"""Stores that each file system refuses in mid-job: full, out of quota, read-only; then it recovers."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from file_systems import Disk, Mounts
from fuse_mount import FuseMount
from polling import until_admitted
from quotas import NOBODY, Quota

from kvfs.jobs import HIT, IoBackend

if TYPE_CHECKING:
    from rig import Rig

    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

# Below and above the size from which the extension writes through its ring.
SIZES = pytest.mark.parametrize("size_bytes", [65536, 524288], ids=["64-KiB", "512-KiB"])
SIZE_BYTES = 65536


def _check_after_failures(rig: Rig, keys: Sequence[bytes], outcomes: Sequence[int], chunk: bytes) -> None:
    """Check that what was stored is whole, that what was not is a miss, and that nothing else is left."""
    stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome == 0]
    assert list(rig.base.rglob("*.tmp")) == []
    assert rig.files() == sorted({rig.path(key) for key in stored})
    assert rig.lookup(keys).outcomes == [0 if outcome == 0 else errno.ENOENT for outcome in outcomes]
    for key in stored:
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk


@SIZES
def test_full_disk_fails_what_has_no_room_and_recovers(
    start_rig: StartRig, small: Disk, size_bytes: int
) -> None:
    rig = start_rig(small.fresh(), num_chunks=2, chunk_size_bytes=size_bytes)
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(40)]
    there = keys[19], keys[39]
    assert rig.store(there, [0, 0]).outcomes == [0, 0]
    small.fill_up(leave_bytes=6 * size_bytes)
    completion = rig.store(keys, [0] * 40)
    outcomes = completion.outcomes
    assert set(outcomes) == {0, errno.ENOSPC}
    # Later keys are tried all the same, and these needed no room.
    assert (outcomes[19], outcomes[39]) == (0, 0)
    assert completion.bytes_moved == (outcomes.count(0) - 2) * size_bytes
    assert os.strerror(errno.ENOSPC) in completion.detail
    _check_after_failures(rig, keys, outcomes, chunk)
    small.make_room()
    assert until_admitted(lambda: rig.store(keys, [0] * 40)).outcomes == [0] * 40
    _check_after_failures(rig, keys, [0] * 40, chunk)


def test_full_disk_ends_a_batch_with_enospc_and_the_count(io: IoBackend, small: Disk) -> None:
    place = small.fresh()
    names = [str(place / f"{number}.bin") for number in range(40)]
    small.fill_up(leave_bytes=6 * SIZE_BYTES)
    with pytest.raises(OSError, match="No space left") as caught:
        io.batch_store([f"{name}.tmp" for name in names], names, [bytes(SIZE_BYTES)] * 40)
    assert caught.value.errno == errno.ENOSPC
    succeeded: int = caught.value.num_succeeded  # type: ignore[attr-defined]
    assert caught.value.filename == names[succeeded]
    assert sorted(path.name for path in place.iterdir()) == sorted(
        Path(name).name for name in names[:succeeded]
    )
    small.make_room()
    io.batch_store([f"{name}.tmp" for name in names], names, [bytes(SIZE_BYTES)] * 40)
    assert io.batch_lookup(names) == [True] * 40


def test_read_only_in_mid_run_fails_stores_and_still_loads(start_rig: StartRig, small: Disk) -> None:
    rig = start_rig(small.fresh(), num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(5)]
    assert rig.store(keys[:3], [0] * 3).outcomes == [0] * 3
    os.truncate(rig.path(keys[1]), 100)
    small.remount("ro")
    # One that is there, one too short, one that is there, and two new ones.
    expected = [0, errno.EROFS, 0, errno.EROFS, errno.EROFS]
    completion = rig.store(keys, [0] * 5)
    assert completion.outcomes == expected
    assert os.strerror(errno.EROFS) in completion.detail
    assert rig.load(keys, [1, 1, 1, 1, 1]).outcomes == [0, errno.EBADMSG, 0, errno.ENOENT, errno.ENOENT]
    assert rig.load([keys[2]], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    # It could not be removed, and nothing says that it was.
    assert rig.path(keys[1]).stat().st_size == 100
    assert rig.engine.stats()["removed_files"] == 0
    small.remount("rw")
    assert until_admitted(lambda: rig.store(keys, [0] * 5)).outcomes == [0] * 5
    _check_after_failures(rig, keys, [0] * 5, chunk)


def test_engine_that_starts_read_only_loads_and_fails_stores(start_rig: StartRig, small: Disk) -> None:
    place = small.fresh()
    first = start_rig(place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = first.tier.fill(0, seed=1)
    keys = [first.key(number) for number in range(2)]
    first.store(keys[:1], [0])
    first.engine.close()
    small.remount("ro")
    rig = start_rig(place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    assert rig.store(keys, [0, 0]).outcomes == [0, errno.EROFS]
    assert rig.load(keys, [1, 0]).outcomes == [0, errno.ENOENT]
    assert rig.tier.row(1) == chunk
    small.remount("rw")
    assert until_admitted(lambda: rig.store(keys, [1, 1])).outcomes == [0, 0]


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_disk_that_dies_fails_every_key_and_close_returns(
    start_rig: StartRig, own_mounts: Mounts, kind: str
) -> None:
    disk = own_mounts.make(kind)
    rig = start_rig(disk.fresh(), num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    keys = [rig.key(number) for number in range(4)]
    assert rig.store(keys[:2], [0, 0]).outcomes == [0, 0]
    disk.die()
    # What is there cannot be known any more, or is still in memory.
    stored = rig.store(keys, [0] * 4)
    assert set(stored.outcomes[:2]) <= {0, errno.EIO}
    assert stored.outcomes[2:] == [errno.EIO] * 2
    loaded = rig.load(keys, [1] * 4).outcomes
    assert loaded[:2] == [errno.EIO] * 2
    assert set(loaded[2:]) <= {errno.EIO, errno.ENOENT}
    # EIO proves nothing against a file, and is no hit.
    assert rig.engine.stats()["removed_files"] == 0
    assert HIT not in rig.verdicts(keys)
    rig.engine.close()


def test_quota_used_up_fails_what_has_no_room_and_recovers(start_rig: StartRig, quota: Quota) -> None:
    with quota.bound():
        rig = start_rig(quota.directory, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
        chunk = rig.tier.fill(0, seed=1)
        keys = [rig.key(number) for number in range(80)]
        there = keys[39], keys[79]
        assert rig.store(there, [0, 0]).outcomes == [0, 0]
    quota.limit(3 << 20)
    with quota.bound():
        completion = rig.store(keys, [0] * 80)
        outcomes = completion.outcomes
        assert set(outcomes) == {0, errno.EDQUOT}
        assert (outcomes[39], outcomes[79]) == (0, 0)
        assert os.strerror(errno.EDQUOT) in completion.detail
        _check_after_failures(rig, keys, outcomes, chunk)
    quota.limit(0)
    with quota.bound():
        assert until_admitted(lambda: rig.store(keys, [0] * 80)).outcomes == [0] * 80
        _check_after_failures(rig, keys, [0] * 80, chunk)
    if quota.kind.scope == "user":
        assert {path.stat().st_uid for path in rig.files()} == {NOBODY}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("op", ["mkdir", "create", "write", "flush", "publish"])
def test_refused_once_anywhere_in_a_store_fails_that_key_alone(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, op: str, code: int
) -> None:
    # Of flush(): network file systems tell at close that there was no room.
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(6)]
    ops = ("rename", "rename2", "link") if op == "publish" else (op,)
    fuse.rule("fail", *ops, code=code, skip=2, times=1)
    outcomes = rig.store(keys, [0] * 6).outcomes
    assert sorted(outcomes) == [0] * 5 + [code]
    _check_after_failures(rig, keys, outcomes, chunk)
    assert until_admitted(lambda: rig.store(keys, [0] * 6)).outcomes == [0] * 6
    _check_after_failures(rig, keys, [0] * 6, chunk)


def test_no_extended_attributes_stores_and_loads_all_the_same(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    fuse.rule("fail", "setxattr", "getxattr", "listxattr", "removexattr", code=errno.EOPNOTSUPP)
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(4)]
    assert rig.store(keys, [0] * 4).outcomes == [0] * 4
    _check_after_failures(rig, keys, [0] * 4, chunk)


def test_close_that_fails_after_a_load_fails_nothing(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    fuse.rule("fail", "flush", code=errno.EIO)
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    # Nor does it keep the engine, whose lock is on a file there, from closing.
    rig.engine.close()


def test_temporary_that_cannot_be_removed_changes_no_outcome(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    keys = [rig.key(number) for number in range(3)]
    fuse.rule("fail", "write", code=errno.ENOSPC)
    fuse.rule("fail", "unlink", code=errno.EIO)
    # What went wrong first is what counts.
    assert rig.store(keys, [0] * 3).outcomes == [errno.ENOSPC] * 3
    fuse.clear()
    assert rig.lookup(keys).outcomes == [errno.ENOENT] * 3
    assert until_admitted(lambda: rig.store(keys, [0] * 3)).outcomes == [0] * 3
