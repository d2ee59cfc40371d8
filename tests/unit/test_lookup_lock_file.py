"""Lock files that are removed or cannot be used, namespaces that cannot be written, marks of snapshots."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that, small_buffer

from kvfs.jobs import HIT, RETRY, IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, StartRig


def _replace(lock: Path) -> None:
    other = lock.with_name("another")
    other.touch()
    other.replace(lock)


@pytest.mark.parametrize("harm", [Path.unlink, _replace], ids=["removed", "replaced"])
def test_owner_whose_lock_file_has_gone_shares(
    start_rig: StartRig, storage: Path, harm: Callable[[Path], None]
) -> None:
    owner = start_rig(storage, index_mode="owner")
    assert owner.await_stats(scan_complete=1)
    harm(storage / "kvfs.lock")
    assert await_that(lambda: owner.engine.lookup(owner.key(1)) == RETRY)
    assert owner.engine.stats()["owner"] == 0
    # Those that come later see that it is there.
    later = start_rig(storage)
    assert later.engine.stats()["owner"] == 0
    owner.engine.close()
    later.engine.close()
    assert start_rig(storage, index_mode="owner").engine.stats()["owner"] == 1


@pytest.mark.parametrize("lock", ["directory", "dangling-link", "link"])
def test_lock_file_that_cannot_be_opened_makes_the_engine_share(
    io: IoBackend, start_rig: StartRig, storage: Path, lock: str
) -> None:
    base = storage / "ns"
    base.mkdir()
    target = storage / "target"
    match lock:
        case "directory":
            (base / "kvfs.lock").mkdir()
        case "dangling-link":
            (base / "kvfs.lock").symlink_to(target)
        case "link":
            target.write_bytes(b"not ours")
            (base / "kvfs.lock").symlink_to(target)
    rig = start_rig(base)
    key = rig.key(1)
    assert rig.await_stats(scan_complete=1, owner=0)
    assert rig.engine.lookup(key) == RETRY
    rig.store([key], [0])
    assert rig.engine.lookup(key) == HIT
    with pytest.raises(OSError, match=r".+"):
        io.Engine(str(base), small_buffer(), 1, 1, index_mode="owner")
    rig.engine.close()
    if lock == "link":
        assert target.read_bytes() == b"not ours"
    assert target.exists() == (lock == "link")


@pytest.mark.needs_root
@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_read_only_namespace_without_a_lock_file_is_shared_and_read(
    io: IoBackend, start_rig: StartRig, mount: Mount, mode: str
) -> None:
    directory = mount("tmpfs", options="size=4m")
    key = b"k" * 36
    digits = key[:-4].hex()
    path = directory / digits[:3] / f"{digits[3:5]}_g{int.from_bytes(key[-4:], 'big')}" / f"{digits}.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(4096))
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
    rig = start_rig(directory, index_mode=mode)
    assert rig.await_stats(scan_complete=1, owner=0)
    assert rig.verdicts([key, rig.key(1)]) == [HIT, RETRY]
    assert rig.load([key], [0]).outcomes == [0]
    with pytest.raises(OSError, match=r".+"):
        io.Engine(str(directory), small_buffer(), 1, 1, index_mode="owner")


@pytest.mark.needs_root
def test_engine_leaves_its_file_system_free_to_become_read_only(start_rig: StartRig, mount: Mount) -> None:
    directory = mount("tmpfs", options="size=4m")
    rigs = [start_rig(directory, index_mode=mode) for mode in ("owner", "shared")]
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
    assert [rig.store([rig.key(1)], [0]).outcomes for rig in rigs] == [[errno.EROFS], [errno.EROFS]]


SNAPSHOT = b"KVFSIDX2\1" + bytes(range(1, 120))


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_start_takes_the_mark_of_a_whole_snapshot_away(start_rig: StartRig, storage: Path, mode: str) -> None:
    path = storage / "kvfs.index"
    path.write_bytes(SNAPSHOT)
    before = path.stat()
    rig = start_rig(storage, index_mode=mode)
    assert path.read_bytes() == SNAPSHOT[:8] + b"\0" + SNAPSHOT[9:]
    # In place: who reads it meanwhile sees the same file.
    assert path.stat().st_ino == before.st_ino
    assert rig.await_stats(scan_complete=1, index_keys=0)


@pytest.mark.parametrize("mode", ["auto", "shared"])
@pytest.mark.parametrize(
    "found", ["empty", "short", "other-magic", "link", "dangling-link", "directory", "fifo"]
)
def test_start_leaves_what_is_no_snapshot_alone(
    start_rig: StartRig, storage: Path, mode: str, found: str
) -> None:
    base = storage / "ns"
    base.mkdir()
    path, target = base / "kvfs.index", storage / "target"
    contents = {"short": SNAPSHOT[:8], "other-magic": b"k" + SNAPSHOT[1:], "link": SNAPSHOT, "empty": b""}
    match found:
        case "link":
            target.write_bytes(SNAPSHOT)
            path.symlink_to(target)
        case "dangling-link":
            path.symlink_to(target)
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            path.write_bytes(contents[found])
    rig = start_rig(base, index_mode=mode)
    assert rig.await_stats(scan_complete=1, index_keys=0)
    if found in contents:
        assert path.read_bytes() == contents[found]
    assert target.exists() == (found == "link")
    rig.store([rig.key(1)], [0])
    assert rig.engine.lookup(rig.key(1)) == HIT
