"""Jobs with keys that fail: each key has its own outcome, and the others are not touched by it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig


def test_load_present_missing_present_loads_two(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    keys = [rig.key(number) for number in range(3)]
    first, last = rig.tier.fill(0, seed=1), rig.tier.fill(2, seed=2)
    rig.store([keys[0], keys[2]], [0, 2])
    completion = rig.load(keys, [5, 6, 7])
    assert completion.outcomes == [0, errno.ENOENT, 0]
    assert completion.bytes_moved == 2 * rig.tier.chunk_size_bytes
    assert (rig.tier.row(5), rig.tier.row(7)) == (first, last)


def test_load_last_of_three_truncated_loads_two_and_removes_it(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    keys = [rig.key(number) for number in range(3)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(3)]
    rig.store(keys, range(3))
    os.truncate(rig.path(keys[2]), 100)
    assert rig.lookup(keys).outcomes == [0, 0, errno.EBADMSG]
    completion = rig.load(keys, [5, 6, 7])
    assert completion.outcomes == [0, 0, errno.EBADMSG]
    assert [rig.tier.row(5), rig.tier.row(6)] == chunks[:2]
    assert rig.lookup(keys).outcomes == [0, 0, errno.ENOENT]
    assert rig.engine.stats()["removed_files"] == 1


def test_load_vanished_file_is_enoent(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    rig.store([rig.key(1)], [0])
    assert rig.lookup([rig.key(1)]).outcomes == [0]
    rig.path(rig.key(1)).unlink()
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.ENOENT]
    assert rig.engine.stats()["removed_files"] == 0


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("missing", errno.ENOENT),
        ("empty", errno.EBADMSG),
        ("short", errno.EBADMSG),
        ("long", errno.EBADMSG),
        ("link", errno.ELOOP),
        ("directory", errno.EISDIR),
    ],
)
def test_lookup_says_what_is_wrong_with_an_object(
    start_rig: StartRig, storage: Path, name: str, outcome: int
) -> None:
    rig = start_rig(storage)
    path = rig.path(rig.key(1))
    path.parent.mkdir(parents=True)
    good = path.parent / "good"
    good.write_bytes(bytes(rig.tier.chunk_size_bytes))
    match name:
        case "empty":
            path.touch()
        case "short":
            path.write_bytes(b"x")
        case "long":
            path.write_bytes(bytes(rig.tier.chunk_size_bytes + 1))
        case "link":
            path.symlink_to(good)
        case "directory":
            path.mkdir()
    before = sorted(path.parent.iterdir())
    assert rig.lookup([rig.key(1), rig.key(2)]).outcomes == [outcome, errno.ENOENT]
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize(
    "chunk_id", [-1, 8, 9, 2**31, 2**52, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64, 2**100]
)
@pytest.mark.parametrize("kind", ["store", "load"])
def test_chunk_id_outside_the_buffer_is_einval_for_that_key_alone(
    start_rig: StartRig, storage: Path, kind: str, chunk_id: int
) -> None:
    rig = start_rig(storage, num_chunks=8)
    keys = [rig.key(number) for number in range(3)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(3)]
    if kind == "load":
        rig.store(keys, range(3))
        completion = rig.load(keys, [6, chunk_id, 7])
        assert (rig.tier.row(6), rig.tier.row(7)) == (chunks[0], chunks[2])
    else:
        completion = rig.store(keys, [0, chunk_id, 2])
        assert rig.lookup(keys).outcomes == [0, errno.ENOENT, 0]
    assert completion.outcomes == [0, errno.EINVAL, 0]
    assert completion.detail != ""
    if -(2**63) <= chunk_id < 2**63:
        assert str(chunk_id) in completion.detail


def test_store_directory_in_the_way_stores_the_other_keys(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    keys = [rig.key(number) for number in range(3)]
    rig.path(keys[1]).mkdir(parents=True)
    completion = rig.store(keys, range(3))
    assert completion.outcomes == [0, errno.EISDIR, 0]
    assert completion.bytes_moved == 2 * rig.tier.chunk_size_bytes
    assert rig.lookup(keys).outcomes == [0, errno.EISDIR, 0]
    assert list(storage.rglob("*.tmp")) == []


def test_store_over_bad_files_counts_what_it_healed(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    keys = [rig.key(number) for number in range(3)]
    for key, size_bytes in zip(keys, (0, 1, 10_000), strict=True):
        rig.path(key).parent.mkdir(parents=True)
        rig.path(key).write_bytes(bytes(size_bytes))
    completion = rig.store(keys, range(3))
    assert completion.outcomes == [0, 0, 0]
    assert completion.bytes_moved == 3 * rig.tier.chunk_size_bytes
    stats = rig.engine.stats()
    assert (stats["healed_files"], stats["duplicate_stores"], stats["removed_files"]) == (3, 0, 0)


def test_detail_tells_of_the_first_failure_by_position(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, threads=(8, 8))
    keys = [rig.key(number) for number in range(20)]
    rig.store(keys[:7], [0] * 7)
    for _ in range(10):
        completion = rig.load(keys, [1] * 7 + [2] * 13)
        assert completion.outcomes == [0] * 7 + [errno.ENOENT] * 13
        assert str(rig.path(keys[7])) in completion.detail
        assert os.strerror(errno.ENOENT) in completion.detail
        assert str(rig.path(keys[8])) not in completion.detail


def test_base_path_replaced_by_a_file_fails_every_key_and_leaves_it(
    start_rig: StartRig, tmp_path: Path
) -> None:
    base = tmp_path / "namespace"
    rig = start_rig(base)
    keys = [rig.key(1), rig.key(2)]
    assert rig.store(keys, [0, 1]).outcomes == [0, 0]
    shutil.rmtree(base)
    base.write_bytes(b"in the way")
    assert 0 not in rig.store(keys, [0, 1]).outcomes
    assert 0 not in rig.load(keys, [0, 1]).outcomes
    assert 0 not in rig.lookup(keys).outcomes
    assert base.read_bytes() == b"in the way"


def test_hash_too_long_for_a_file_name_is_enametoolong(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    keys = [rig.key(number, hash_size_bytes=251) for number in range(2)]
    assert rig.store(keys, [0, 1]).outcomes == [errno.ENAMETOOLONG] * 2
    assert rig.load(keys, [0, 1]).outcomes == [errno.ENAMETOOLONG] * 2
    assert rig.lookup(keys).outcomes == [errno.ENAMETOOLONG] * 2
    assert rig.files() == []
