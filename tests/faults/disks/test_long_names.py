"""Names that are too long for the file system: the same errors from both engines, and nothing left."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import HIT, IoBackend

if TYPE_CHECKING:
    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root


def test_longest_hash_round_trips_and_longer_ones_fail_alone(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=2)
    chunk = rig.tier.fill(0, seed=1)
    # 2 digits a byte and ".bin": 204 of 255 characters, so that there is room for a temporary's name.
    fits = rig.key(1, hash_size_bytes=100)
    assert rig.store([fits], [0]).outcomes == [0]
    assert rig.load([fits], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    for hash_size_bytes in (126, 251):
        key = rig.key(2, hash_size_bytes=hash_size_bytes)
        assert rig.store([key], [0]).outcomes == [errno.ENAMETOOLONG]
        assert rig.load([key], [1]).outcomes == [errno.ENAMETOOLONG]
        assert rig.lookup([key]).outcomes == [errno.ENAMETOOLONG]
        rig.ask([key])
        assert rig.engine.lookup(key) != HIT
    assert rig.files() == [rig.path(fits)]


def test_hash_whose_temporary_name_is_too_long_is_whole_or_absent(start_rig: StartRig, place: Path) -> None:
    rig = start_rig(place, num_chunks=2)
    key = rig.key(1, hash_size_bytes=125)
    outcome = rig.store([key], [0]).outcomes[0]
    # Where a file can be written without a name it needs none; elsewhere it cannot be had.
    assert outcome in (0, errno.ENAMETOOLONG)
    assert rig.lookup([key]).outcomes == [errno.ENOENT if outcome else 0]
    assert rig.files() == ([] if outcome else [rig.path(key)])


@pytest.mark.parametrize(
    "name", ["x" * 256, "x/" * 2100 + "x", "x" * 300 + "/x"], ids=["name", "path", "directory"]
)
def test_batches_over_names_that_are_too_long(io: IoBackend, place: Path, name: str) -> None:
    path = f"{place}/{name}"
    assert io.batch_lookup([path, str(place)]) == [False, False]
    good = str(place / "good.bin")
    with pytest.raises(OSError, match="too long") as caught:
        io.batch_store([f"{good}.tmp", f"{place}/t"], [good, path], [bytes(4096)] * 2)
    assert (caught.value.errno, caught.value.filename) == (errno.ENAMETOOLONG, path)
    assert caught.value.num_succeeded == 1  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="too long") as caught:
        io.batch_load([good, path], [bytearray(4096), bytearray(4096)])
    assert (caught.value.errno, caught.value.filename) == (errno.ENAMETOOLONG, path)
    assert [entry.name for entry in place.iterdir()] == ["good.bin"]
