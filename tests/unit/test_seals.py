"""Seals: what a store writes beside a chunk, and loads of chunks that are whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from seal_parts import CHECKSUM, KEY, read_seal, seal_of, write_seal

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

SIZES_BYTES = [1, 511, 4096, 5000, 262_144, 3 << 20]


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
@pytest.mark.parametrize("chunk_size_bytes", SIZES_BYTES)
def test_store_of_any_size_seals_and_load_verifies(
    start_rig: StartRig, storage: Path, chunk_size_bytes: int, use_o_direct: bool, io_engine: str
) -> None:
    rig = start_rig(
        storage,
        num_chunks=4,
        chunk_size_bytes=chunk_size_bytes,
        use_o_direct=use_o_direct,
        io_engine=io_engine,
    )
    assert rig.engine.stats()["seals"] == 1
    keys = [rig.key(number) for number in range(2)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(2)]
    assert rig.store(keys, [0, 1]).outcomes == [0, 0]
    for key, chunk in zip(keys, chunks, strict=True):
        assert rig.path(key).read_bytes() == chunk
        assert read_seal(rig.path(key)) == seal_of(key, chunk)
    assert rig.load(keys, [2, 3]).outcomes == [0, 0]
    assert [rig.tier.row(2), rig.tier.row(3)] == chunks
    stats = rig.engine.stats()
    assert (stats["verified_loads"], stats["unverified_loads"], stats["damaged_chunks"]) == (2, 0, 0)


@pytest.mark.parametrize(
    ("chunk", "checksum"),
    [
        pytest.param(b"123456789", "e3069283", id="digits"),
        pytest.param(bytes(32), "8a9136aa", id="zeros"),
        pytest.param(b"\xff" * 32, "62a8ab43", id="ones"),
        pytest.param(bytes(range(32)), "46dd794e", id="ascending"),
        pytest.param(bytes(range(31, -1, -1)), "113fdb5c", id="descending"),
    ],
)
def test_store_checksum_is_the_published_one(
    start_rig: StartRig, storage: Path, chunk: bytes, checksum: str
) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=len(chunk))
    rig.tier.memory[: len(chunk)] = chunk
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert os.getxattr(rig.path(rig.key(1)), CHECKSUM).hex() == checksum


@pytest.mark.parametrize("hash_size_bytes", [1, 23, 24, 25, 32, 64])
@pytest.mark.parametrize("group", [0, 7, 2**32 - 1])
def test_store_key_attribute_is_the_keys_end(
    start_rig: StartRig, storage: Path, hash_size_bytes: int, group: int
) -> None:
    rig = start_rig(storage)
    key = rig.key(1, hash_size_bytes, group)
    assert rig.store([key], [0]).outcomes == [0]
    assert os.getxattr(rig.path(key), KEY) == key[-28:]
    assert rig.load([key], [1]).outcomes == [0]
    assert rig.engine.stats()["verified_loads"] == 1


@pytest.mark.parametrize("offset_bytes", [1, 512])
def test_load_into_unaligned_rows_verifies(start_rig: StartRig, storage: Path, offset_bytes: int) -> None:
    rig = start_rig(storage, num_chunks=2, chunk_size_bytes=12_800, offset_bytes=offset_bytes)
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert read_seal(rig.path(rig.key(1))) == seal_of(rig.key(1), chunk)
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert rig.engine.stats()["verified_loads"] == 1


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
def test_jobs_of_many_chunks_are_sealed_and_verified_one_by_one(
    start_rig: StartRig, storage: Path, io_engine: str
) -> None:
    count = 24
    rig = start_rig(
        storage, num_chunks=2 * count, chunk_size_bytes=300_000, threads=(4, 4), io_engine=io_engine
    )
    keys = [rig.key(number) for number in range(count)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(count)]
    assert rig.store(keys, range(count)).outcomes == [0] * count
    assert len({os.getxattr(rig.path(key), CHECKSUM) for key in keys}) == count
    assert rig.load(keys, range(count, 2 * count)).outcomes == [0] * count
    assert [rig.tier.row(number) for number in range(count, 2 * count)] == chunks
    assert rig.engine.stats()["verified_loads"] == count


@pytest.mark.parametrize(
    ("part", "verified", "unverified"),
    [(CHECKSUM, 1, 0), (KEY, 0, 1), (None, 0, 1)],
    ids=["checksum", "key", "nothing"],
)
def test_load_of_a_seal_in_part_verifies_that_part(
    start_rig: StartRig, storage: Path, part: str | None, verified: int, unverified: int
) -> None:
    rig = start_rig(storage)
    key = rig.key(1)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([key], [0])
    whole = read_seal(rig.path(key))
    write_seal(rig.path(key), {} if part is None else {part: whole[part]})
    assert rig.load([key], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    stats = rig.engine.stats()
    assert (stats["verified_loads"], stats["unverified_loads"]) == (verified, unverified)


def test_load_with_other_attributes_beside_the_seal_verifies(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    rig.store([rig.key(1)], [0])
    for number in range(10):
        os.setxattr(rig.path(rig.key(1)), f"user.other.{number}", bytes(30))
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.engine.stats()["verified_loads"] == 1


def test_store_of_what_is_there_leaves_file_and_seal(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    key = rig.key(1)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([key], [0])
    before = rig.path(key).stat()
    rig.tier.fill(1, seed=2)
    completion = rig.store([key], [1])
    assert (completion.outcomes, completion.bytes_moved) == ([0], 0)
    after = rig.path(key).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert read_seal(rig.path(key)) == seal_of(key, chunk)
    assert rig.engine.stats()["duplicate_stores"] == 1


def test_load_that_failed_counts_as_neither_verified_nor_unverified(
    start_rig: StartRig, storage: Path
) -> None:
    rig = start_rig(storage)
    rig.place(rig.key(1)).write_bytes(b"short")
    assert rig.load([rig.key(1), rig.key(2)], [0, 1]).outcomes == [errno.EBADMSG, errno.ENOENT]
    stats = rig.engine.stats()
    assert (stats["verified_loads"], stats["unverified_loads"], stats["damaged_chunks"]) == (0, 0, 0)


@pytest.mark.parametrize("checksum", ["auto", "require", "off"])
def test_start_leaves_nothing_of_its_probe_behind(start_rig: StartRig, storage: Path, checksum: str) -> None:
    rig = start_rig(storage, checksum=checksum)
    assert rig.engine.stats()["seals"] == int(checksum != "off")
    assert [path.name for path in storage.rglob("*")] == ["kvfs.lock"]
    assert read_seal(storage) == {}


@pytest.mark.parametrize(
    ("checksum", "error"),
    [
        pytest.param("always", ValueError, id="unknown"),
        pytest.param("", ValueError, id="empty"),
        pytest.param("AUTO", ValueError, id="upper-case"),
        pytest.param(True, TypeError, id="bool"),
        pytest.param(None, TypeError, id="none"),
        pytest.param(b"auto", TypeError, id="bytes"),
    ],
)
def test_start_with_a_bad_checksum_option_raises_and_leaves_nothing(
    io: IoBackend, tmp_path: Path, checksum: object, error: type[Exception]
) -> None:
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    with pytest.raises(error, match="checksum") as caught:
        io.Engine(str(tmp_path / "ns"), buffer, 1, 1, checksum=checksum)  # type: ignore[arg-type]
    if error is ValueError:
        assert caught.match(r"must be one of .*auto.*require.*off.*, got")
    assert not (tmp_path / "ns").exists()
    buffer.release()
    memory.extend(b"would raise BufferError")
