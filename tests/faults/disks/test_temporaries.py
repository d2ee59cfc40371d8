"""Several writers of one key on each file system, and writers that are killed before they publish."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuse_mount import FuseMount
from polling import await_that
from writer_process import FORK, PRINT, WRITER, assert_stored_once, numbered_path, result, start

if TYPE_CHECKING:
    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

SIZE_BYTES = 65536
PUBLISH = ("link", "rename", "rename2")


def _keys(count: int) -> list[bytes]:
    """Return the keys that a writer process stores."""
    return [number.to_bytes(32, "big") + bytes(4) for number in range(count)]


def _chunk(number: int) -> bytes:
    """Return what a writer process stores under a number."""
    return bytes([number % 256]) * SIZE_BYTES


def test_two_processes_storing_the_same_keys_keep_one_whole_file_each(place: Path) -> None:
    processes = [start(WRITER + PRINT, place, 40, SIZE_BYTES) for _ in range(2)]
    assert_stored_once(place, [result(process) for process in processes], 40, SIZE_BYTES)


def test_four_forks_of_one_process_storing_the_same_keys_keep_one_whole_file_each(place: Path) -> None:
    assert_stored_once(place, result(start(WRITER + FORK, place, 20, SIZE_BYTES)), 20, SIZE_BYTES)


def test_killed_writer_leaves_whole_chunks_and_its_temporaries_alone_are_removed(
    start_rig: StartRig, place: Path
) -> None:
    count = 150
    process = start(WRITER + PRINT, place, count, SIZE_BYTES)
    assert await_that(lambda: numbered_path(place, 2).exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    published = list(place.rglob("*.bin"))
    assert len(published) < count
    for path in published:
        assert path.read_bytes() == _chunk(int(path.stem, 16))
    # Beside what the dead one left, one of a writer of another kind, who may be alive.
    foreign = Path(f"{numbered_path(place, 0)}_0123456789abcdef.tmp")
    foreign.write_bytes(b"in flight")
    rig = start_rig(place, num_chunks=1, chunk_size_bytes=SIZE_BYTES)
    assert rig.await_stats(scan_complete=1)
    assert rig.store(_keys(count), [0] * count).outcomes == [0] * count
    assert rig.lookup(_keys(count)).outcomes == [0] * count
    assert list(place.rglob("*.tmp")) == [foreign]
    assert foreign.read_bytes() == b"in flight"


def test_writer_killed_between_write_and_publish_leaves_a_miss(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount
) -> None:
    # Not by chance: every way to publish waits, and ends undone when its caller is killed.
    fuse.rule("hold", *PUBLISH, interruptible=True)
    process = start(WRITER + PRINT, fuse_place, 8, SIZE_BYTES)
    # Of its four threads three store. One publishes, and the kernel lets the others wait for that directory.
    shown = fuse.shown(fuse_place)
    assert await_that(lambda: [path.stat().st_size for path in shown.rglob("*.tmp")] == [SIZE_BYTES] * 3)
    assert fuse.await_held(1, *PUBLISH)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert await_that(lambda: fuse.held() == 0)
    fuse.clear()
    # Written to the end, and yet no chunks.
    left = sorted(fuse_place.rglob("*.tmp"))
    assert [path.stat().st_size for path in left] == [SIZE_BYTES] * 3
    assert list(fuse_place.rglob("*.bin")) == []
    rig = start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    assert rig.await_stats(scan_complete=1, reclaimed_temporaries=3)
    assert rig.lookup(_keys(8)).outcomes == [errno.ENOENT] * 8
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store(_keys(8), [0] * 8).outcomes == [0] * 8
    assert rig.load(_keys(1), [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert list(fuse_place.rglob("*.tmp")) == []


@pytest.mark.parametrize("refused", ["rename-noreplace", "hard-links", "both"])
def test_two_writers_where_publishing_is_poorer_keep_one_whole_file(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, refused: str
) -> None:
    if refused != "hard-links":
        fuse.rule("fail", "rename2", code=errno.EINVAL)
    if refused != "rename-noreplace":
        fuse.rule("fail", "link", code=errno.EPERM)
    rigs = [start_rig(fuse_place, num_chunks=2, chunk_size_bytes=SIZE_BYTES) for _ in range(2)]
    chunk = rigs[0].tier.fill(0, seed=1)
    assert rigs[1].tier.fill(0, seed=1) == chunk
    keys = _keys(30)
    jobs = [rig.submit("store", keys, [0] * 30) for rig in rigs]
    assert [rig.finish()[job].outcomes for rig, job in zip(rigs, jobs, strict=True)] == [[0] * 30] * 2
    assert [numbered_path(fuse_place, number).read_bytes() for number in range(30)] == [chunk] * 30
    assert list(fuse_place.rglob("*.tmp")) == []
