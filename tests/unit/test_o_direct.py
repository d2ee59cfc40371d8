"""O_DIRECT: the bytes are right whatever is aligned or refused, and leaving it is counted."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from system_tools import MKFS

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, StartRig

COUNT = 4


def _supports_o_direct(directory: Path) -> bool:
    """Tell whether aligned direct writes work there, by trying one."""
    page = mmap.mmap(-1, 4096)
    path = directory / "probe"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        return os.pwrite(fd, page, 0) == 4096
    except OSError:
        return False
    finally:
        os.close(fd)
        path.unlink()


@pytest.mark.parametrize("offset_bytes", [0, 1, 512], ids=lambda offset: f"offset-{offset}")
@pytest.mark.parametrize("chunk_size_bytes", [1, 5000, 512, 4096, 12800, 1 << 20])
@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_engine_round_trip_any_alignment_returns_the_bytes(
    start_rig: StartRig, storage: Path, use_o_direct: bool, chunk_size_bytes: int, offset_bytes: int
) -> None:
    direct_works = _supports_o_direct(storage)
    rig = start_rig(
        storage,
        num_chunks=2 * COUNT,
        chunk_size_bytes=chunk_size_bytes,
        use_o_direct=use_o_direct,
        offset_bytes=offset_bytes,
    )
    keys = [rig.key(number) for number in range(COUNT)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(COUNT)]
    assert rig.store(keys, range(COUNT)).outcomes == [0] * COUNT
    assert [rig.path(key).read_bytes() for key in keys] == chunks
    assert rig.load(keys, range(COUNT, 2 * COUNT)).outcomes == [0] * COUNT
    assert [rig.tier.row(number) for number in range(COUNT, 2 * COUNT)] == chunks
    aligned = direct_works and chunk_size_bytes % 4096 == 0 and offset_bytes == 0
    if aligned or not use_o_direct:
        assert rig.engine.stats()["direct_fallbacks"] == 0


def test_engine_odd_chunk_size_counts_every_fallback(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, chunk_size_bytes=5000)
    keys = [rig.key(number) for number in range(COUNT)]
    rig.store(keys, range(COUNT))
    assert rig.engine.stats()["direct_fallbacks"] == COUNT
    rig.load(keys, range(COUNT))
    assert rig.engine.stats()["direct_fallbacks"] == 2 * COUNT


@pytest.mark.parametrize("offset_bytes", [0, 1, 512], ids=lambda offset: f"offset-{offset}")
@pytest.mark.parametrize("size_bytes", [1, 5000, 512, 4096, 1 << 20])
@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_batch_round_trip_any_alignment_returns_the_bytes(
    io: IoBackend, storage: Path, use_o_direct: bool, size_bytes: int, offset_bytes: int
) -> None:
    memory = mmap.mmap(-1, 2 * (size_bytes + 4096))
    source = memoryview(memory)[offset_bytes : offset_bytes + size_bytes]
    target = memoryview(memory)[size_bytes + 4096 - offset_bytes :][:size_bytes]
    source[:] = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    path = str(storage / "chunk")
    io.batch_store([f"{path}.tmp"], [path], [source], use_o_direct)
    io.batch_load([path], [target], use_o_direct)
    assert target == source
    assert [path.name for path in storage.iterdir()] == ["chunk"]


@pytest.mark.needs_root
def test_refused_at_open_needs_root_goes_on_buffered_and_stops_trying(
    start_rig: StartRig, mount: Mount
) -> None:
    directory = mount("ramfs")
    if _supports_o_direct(directory):
        pytest.skip("this kernel's ramfs accepts O_DIRECT")
    rig = start_rig(directory, chunk_size_bytes=4096)
    for number in range(COUNT):
        chunk = rig.tier.fill(0, seed=number)
        assert rig.store([rig.key(number)], [0]).outcomes == [0]
        assert rig.load([rig.key(number)], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    assert rig.engine.stats()["direct_fallbacks"] == 1
    assert list(directory.rglob("*.tmp")) == []


@pytest.fixture
def loop_device_4k(tmp_path: Path) -> Iterator[str]:
    """Yield a loop device with sectors of 4 KiB that carries an ext4."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    command = ["losetup", "--find", "--show", "--sector-size", "4096", "--direct-io=on", str(image)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    if made.returncode != 0:
        pytest.skip(f"this system gives no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    subprocess.run([MKFS, "-q", "-b", "4096", device], check=True, timeout=30)
    yield device
    subprocess.run(["losetup", "--detach", device], check=True, timeout=30)


@pytest.mark.needs_root
def test_refused_at_transfer_needs_root_goes_on_buffered_and_tries_again(
    loop_device_4k: str, mount: Mount, start_rig: StartRig
) -> None:
    directory = mount("ext4", source=loop_device_4k)
    # Aligned for the smallest sectors but not for these: open succeeds, the transfer is refused.
    rig = start_rig(directory, num_chunks=2, chunk_size_bytes=512 * 9)
    chunk = rig.tier.fill(0, seed=1)
    for number in range(COUNT):
        assert rig.store([rig.key(number)], [0]).outcomes == [0]
        assert rig.load([rig.key(number)], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    # A misaligned refusal says nothing about the file system, so each one is tried.
    assert rig.engine.stats()["direct_fallbacks"] == 2 * COUNT
