"""O_DIRECT on each file system: taken, refused at open or at the transfer; the bytes are right."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import file_systems
import pytest
from fuse_mount import FuseMount

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.faults.disks.conftest import Make, StartRig

pytestmark = pytest.mark.needs_root

COUNT = 3
SIZES = [512, 4096, 4608, 5000, 524288]
OFFSETS = [0, 1, 512]
REFUSED = {"open": ("open", "create"), "transfer": ("read", "write")}


@pytest.fixture(params=[*file_systems.ALL, *file_systems.LARGE_SECTORS])
def direct_place(request: pytest.FixtureRequest, roomy: Make) -> Path:
    """Return an empty directory on each file system, those on sectors of 4 KiB among them."""
    return roomy(request.param).fresh()


def _takes_o_direct(directory: Path, size_bytes: int) -> bool:
    """Tell whether a transfer of this size from an aligned page is taken there, by trying one."""
    path = directory / "probe"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, size_bytes) as memory, memoryview(memory) as view:
            return os.pwrite(fd, view[:size_bytes], 0) == size_bytes
    except OSError:
        return False
    finally:
        os.close(fd)
        path.unlink()


@pytest.mark.parametrize("offset_bytes", OFFSETS, ids=lambda offset: f"offset-{offset}")
@pytest.mark.parametrize("size_bytes", SIZES)
def test_any_alignment_returns_the_bytes_and_counts_what_left_o_direct(
    start_rig: StartRig, direct_place: Path, size_bytes: int, offset_bytes: int
) -> None:
    rig = start_rig(
        direct_place / "namespace",
        num_chunks=2 * COUNT,
        chunk_size_bytes=size_bytes,
        offset_bytes=offset_bytes,
    )
    keys = [rig.key(number) for number in range(COUNT)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(COUNT)]
    assert rig.store(keys, range(COUNT)).outcomes == [0] * COUNT
    assert [rig.path(key).read_bytes() for key in keys] == chunks
    assert rig.load(keys, range(COUNT, 2 * COUNT)).outcomes == [0] * COUNT
    assert [rig.tier.row(row) for row in range(COUNT, 2 * COUNT)] == chunks
    fallbacks = rig.engine.stats()["direct_fallbacks"]
    if size_bytes % 4096 == 0 and offset_bytes == 0:
        assert fallbacks == 0 or not _takes_o_direct(direct_place, size_bytes)
    elif size_bytes % 512 or offset_bytes % 512:
        # No device takes this, so that it is not even tried.
        assert fallbacks == 2 * COUNT
    assert list(direct_place.rglob("*.tmp")) == []


def test_batches_of_any_alignment_return_the_bytes(io: IoBackend, direct_place: Path) -> None:
    with mmap.mmap(-1, 4 << 20) as memory, memoryview(memory) as flat:
        for size_bytes in SIZES:
            for offset_bytes in OFFSETS:
                path = str(direct_place / f"{size_bytes}-{offset_bytes}")
                with flat[offset_bytes : offset_bytes + size_bytes] as source:
                    source[:] = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
                    io.batch_store([f"{path}.tmp"], [path], [source], True)
                    expected = bytes(source)
                with flat[1 << 20 : (1 << 20) + size_bytes] as target:
                    io.batch_load([path], [target], True)
                    assert target == expected


@pytest.mark.parametrize("size_bytes", [4096, 524288])
@pytest.mark.parametrize("at", REFUSED)
def test_refused_by_the_file_system_goes_on_buffered_and_stops_trying(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, at: str, size_bytes: int
) -> None:
    # Where it is refused at open, nothing of that kind can arrive later either.
    for each in {at, "transfer"}:
        fuse.rule("fail", *REFUSED[each], code=errno.EINVAL, direct=True)
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=size_bytes, io_engine="auto")
    for number in range(4):
        chunk = rig.tier.fill(0, seed=number)
        assert rig.store([rig.key(number)], [0]).outcomes == [0]
        assert rig.load([rig.key(number)], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    assert rig.engine.stats()["direct_fallbacks"] == 1
    assert list(fuse_place.rglob("*.tmp")) == []


@pytest.mark.parametrize("size_bytes", [4096, 524288])
def test_refused_for_reads_alone_keeps_stores_and_loads_right(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, size_bytes: int
) -> None:
    fuse.rule("fail", "read", code=errno.EINVAL, direct=True)
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=size_bytes)
    keys = [rig.key(number) for number in range(8)]
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store(keys, [0] * 8).outcomes == [0] * 8
    assert rig.engine.stats()["direct_fallbacks"] == 0
    for key in keys:
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    assert rig.engine.stats()["direct_fallbacks"] == 1
    assert rig.engine.stats()["removed_files"] == 0


def test_einval_of_a_buffered_transfer_is_a_failure(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=4096)
    keys = [rig.key(number) for number in range(2)]
    # Not about O_DIRECT: leaving that does not help, and must not be tried for ever.
    fuse.rule("fail", "write", code=errno.EINVAL)
    assert rig.store(keys, [0, 0]).outcomes == [errno.EINVAL] * 2
    fuse.clear()
    assert rig.files() == []
    assert rig.store(keys, [0, 0]).outcomes == [0, 0]
