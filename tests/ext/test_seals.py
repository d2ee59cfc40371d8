"""Seals of one implementation are those of the other: written by either, verified and found out by either."""

from __future__ import annotations

import errno
import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from seal_parts import flip_bit, read_seal, seal_of

import kvfs_ext
from kvfs import fallback
from kvfs.jobs import EngineLike

CHUNKS = 3
WAIT_S = 30.0
IMPLEMENTATIONS = {"extension": kvfs_ext, "fallback": fallback}
ORDERS = pytest.mark.parametrize(
    ("writer", "reader"), [("extension", "fallback"), ("fallback", "extension")], ids="-to-".join
)

Start = Callable[..., tuple[EngineLike, memoryview]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts an engine of either implementation on one namespace."""
    engines: list[EngineLike] = []

    def make(name: str, size_bytes: int, **options: object) -> tuple[EngineLike, memoryview]:
        module: types.ModuleType = IMPLEMENTATIONS[name]
        memory = memoryview(bytearray(CHUNKS * size_bytes))
        buffer = memory.cast("B", (CHUNKS, size_bytes))
        engine: EngineLike = module.Engine(str(tmp_path / "ns"), buffer, 2, 2, index_mode="shared", **options)
        engines.append(engine)
        return engine, memory

    yield make
    for engine in engines:
        engine.close()


def _keys() -> list[bytes]:
    draw = random.Random(5)
    return [draw.randbytes(32) + bytes(4) for _ in range(CHUNKS)]


def _path(base: Path, key: bytes) -> Path:
    digits = key[:-4].hex()
    return base / "ns" / digits[:3] / f"{digits[3:5]}_g0" / f"{digits}.bin"


def _run(engine: EngineLike, kind: str, keys: list[bytes]) -> list[int]:
    getattr(engine, f"submit_{kind}")(1, b"".join(keys), 36, list(range(len(keys))))
    assert engine.drain(WAIT_S)
    (completion,) = engine.poll()
    return completion.outcomes


@ORDERS
@pytest.mark.parametrize("checksum", ["auto", "require"])
@pytest.mark.parametrize("size_bytes", [1, 511, 4096, 5000, 22_740, 262_144, 1_000_003, 3 << 20])
def test_chunks_of_one_verify_in_the_other(
    start: Start, tmp_path: Path, writer: str, reader: str, checksum: str, size_bytes: int
) -> None:
    written, source = start(writer, size_bytes)
    source[:] = random.Random(size_bytes).randbytes(CHUNKS * size_bytes)
    keys = _keys()
    assert _run(written, "store", keys) == [0] * CHUNKS
    read, target = start(reader, size_bytes, checksum=checksum)
    assert _run(read, "load", keys) == [0] * CHUNKS
    assert target == source
    assert read.stats()["verified_loads"] == CHUNKS
    # To either a sealed file is a duplicate.
    assert _run(read, "store", keys) == [0] * CHUNKS
    assert read.stats()["duplicate_stores"] == CHUNKS


@ORDERS
def test_damage_to_chunks_of_one_is_found_out_by_the_other(
    start: Start, tmp_path: Path, writer: str, reader: str
) -> None:
    size_bytes = 300_000
    written, source = start(writer, size_bytes)
    source[:] = random.Random(6).randbytes(CHUNKS * size_bytes)
    keys = _keys()
    assert _run(written, "store", keys) == [0] * CHUNKS
    flip_bit(_path(tmp_path, keys[1]), size_bytes - 1)
    read, target = start(reader, size_bytes)
    assert _run(read, "load", keys) == [0, errno.EBADMSG, 0]
    assert target[:size_bytes] == source[:size_bytes]
    assert target[2 * size_bytes :] == source[2 * size_bytes :]
    assert read.stats()["damaged_chunks"] == 1
    assert not _path(tmp_path, keys[1]).exists()


@pytest.mark.parametrize("size_bytes", [1, 4096, 5000, 1_000_003])
def test_both_write_the_same_attributes(start: Start, tmp_path: Path, size_bytes: int) -> None:
    content = random.Random(7).randbytes(CHUNKS * size_bytes)
    keys = _keys()
    for name in IMPLEMENTATIONS:
        engine, memory = start(name, size_bytes)
        memory[:] = content
        assert _run(engine, "store", keys) == [0] * CHUNKS
        for number, key in enumerate(keys):
            chunk = content[number * size_bytes : (number + 1) * size_bytes]
            assert read_seal(_path(tmp_path, key)) == seal_of(key, chunk)
            _path(tmp_path, key).unlink()
