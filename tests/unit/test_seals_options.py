"""What `checksum` changes: files without a seal, file systems without attributes, what is said about it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from seal_parts import CHECKSUM, KEY, flip_bit, read_seal, seal_of, write_seal

from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.jobs import HIT, MISS, RETRY, IoBackend
from kvfs.paths import Namespace

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, Rig, StartRig


def _place_foreign(rig: Rig, number: int) -> bytes:
    """Put a chunk where a writer without seals would, and return it."""
    chunk = rig.tier.fill(0, seed=number)
    rig.place(rig.key(number)).write_bytes(chunk)
    return chunk


def test_auto_file_of_another_writer_is_served_unverified(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    chunk = _place_foreign(rig, 1)
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    stats = rig.engine.stats()
    assert (stats["verified_loads"], stats["unverified_loads"]) == (0, 1)
    # It is as good as a sealed one to a store.
    assert rig.store([rig.key(1)], [0]).bytes_moved == 0
    assert read_seal(rig.path(rig.key(1))) == {}


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize("part", [None, CHECKSUM, KEY], ids=["nothing", "checksum", "key"])
@pytest.mark.parametrize("chunk_size_bytes", [4096, 5000, 262_144])
def test_require_file_without_a_whole_seal_is_a_miss_that_a_store_heals(
    start_rig: StartRig, storage: Path, chunk_size_bytes: int, part: str | None, io_engine: str
) -> None:
    rig = start_rig(storage, checksum="require", chunk_size_bytes=chunk_size_bytes, io_engine=io_engine)
    key, path = rig.key(1), rig.path(rig.key(1))
    chunk = _place_foreign(rig, 1)
    if part is not None:
        write_seal(path, {part: seal_of(key, chunk)[part]})
    rig.ask([key])
    # A lookup does not open files.
    assert rig.engine.lookup(key) == HIT
    before = path.stat()
    completion = rig.load([key], [1])
    assert completion.outcomes == [errno.ENODATA]
    assert "failed for chunk 1 of 1 at " in completion.detail
    assert rig.engine.lookup(key) in (MISS, RETRY)
    assert path.stat().st_ino == before.st_ino
    stats = rig.engine.stats()
    assert [stats[name] for name in ("damaged_chunks", "removed_files", "unverified_loads")] == [0, 0, 0]
    assert rig.store([key], [0]).bytes_moved == chunk_size_bytes
    assert read_seal(path) == seal_of(key, chunk)
    assert rig.engine.lookup(key) == HIT
    assert rig.load([key], [2]).outcomes == [0]
    assert rig.tier.row(2) == chunk
    stats = rig.engine.stats()
    assert [stats[name] for name in ("healed_files", "duplicate_stores", "verified_loads")] == [1, 0, 1]
    assert len(rig.files()) == 1


def test_require_unsealed_file_in_a_job_costs_its_key_alone(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, checksum="require")
    keys = [rig.key(number) for number in range(3)]
    _place_foreign(rig, 1)
    chunk = rig.tier.fill(0, seed=7)
    assert rig.store([keys[0], keys[2]], [0, 0]).outcomes == [0, 0]
    assert rig.load(keys, [1, 2, 3]).outcomes == [0, errno.ENODATA, 0]
    assert rig.tier.row(1) == rig.tier.row(3) == chunk


def test_require_sealed_file_stays_a_duplicate(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, checksum="require")
    rig.store([rig.key(1)], [0])
    inode = rig.path(rig.key(1)).stat().st_ino
    assert rig.store([rig.key(1)], [0]).bytes_moved == 0
    assert rig.path(rig.key(1)).stat().st_ino == inode
    assert rig.engine.stats()["duplicate_stores"] == 1


def test_require_damaged_file_is_found_out(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, checksum="require")
    rig.store([rig.key(1)], [0])
    flip_bit(rig.path(rig.key(1)), 0)
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.EBADMSG]
    assert rig.files() == []


def test_off_neither_seals_nor_verifies(start_rig: StartRig, storage: Path) -> None:
    sealing = start_rig(storage, index_mode="shared")
    sealing.store([sealing.key(1)], [0])
    damaged = sealing.path(sealing.key(1))
    flip_bit(damaged, 0)
    rig = start_rig(storage, checksum="off", index_mode="shared")
    assert rig.engine.stats()["seals"] == 0
    assert rig.store([rig.key(2)], [0]).outcomes == [0]
    assert read_seal(rig.path(rig.key(2))) == {}
    assert rig.load([rig.key(1), rig.key(2)], [1, 2]).outcomes == [0, 0]
    assert rig.tier.row(1) == damaged.read_bytes()
    stats = rig.engine.stats()
    assert [stats[name] for name in ("verified_loads", "unverified_loads", "damaged_chunks")] == [0, 2, 0]


def test_engines_with_and_without_seals_share_a_namespace(start_rig: StartRig, storage: Path) -> None:
    off, auto = (start_rig(storage, checksum=name, index_mode="shared") for name in ("off", "auto"))
    chunks = [off.tier.fill(0, seed=1), auto.tier.fill(0, seed=2)]
    off.store([off.key(1)], [0])
    auto.store([auto.key(2)], [0])
    for rig in (off, auto):
        assert rig.load([rig.key(1), rig.key(2)], [1, 2]).outcomes == [0, 0]
        assert [rig.tier.row(1), rig.tier.row(2)] == chunks


@pytest.fixture
def without_attributes(mount: Mount) -> Path:
    """Return a file system without extended attributes of users."""
    directory = mount("ramfs")
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(directory, CHECKSUM, bytes(4))
    return directory


@pytest.mark.needs_root
@pytest.mark.parametrize("io_engine", ["auto", "psync"])
def test_auto_without_attributes_needs_root_stores_and_loads_unverified(
    start_rig: StartRig, without_attributes: Path, io_engine: str
) -> None:
    base = without_attributes / "ns"
    rig = start_rig(base, io_engine=io_engine)
    assert [path.name for path in base.iterdir()] == ["kvfs.lock"]
    assert rig.engine.stats()["seals"] == 0
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert rig.engine.stats()["unverified_loads"] == 1


@pytest.mark.needs_root
def test_require_without_attributes_needs_root_does_not_start(
    io: IoBackend, without_attributes: Path
) -> None:
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    base = without_attributes / "ns"
    with pytest.raises(OSError, match="require") as caught:
        io.Engine(str(base), buffer, 1, 1, checksum="require")
    assert caught.value.errno == errno.ENOTSUP
    assert caught.value.filename == str(base)
    # It has asked under its lock, and left nothing else.
    assert [path.name for path in base.iterdir()] == ["kvfs.lock"]
    buffer.release()
    memory.extend(b"would raise BufferError")


@pytest.mark.needs_root
@pytest.mark.parametrize("checksum", ["auto", "require"])
def test_read_only_file_system_needs_root_is_verified_and_keeps_what_is_damaged(
    start_rig: StartRig, mount: Mount, checksum: str
) -> None:
    directory = mount("tmpfs", options="size=4m")
    writer = start_rig(directory)
    keys = [writer.key(1), writer.key(2)]
    chunk = writer.tier.fill(0, seed=1)
    writer.store(keys, [0, 0])
    writer.engine.close()
    flip_bit(writer.path(keys[1]), 0)
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
    rig = start_rig(directory, checksum=checksum)
    assert rig.engine.stats()["seals"] == 1
    assert rig.load(keys, [1, 2]).outcomes == [0, errno.EBADMSG]
    assert rig.tier.row(1) == chunk
    stats = rig.engine.stats()
    assert [stats[name] for name in ("verified_loads", "damaged_chunks", "removed_files")] == [1, 1, 0]
    assert rig.path(keys[1]).exists()
    assert rig.engine.lookup(keys[1]) in (MISS, RETRY)


@pytest.mark.needs_root
def test_start_on_a_full_file_system_needs_root_still_verifies(start_rig: StartRig, mount: Mount) -> None:
    directory = mount("tmpfs", options="size=4m,nr_inodes=30")
    rig = start_rig(directory, index_mode="shared")
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    rig.engine.close()
    number = 0
    with contextlib.suppress(OSError):
        for number in range(40):
            (directory / f"filler {number}").touch()
    # It is full before they are all there.
    assert number < 39
    # Not a file of the probe's own finds room.
    full = start_rig(directory, index_mode="shared", checksum="require")
    assert full.engine.stats()["seals"] == 1
    assert full.load([rig.key(1)], [1]).outcomes == [0]
    assert full.tier.row(1) == chunk
    assert full.engine.stats()["verified_loads"] == 1
    assert full.store([rig.key(2)], [0]).outcomes == [errno.ENOSPC]
    assert list(directory.rglob("*.tmp")) == []


def _start_warnings(root: Path, caplog: pytest.LogCaptureFixture, **options: object) -> list[str]:
    """Start and end an engine as vLLM's adapter does, and return its warnings."""
    namespace = Namespace(str(root), {"model_name": "model"})
    buffer = memoryview(bytearray(8192)).cast("B", (2, 4096))
    caplog.clear()
    with caplog.at_level("WARNING", "kvfs"):
        config = TierConfig.from_options({"root_dir": str(root), **options})
        with ChunkEngine(namespace, buffer, config):
            pass
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.needs_root
def test_chunk_engine_without_attributes_needs_root_warns_once_unless_off(
    without_attributes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_attributes.chmod(0o700)
    (warning,) = _start_warnings(without_attributes / "root", caplog)
    assert "no checksums" in warning
    assert "set checksum to 'off'" in warning
    assert _start_warnings(without_attributes / "root", caplog, checksum_blocks=False) == []
    with pytest.raises(OSError, match="require") as caught:
        _start_warnings(without_attributes / "root", caplog, checksum="require")
    assert caught.value.errno == errno.ENOTSUP


def test_chunk_engine_with_seals_says_nothing(storage: Path, caplog: pytest.LogCaptureFixture) -> None:
    for checksum in ("auto", "require", "off"):
        assert _start_warnings(storage / "root", caplog, checksum=checksum) == []
