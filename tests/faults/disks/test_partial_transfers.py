"""Transfers in pieces: short counts, EINTR, answers of no bytes, and a chunk above 2 GiB."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from file_systems import Mounts
from fuse_mount import FuseMount
from rig import Rig

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

DIRECT = pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
# Below and above the size from which the extension writes through its ring.
SIZES = pytest.mark.parametrize("size_bytes", [65536, 524288], ids=["64-KiB", "512-KiB"])
COUNT = 4


@DIRECT
@SIZES
@pytest.mark.parametrize("piece_bytes", [4096, 33333])
def test_short_counts_move_every_byte(
    start_rig: StartRig,
    fuse_place: Path,
    fuse: FuseMount,
    size_bytes: int,
    use_o_direct: bool,
    piece_bytes: int,
) -> None:
    fuse.set_uncached(on=True)
    fuse.rule("short", "read", "write", code=piece_bytes)
    rig = start_rig(fuse_place, num_chunks=2 * COUNT, chunk_size_bytes=size_bytes, use_o_direct=use_o_direct)
    keys = [rig.key(number) for number in range(COUNT)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(COUNT)]
    before = fuse.seen("write")
    stored = rig.store(keys, range(COUNT))
    assert (stored.outcomes, stored.bytes_moved) == ([0] * COUNT, COUNT * size_bytes)
    assert fuse.seen("write") - before >= COUNT * size_bytes // piece_bytes
    assert [fuse.shown(rig.path(key)).read_bytes() for key in keys] == chunks
    loaded = rig.load(keys, range(COUNT, 2 * COUNT))
    assert (loaded.outcomes, loaded.bytes_moved) == ([0] * COUNT, COUNT * size_bytes)
    assert [rig.tier.row(row) for row in range(COUNT, 2 * COUNT)] == chunks
    assert rig.engine.stats()["removed_files"] == 0


def test_io_uring_is_not_used_on_fuse(io: IoBackend, start_rig: StartRig, fuse_place: Path) -> None:
    # Through a ring the kernel read on at the same place after a short read, and said that all was well.
    assert start_rig(fuse_place).engine.io_engine in ("psync", "python")
    with pytest.raises(OSError, match=r"uring"):
        Rig(io, fuse_place, io_engine="uring")


@DIRECT
@SIZES
def test_interrupted_calls_are_made_again(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, size_bytes: int, use_o_direct: bool
) -> None:
    rig = start_rig(fuse_place, num_chunks=2 * COUNT, chunk_size_bytes=size_bytes, use_o_direct=use_o_direct)
    fuse.set_uncached(on=True)
    # Each second one fails, and each takes several.
    fuse.rule("fail", "open", "create", "read", "write", code=errno.EINTR, every=2)
    fuse.rule("short", "read", "write", code=16384)
    keys = [rig.key(number) for number in range(COUNT)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(COUNT)]
    assert rig.store(keys, range(COUNT)).outcomes == [0] * COUNT
    assert rig.load(keys, range(COUNT, 2 * COUNT)).outcomes == [0] * COUNT
    assert [rig.tier.row(row) for row in range(COUNT, 2 * COUNT)] == chunks
    assert sorted(fuse.shown(rig.base).rglob("*.bin")) == sorted(fuse.shown(rig.path(key)) for key in keys)
    assert list(fuse_place.rglob("*.tmp")) == []


def test_batches_move_every_byte_of_short_and_interrupted_transfers(
    io: IoBackend, fuse_place: Path, fuse: FuseMount
) -> None:
    fuse.set_uncached(on=True)
    fuse.rule("fail", "open", "create", "read", "write", code=errno.EINTR, every=3)
    fuse.rule("short", "read", "write", code=10000)
    chunks = [bytes([number]) * 65536 for number in range(1, 4)]
    names = [str(fuse_place / f"{number}.bin") for number in range(3)]
    io.batch_store([f"{name}.tmp" for name in names], names, list(chunks))
    loaded = [bytearray(65536) for _ in names]
    io.batch_load(names, list(loaded))
    assert loaded == chunks


@DIRECT
@SIZES
def test_read_of_no_bytes_before_the_end_fails_the_load_and_leaves_the_file(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, size_bytes: int, use_o_direct: bool
) -> None:
    fuse.set_uncached(on=True)
    rig = start_rig(fuse_place, num_chunks=4, chunk_size_bytes=size_bytes, use_o_direct=use_o_direct)
    keys = [rig.key(number) for number in range(2)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(2)]
    rig.store(keys, range(2))
    fuse.rule("short", "read", code=0, skip=1, times=1)
    fuse.rule("short", "read", code=16384)
    outcomes = rig.load(keys, [2, 3]).outcomes
    # The file system said "the end" where there was none: that proves nothing against the file.
    assert sorted(outcomes) == [0, errno.EBADMSG]
    assert rig.engine.stats()["removed_files"] == 0
    assert rig.lookup(keys).outcomes == [0, 0]
    assert rig.load(keys, [2, 3]).outcomes == [0, 0]
    assert [rig.tier.row(row) for row in (2, 3)] == chunks


@DIRECT
@SIZES
def test_write_of_no_bytes_fails_the_store_with_eio(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, size_bytes: int, use_o_direct: bool
) -> None:
    fuse.set_uncached(on=True)
    rig = start_rig(fuse_place, num_chunks=4, chunk_size_bytes=size_bytes, use_o_direct=use_o_direct)
    keys = [rig.key(number) for number in range(3)]
    fuse.rule("short", "write", code=0)
    assert rig.store(keys, [0] * 3).outcomes == [errno.EIO] * 3
    assert rig.files() == []
    fuse.clear()
    assert rig.store(keys, [0] * 3).outcomes == [0] * 3


@pytest.mark.slow
def test_chunk_above_2_gib_round_trips(start_rig: StartRig, own_mounts: Mounts) -> None:
    # One system call moves at most 2,147,479,552 bytes on Linux.
    size_bytes = (2 << 30) + 4096
    marks = [0, 0x7FFFF000 - 1, 0x7FFFF000, 1 << 30, 2 << 30, size_bytes - 1]
    place = own_mounts.make("tmpfs", size_bytes + (64 << 20)).directory
    rig = start_rig(place, num_chunks=2, chunk_size_bytes=size_bytes)
    # Of the first row the kernel hands out only the pages with marks, and zeros for the others.
    for number, mark in enumerate(marks, 1):
        rig.tier.memory[mark] = number
    key = rig.key(1)
    stored = rig.store([key], [0])
    assert (stored.outcomes, stored.bytes_moved) == ([0], size_bytes)
    assert rig.path(key).stat().st_size == size_bytes
    assert rig.lookup([key]).outcomes == [0]
    loaded = rig.load([key], [1])
    assert (loaded.outcomes, loaded.bytes_moved) == ([0], size_bytes)
    assert [rig.tier.memory[size_bytes + mark] for mark in marks] == [1, 2, 3, 4, 5, 6]
    # A valid file stays; its memory and the row's go back at once.
    assert rig.engine.stats()["removed_files"] == 0
    rig.path(key).unlink()
    rig.tier.memory.madvise(mmap.MADV_DONTNEED)
