"""The row that a load was to fill: of a failed one nothing is believed, and it stays mapped to the end."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuse_mount import FuseMount
from rig import Rig, Tier

from kvfs.jobs import HIT, IoBackend

if TYPE_CHECKING:
    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

SIZES = pytest.mark.parametrize("size_bytes", [65536, 524288], ids=["64-KiB", "512-KiB"])
COUNT = 6
DEADLINE_S = 30.0


@SIZES
@pytest.mark.parametrize("nth", [1, 3, 6])
def test_eio_on_the_nth_read_fails_that_key_alone_and_leaves_its_file(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, size_bytes: int, nth: int
) -> None:
    fuse.set_uncached(on=True)
    rig = start_rig(fuse_place, num_chunks=2 * COUNT, chunk_size_bytes=size_bytes)
    keys = [rig.key(number) for number in range(COUNT)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(COUNT)]
    rig.store(keys, range(COUNT))
    fuse.rule("fail", "read", code=errno.EIO, skip=nth - 1, times=1)
    completion = rig.load(keys, range(COUNT, 2 * COUNT))
    outcomes = completion.outcomes
    assert sorted(outcomes) == [0] * (COUNT - 1) + [errno.EIO]
    assert completion.bytes_moved >= (COUNT - 1) * size_bytes
    failed = outcomes.index(errno.EIO)
    assert str(rig.path(keys[failed])) in completion.detail
    for row, chunk in enumerate(chunks):
        if row != failed:
            assert rig.tier.row(COUNT + row) == chunk
    # Nothing is proven against the file, but the key is no hit any more.
    assert [verdict == HIT for verdict in rig.verdicts(keys)] == [row != failed for row in range(COUNT)]
    assert rig.engine.stats()["removed_files"] == 0
    assert rig.load(keys, range(COUNT, 2 * COUNT)).outcomes == [0] * COUNT
    assert [rig.tier.row(COUNT + row) for row in range(COUNT)] == chunks


@SIZES
@pytest.mark.parametrize("kind", ["load", "store"])
def test_close_with_an_operation_under_way_keeps_the_buffer_until_it_has_returned(
    io: IoBackend, fuse_place: Path, fuse: FuseMount, size_bytes: int, kind: str
) -> None:
    rig = Rig(io, fuse_place, num_chunks=2, chunk_size_bytes=size_bytes, index_mode="shared")
    key = rig.key(1)
    chunk = rig.tier.fill(0, seed=1)
    if kind == "load":
        rig.store([key], [0])
    fuse.rule("hold", "read" if kind == "load" else "write")
    job_id = rig.submit(kind, [key], [1 if kind == "load" else 0])
    assert fuse.await_held(1)
    closer = threading.Thread(target=rig.engine.close)
    closer.start()
    try:
        # The engine has what this view shows: it cannot be let go of before the operation is back.
        for _ in range(100):
            assert closer.is_alive()
            with pytest.raises(BufferError):
                rig.tier.view.release()
    finally:
        fuse.clear()
        closer.join(DEADLINE_S)
    assert not closer.is_alive()
    (completion,) = rig.engine.poll()
    assert (completion.job_id, completion.outcomes) == (job_id, [0])
    assert (rig.tier.row(1) if kind == "load" else rig.path(key).read_bytes()) == chunk
    rig.tier.view.release()


def test_failed_loads_of_one_row_end_before_the_good_one_fills_it(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=65536)
    keys = [rig.key(number) for number in range(2)]
    chunk = rig.tier.fill(0, seed=1)
    rig.store(keys, [0, 0])
    fuse.rule("fail", "read", code=errno.EIO, name=rig.path(keys[0]).name)
    for _ in range(10):
        assert rig.load([keys[0]], [1]).outcomes == [errno.EIO]
        # What is reported has ended: nothing of it writes to the row from here on.
        assert rig.load([keys[1]], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk


def test_tier_is_not_kept_by_an_engine_that_is_closed(io: IoBackend, fuse_place: Path) -> None:
    tier = Tier(2, 4096)
    engine = io.Engine(str(fuse_place), tier.view, 1, 1)
    with pytest.raises(BufferError):
        tier.view.release()
    engine.close()
    tier.view.release()
