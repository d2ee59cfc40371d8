"""Stores of large chunks, which have a way of their own through the extension's ring: the same outcomes."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import until_admitted
from system_tools import MKFS

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, StartRig

# From here on stores go through the ring, several of a thread in flight.
LARGE = 256 << 10
MIB = 1 << 20
IO_ENGINES = pytest.mark.parametrize("io_engine", ["auto", "psync"])


@IO_ENGINES
@pytest.mark.parametrize(
    ("size", "offset_bytes", "is_direct"),
    [
        pytest.param(LARGE, 0, True, id="aligned"),
        pytest.param(LARGE + 4096, 0, True, id="aligned-odd-number-of-pages"),
        pytest.param(LARGE, 64, False, id="misaligned-buffer"),
        pytest.param(LARGE + 1, 0, False, id="odd-size"),
        pytest.param(3 * MIB, 0, True, id="3-MiB"),
    ],
)
def test_chunks_come_back_whole_in_private_files(
    start_rig: StartRig, storage: Path, io_engine: str, size: int, offset_bytes: int, is_direct: bool
) -> None:
    rows = 12
    rig = start_rig(
        storage,
        num_chunks=2 * rows,
        chunk_size_bytes=size,
        offset_bytes=offset_bytes,
        io_engine=io_engine,
    )
    keys = [rig.key(number) for number in range(rows)]
    chunks = [rig.tier.fill(row, seed=row) for row in range(rows)]
    stored = rig.store(keys, list(range(rows)))
    assert (stored.outcomes, stored.bytes_moved) == ([0] * rows, rows * size)
    for key, chunk in zip(keys, chunks, strict=True):
        assert rig.path(key).read_bytes() == chunk
        assert rig.path(key).stat().st_mode & 0o777 == 0o600
    # Reserved space is used up, not left behind it.
    assert all(rig.path(key).stat().st_blocks * 512 < size + 2 * 4096 for key in keys)
    assert rig.load(keys, list(range(rows, 2 * rows))).outcomes == [0] * rows
    assert [rig.tier.row(rows + row) for row in range(rows)] == chunks
    fallbacks = rig.engine.stats()["direct_fallbacks"]
    assert (fallbacks == 0) == is_direct or not _takes_o_direct(storage)
    assert rig.files() == sorted(rig.path(key) for key in keys)


@IO_ENGINES
def test_what_lies_at_the_place_decides(start_rig: StartRig, storage: Path, io_engine: str) -> None:
    rig = start_rig(storage, num_chunks=2, chunk_size_bytes=LARGE, io_engine=io_engine)
    chunk = rig.tier.fill(0, seed=3)
    keys = [rig.key(number) for number in range(7)]
    same, short, long, link, fifo, directory, absent = [rig.path(key) for key in keys]
    for path in (same, short, long, link, fifo, directory, absent):
        path.parent.mkdir(parents=True)
    elsewhere = storage / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    same.write_bytes(b"s" * LARGE)
    short.write_bytes(b"s" * (LARGE - 1))
    long.write_bytes(b"l" * (LARGE + 1))
    link.symlink_to(elsewhere)
    os.mkfifo(fifo)
    directory.mkdir()
    completion = rig.store(keys, [0] * 7)
    assert completion.outcomes == [0, 0, 0, 0, 0, errno.EISDIR, 0]
    assert completion.bytes_moved == 5 * LARGE
    assert same.read_bytes() == b"s" * LARGE
    for path in (short, long, link, fifo, absent):
        assert path.is_file()
        assert not path.is_symlink()
        assert path.read_bytes() == chunk
    assert elsewhere.read_bytes() == b"not ours"
    stats = rig.engine.stats()
    assert (stats["duplicate_stores"], stats["healed_files"]) == (1, 4)
    assert list(storage.rglob("*.tmp")) == []


@IO_ENGINES
def test_rows_outside_the_buffer_fail_alone(start_rig: StartRig, tmp_path: Path, io_engine: str) -> None:
    rig = start_rig(tmp_path, num_chunks=2, chunk_size_bytes=LARGE, io_engine=io_engine)
    keys = [rig.key(number) for number in range(5)]
    assert rig.store(keys, [0, 2, 1, -1, 0]).outcomes == [0, errno.EINVAL, 0, errno.EINVAL, 0]
    assert rig.lookup(keys).outcomes == [0, errno.ENOENT, 0, errno.ENOENT, 0]


@IO_ENGINES
def test_same_key_many_times_in_one_job_keeps_one_whole_file(
    start_rig: StartRig, storage: Path, io_engine: str
) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=LARGE, io_engine=io_engine)
    chunk = rig.tier.fill(0, seed=5)
    assert rig.store([rig.key(1)] * 40, [0] * 40).outcomes == [0] * 40
    assert rig.path(rig.key(1)).read_bytes() == chunk
    assert rig.files() == [rig.path(rig.key(1))]


@pytest.mark.needs_root
@IO_ENGINES
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_full_disk_fails_keys_with_enospc_and_recovers(
    start_rig: StartRig, mount: Mount, tmp_path: Path, io_engine: str, kind: str
) -> None:
    options = "size=8m"
    image = tmp_path / "image"
    if kind == "ext4":
        options = "loop"
        with image.open("wb") as file:
            file.truncate(10 * MIB)
        subprocess.run([MKFS, "-q", "-F", "-m", "0", str(image)], check=True, timeout=30)
    directory = mount(kind, source=str(image) if kind == "ext4" else "none", options=options)
    rig = start_rig(directory / "namespace", num_chunks=2, chunk_size_bytes=LARGE, io_engine=io_engine)
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(60)]
    completion = rig.store(keys, [0] * 60)
    stored = [key for key, outcome in zip(keys, completion.outcomes, strict=True) if outcome == 0]
    assert set(completion.outcomes) == {0, errno.ENOSPC}
    assert len(stored) > 10
    assert completion.bytes_moved == len(stored) * LARGE
    assert "No space left" in completion.detail
    assert rig.files() == sorted(rig.path(key) for key in stored)
    for key in stored:
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    # What failed holds no space.
    for key in stored[:4]:
        rig.path(key).unlink()
    assert until_admitted(lambda: rig.store(stored[:4], [0] * 4)).outcomes == [0] * 4


@IO_ENGINES
def test_close_in_the_middle_leaves_whole_chunks_and_nothing_else(
    start_rig: StartRig, storage: Path, io_engine: str
) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=LARGE, io_engine=io_engine)
    chunk = rig.tier.fill(0, seed=9)
    keys = [rig.key(number) for number in range(200)]
    job_id = rig.submit("store", keys, [0] * 200)
    rig.engine.close()
    (completion,) = rig.engine.poll()
    assert completion.job_id == job_id
    assert set(completion.outcomes) <= {0, errno.ECANCELED}
    for key, outcome in zip(keys, completion.outcomes, strict=True):
        assert rig.path(key).exists() == (outcome == 0)
        assert outcome or rig.path(key).read_bytes() == chunk
    assert list(storage.rglob("*.tmp")) == []


def _takes_o_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        (directory / "probe").unlink(missing_ok=True)
    return True
