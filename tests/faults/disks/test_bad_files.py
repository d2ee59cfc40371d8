"""What lies at a chunk's path and is none, on each file system: a miss, healed by a store where one can."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import quotas
from file_systems import Mounts

from kvfs.jobs import HIT, IoBackend

if TYPE_CHECKING:
    from rig import Rig

    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

SIZE_BYTES = 8192
# What is there, what a load says and what a lookup says, whether the load takes it away.
BAD: dict[str, tuple[Callable[[Path], object], int, int, bool]] = {
    "empty": (lambda path: path.touch(), errno.EBADMSG, errno.EBADMSG, True),
    "truncated": (lambda path: path.write_bytes(bytes(5000)), errno.EBADMSG, errno.EBADMSG, True),
    "a-hole-too-short": (lambda path: os.truncate(_made(path), 4096), errno.EBADMSG, errno.EBADMSG, True),
    "twice-the-size": (lambda path: path.write_bytes(bytes(16384)), errno.EBADMSG, errno.EBADMSG, False),
    "dangling-link": (lambda path: path.symlink_to("nowhere"), errno.ELOOP, errno.ELOOP, False),
    "fifo": (os.mkfifo, errno.EBADMSG, errno.EBADMSG, False),
    "directory": (lambda path: path.mkdir(), errno.EISDIR, errno.EISDIR, False),
}


def _made(path: Path) -> Path:
    path.touch()
    return path


def _place_all(rig: Rig, keys: list[bytes]) -> None:
    for key, (put, *_) in zip(keys, BAD.values(), strict=True):
        rig.path(key).parent.mkdir(parents=True)
        put(rig.path(key))


def test_bad_files_are_misses_for_lookup_and_load(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=8, chunk_size_bytes=SIZE_BYTES)
    keys = [rig.key(number) for number in range(len(BAD))]
    _place_all(rig, keys)
    assert rig.lookup(keys).outcomes == [lookup for _, _, lookup, _ in BAD.values()]
    assert rig.load(keys, [0] * len(keys)).outcomes == [load for _, load, _, _ in BAD.values()]
    # Only a file that is too short is proven to be no chunk that somebody still writes.
    assert [not os.path.lexists(rig.path(key)) for key in keys] == [gone for *_, gone in BAD.values()]
    assert rig.engine.stats()["removed_files"] == 3
    assert HIT not in rig.verdicts(keys)


def test_store_heals_bad_files_but_not_a_directory(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    keys = [rig.key(number) for number in range(len(BAD))]
    _place_all(rig, keys)
    chunk = rig.tier.fill(0, seed=1)
    expected = [errno.EISDIR if name == "directory" else 0 for name in BAD]
    assert rig.store(keys, [0] * len(keys)).outcomes == expected
    assert rig.engine.stats()["healed_files"] == len(BAD) - 1
    for key, outcome in zip(keys, expected, strict=True):
        if outcome == 0:
            assert rig.load([key], [1]).outcomes == [0]
            assert rig.tier.row(1) == chunk
    assert list(place.rglob("*.tmp")) == []


def test_file_that_may_not_be_read_fails_its_load_and_stays(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    keys = [rig.key(number) for number in range(3)]
    rig.store(keys, [0] * 3)
    rig.path(keys[1]).chmod(0)
    for path in [place, *place.rglob("*")]:
        os.chown(path, quotas.NOBODY, quotas.NOBODY)
    # Root reads whatever it likes.
    os.seteuid(quotas.NOBODY)
    try:
        assert rig.load(keys, [1] * 3).outcomes == [0, errno.EACCES, 0]
    finally:
        os.seteuid(0)
    assert rig.engine.lookup(keys[1]) != HIT
    assert rig.path(keys[1]).stat().st_size == SIZE_BYTES


def test_batches_over_bad_files_say_the_same(io: IoBackend, place: Path) -> None:
    paths = [place / name for name in BAD]
    for path, (put, *_) in zip(paths, BAD.values(), strict=True):
        put(path)
    # Of the size nothing is known at this level.
    sized = {"truncated", "a-hole-too-short", "twice-the-size"}
    assert io.batch_lookup([str(path) for path in paths]) == [name in sized for name in BAD]
    buffer = bytearray(SIZE_BYTES)
    for path, (_, load, _, gone) in zip(paths, BAD.values(), strict=True):
        with pytest.raises(OSError, match=r".+") as caught:
            io.batch_load([str(path)], [buffer])
        assert (caught.value.errno, not os.path.lexists(path)) == (load, gone)
    for path in paths[:-1]:
        io.batch_store([f"{path}.tmp"], [str(path)], [bytes(SIZE_BYTES)])
    with pytest.raises(IsADirectoryError):
        io.batch_store([f"{paths[-1]}.tmp"], [str(paths[-1])], [bytes(SIZE_BYTES)])
    assert sorted(place.iterdir()) == sorted(paths)


def test_overlay_chunks_of_the_lower_layer_are_served_and_bad_ones_healed(
    start_rig: StartRig, own_mounts: Mounts
) -> None:
    base = own_mounts.make("ext4").directory
    lower = start_rig(base / "lower" / "namespace", num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    keys = [lower.key(number) for number in range(4)]
    chunk = lower.tier.fill(0, seed=1)
    lower.store(keys, [0] * 4)
    lower.engine.close()
    os.truncate(lower.path(keys[1]), 100)
    os.truncate(lower.path(keys[2]), 100)
    rig = start_rig(
        own_mounts.overlay(base).directory / "namespace", num_chunks=2, chunk_size_bytes=SIZE_BYTES
    )
    assert rig.tier.fill(0, seed=1) == chunk
    assert rig.load([keys[0], keys[1]], [1, 1]).outcomes == [0, errno.EBADMSG]
    assert [rig.path(key).exists() for key in keys] == [True, False, True, True]
    assert rig.store(keys, [0] * 4).outcomes == [0] * 4
    stats = rig.engine.stats()
    assert (stats["duplicate_stores"], stats["healed_files"], stats["removed_files"]) == (2, 1, 1)
    for key in keys:
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    # The layer below is nobody's to change.
    assert [lower.path(key).stat().st_size for key in keys] == [SIZE_BYTES, 100, 100, SIZE_BYTES]
