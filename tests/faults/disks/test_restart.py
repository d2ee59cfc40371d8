"""What a second engine finds on each file system: all whole chunks of the first, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import HIT, MISS

if TYPE_CHECKING:
    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

SIZE_BYTES = 65536
COUNT = 20


@pytest.mark.parametrize("snapshot", [True, False], ids=["as-left", "without-snapshot"])
def test_next_engine_knows_all_chunks_and_only_those(
    start_rig: StartRig, place: Path, snapshot: bool
) -> None:
    first = start_rig(place, num_chunks=COUNT, chunk_size_bytes=SIZE_BYTES)
    keys = [first.key(number) for number in range(COUNT)]
    chunks = [first.tier.fill(row, seed=row) for row in range(COUNT)]
    assert first.store(keys, range(COUNT)).outcomes == [0] * COUNT
    first.engine.close()
    # Written by nobody who was whole at the end.
    first.path(keys[3]).write_bytes(bytes(100))
    Path(f"{first.path(keys[4])}_0123456789abcdef.tmp").write_bytes(bytes(SIZE_BYTES))
    if not snapshot:
        (place / "kvfs.index").unlink(missing_ok=True)
    second = start_rig(place, num_chunks=COUNT, chunk_size_bytes=SIZE_BYTES)
    assert second.await_stats(scan_complete=1, owner=1)
    whole = [number for number in range(COUNT) if number != 3]
    assert second.verdicts([keys[number] for number in whole]) == [HIT] * len(whole)
    assert second.engine.lookup(second.key(1000)) == MISS
    assert second.load([keys[number] for number in whole], whole).outcomes == [0] * len(whole)
    assert [second.tier.row(number) for number in whole] == [chunks[number] for number in whole]
    if not snapshot:
        assert second.engine.lookup(keys[3]) == MISS
    # From memory or from disk, the cut one is found out before its bytes are used.
    assert second.load([keys[3]], [3]).outcomes != [0]
    assert second.engine.lookup(keys[3]) == MISS


def test_two_engines_of_one_place_both_find_what_either_stores(start_rig: StartRig, place: Path) -> None:
    rigs = [start_rig(place, num_chunks=2, chunk_size_bytes=SIZE_BYTES, negative_ttl_s=0.0) for _ in range(2)]
    key, other = rigs[0].key(1), rigs[0].key(2)
    chunk = rigs[0].tier.fill(0, seed=1)
    assert rigs[0].store([key], [0]).outcomes == [0]
    assert rigs[1].store([other], [0]).outcomes == [0]
    rigs[1].ask([key])
    assert rigs[1].engine.lookup(key) == HIT
    assert rigs[1].load([key], [1]).outcomes == [0]
    assert rigs[1].tier.row(1) == chunk
    rigs[0].ask([other])
    assert rigs[0].engine.lookup(other) == HIT
