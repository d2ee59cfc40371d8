"""Right length, wrong bytes: damaged chunks are noticed, counted and removed, and nothing else suffers."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from seal_parts import CHECKSUM, KEY, flip_bit, overwrite, read_seal, seal_of, write_seal

from kvfs.jobs import HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

SIZE_BYTES = 12_288


def _damage_counts(rig: Rig) -> tuple[int, int]:
    stats = rig.engine.stats()
    return stats["damaged_chunks"], stats["removed_files"]


def _assert_found_out(rig: Rig, key: bytes) -> None:
    """Load a damaged chunk and see to it that it is gone, a miss, and can be stored again."""
    before = _damage_counts(rig)
    completion = rig.load([key], [1])
    assert completion.outcomes == [errno.EBADMSG]
    assert completion.bytes_moved in (0, rig.tier.chunk_size_bytes)
    assert "failed for chunk 1 of 1 at " in completion.detail
    assert _damage_counts(rig) == (before[0] + 1, before[1] + 1)
    assert not os.path.lexists(rig.path(key))
    assert rig.engine.lookup(key) in (MISS, RETRY)
    assert rig.load([key], [1]).outcomes == [errno.ENOENT]
    chunk = rig.tier.fill(0, seed=99)
    assert rig.store([key], [0]).bytes_moved == len(chunk)
    assert rig.engine.lookup(key) == HIT
    assert rig.load([key], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert _damage_counts(rig) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("chunk_size_bytes", [1, 511, 4096, 5000, 262_144, 3 << 20])
def test_load_with_a_flipped_bit_is_found_out(
    start_rig: StartRig, storage: Path, chunk_size_bytes: int, place: str, io_engine: str
) -> None:
    rig = start_rig(storage, num_chunks=2, chunk_size_bytes=chunk_size_bytes, io_engine=io_engine)
    rig.tier.fill(0, seed=1)
    rig.store([rig.key(1)], [0])
    offsets = {"first": 0, "middle": chunk_size_bytes // 2, "last": chunk_size_bytes - 1}
    flip_bit(rig.path(rig.key(1)), offsets[place])
    _assert_found_out(rig, rig.key(1))


DAMAGE: dict[str, Callable[[Path, bytes], object]] = {
    "zeroed-page": lambda path, _: overwrite(path, 4096, bytes(4096)),
    "zeroed": lambda path, chunk: overwrite(path, 0, bytes(len(chunk))),
    "pages-in-another-order": lambda path, chunk: overwrite(path, 0, chunk[4096:] + chunk[:4096]),
    "two-bytes-exchanged": lambda path, chunk: overwrite(path, 7, bytes([chunk[8], chunk[7]])),
    "content-of-another": lambda path, chunk: overwrite(path, 0, bytes(reversed(chunk))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_load_with_damaged_content_is_found_out(start_rig: StartRig, storage: Path, name: str) -> None:
    rig = start_rig(storage, num_chunks=2, chunk_size_bytes=SIZE_BYTES)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([rig.key(1)], [0])
    DAMAGE[name](rig.path(rig.key(1)), chunk)
    assert rig.path(rig.key(1)).stat().st_size == SIZE_BYTES
    _assert_found_out(rig, rig.key(1))


@pytest.mark.parametrize("same_content", [False, True], ids=["other-content", "same-content"])
def test_load_of_two_files_swapped_by_rename_finds_both_out(
    start_rig: StartRig, storage: Path, same_content: bool
) -> None:
    rig = start_rig(storage)
    keys = [rig.key(1), rig.key(2)]
    rig.tier.fill(0, seed=1)
    rig.tier.fill(1, seed=1 if same_content else 2)
    rig.store(keys, [0, 1])
    one, two = (rig.path(key) for key in keys)
    aside = storage / "aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    # Each is whole and has the right checksum: only its key gives it away.
    assert rig.load(keys, [2, 3]).outcomes == [errno.EBADMSG] * 2
    assert _damage_counts(rig) == (2, 2)
    assert rig.files() == []


def test_load_of_a_copy_under_another_group_is_found_out(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    one, other = rig.key(1, group=0), rig.key(1, group=1)
    rig.tier.fill(0, seed=1)
    rig.store([one], [0])
    rig.path(other).parent.mkdir(parents=True)
    os.link(rig.path(one), rig.path(other))
    assert rig.load([one, other], [1, 2]).outcomes == [0, errno.EBADMSG]
    assert rig.path(one).exists()
    assert not rig.path(other).exists()


def test_load_of_swapped_contents_finds_both_out(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage)
    keys = [rig.key(1), rig.key(2)]
    chunks = [rig.tier.fill(0, seed=1), rig.tier.fill(1, seed=2)]
    rig.store(keys, [0, 1])
    overwrite(rig.path(keys[0]), 0, chunks[1])
    overwrite(rig.path(keys[1]), 0, chunks[0])
    assert rig.load(keys, [2, 3]).outcomes == [errno.EBADMSG] * 2
    assert _damage_counts(rig) == (2, 2)


def _wrong_seals(key: bytes, chunk: bytes) -> dict[str, dict[str, bytes]]:
    right = seal_of(key, chunk)
    checksum, end = right[CHECKSUM], right[KEY]
    return {
        "checksum-alone-wrong": {CHECKSUM: bytes(4)},
        "key-alone-wrong": {KEY: bytes(28)},
        "checksum-little-endian": {**right, CHECKSUM: checksum[::-1]},
        "checksum-inverted": {**right, CHECKSUM: bytes(byte ^ 0xFF for byte in checksum)},
        "checksum-0-bytes": {**right, CHECKSUM: b""},
        "checksum-3-bytes": {**right, CHECKSUM: checksum[:3]},
        "checksum-5-bytes": {**right, CHECKSUM: checksum + b"\0"},
        "checksum-100-bytes": {**right, CHECKSUM: checksum + bytes(96)},
        "checksum-1000-bytes": {**right, CHECKSUM: checksum + bytes(996)},
        "key-0-bytes": {**right, KEY: b""},
        "key-27-bytes": {**right, KEY: end[1:]},
        "key-29-bytes": {**right, KEY: end + b"\0"},
        "key-whole": {**right, KEY: key},
        "key-100-bytes": {**right, KEY: end + bytes(72)},
        "key-of-another": {**right, KEY: end[:-5] + bytes([end[-5] ^ 1]) + end[-4:]},
        "key-of-another-group": {**right, KEY: end[:-1] + b"\1"},
    }


@pytest.mark.parametrize("name", _wrong_seals(bytes(36), b""))
def test_load_with_a_wrong_seal_is_found_out(start_rig: StartRig, storage: Path, name: str) -> None:
    rig = start_rig(storage, num_chunks=2)
    key = rig.key(1)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([key], [0])
    write_seal(rig.path(key), _wrong_seals(key, chunk)[name])
    _assert_found_out(rig, key)


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize(
    "bad", [{0}, {2}, {4}, {0, 4}, {1, 2, 3}, {0, 1, 2, 3, 4}], ids=lambda bad: "-".join(map(str, bad))
)
@pytest.mark.parametrize("chunk_size_bytes", [4096, 262_144])
def test_load_with_damaged_chunks_in_a_job_serves_all_others(
    start_rig: StartRig, storage: Path, chunk_size_bytes: int, bad: set[int], io_engine: str
) -> None:
    rig = start_rig(storage, num_chunks=10, chunk_size_bytes=chunk_size_bytes, io_engine=io_engine)
    keys = [rig.key(number) for number in range(5)]
    chunks = [rig.tier.fill(number, seed=number) for number in range(5)]
    rig.store(keys, range(5))
    for number in bad:
        flip_bit(rig.path(keys[number]), chunk_size_bytes - 1)
    completion = rig.load(keys, range(5, 10))
    assert completion.outcomes == [errno.EBADMSG if number in bad else 0 for number in range(5)]
    assert f"failed for chunk {min(bad) + 1} of 5 at " in completion.detail
    for number in set(range(5)) - bad:
        assert rig.tier.row(5 + number) == chunks[number]
    assert _damage_counts(rig) == (len(bad), len(bad))
    assert rig.engine.stats()["verified_loads"] == 5 - len(bad)
    assert [rig.path(key).exists() for key in keys] == [number not in bad for number in range(5)]
    # Known at once, and without a look at the disk.
    verdicts = rig.verdicts(keys)
    assert [verdict == HIT for verdict in verdicts] == [number not in bad for number in range(5)]
    completion = rig.store(keys, range(5))
    assert completion.bytes_moved == len(bad) * chunk_size_bytes
    assert rig.engine.stats()["healed_files"] == 0
    assert rig.load(keys, range(5, 10)).outcomes == [0] * 5
    assert [rig.tier.row(number) for number in range(5, 10)] == chunks


def test_damaged_chunk_is_a_miss_at_once_wherever_the_engine_stands(
    start_scanned: StartRig, unknown: int
) -> None:
    rig = start_scanned()
    rig.store([rig.key(1)], [0])
    assert rig.engine.lookup(rig.key(1)) == HIT
    flip_bit(rig.path(rig.key(1)), 0)
    # A lookup does not read chunks.
    assert rig.lookup([rig.key(1)]).outcomes == [0]
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.EBADMSG]
    assert rig.engine.lookup(rig.key(1)) == unknown
    rig.ask([rig.key(1)])
    assert rig.engine.lookup(rig.key(1)) == MISS


def test_store_of_a_damaged_chunk_is_a_duplicate_until_a_load_finds_out(
    start_rig: StartRig, storage: Path
) -> None:
    rig = start_rig(storage, num_chunks=2)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([rig.key(1)], [0])
    flip_bit(rig.path(rig.key(1)), 0)
    assert rig.store([rig.key(1)], [0]).bytes_moved == 0
    assert rig.engine.stats()["duplicate_stores"] == 1
    assert rig.path(rig.key(1)).read_bytes() != chunk
    _assert_found_out(rig, rig.key(1))


def test_damaged_file_that_another_writer_replaces_meanwhile_stays_replaced(
    start_rig: StartRig, storage: Path
) -> None:
    rig = start_rig(storage, num_chunks=2, chunk_size_bytes=2 << 20, threads=(1, 1))
    key, path = rig.key(1), rig.path(rig.key(1))
    chunk = rig.tier.fill(0, seed=1)
    rig.store([key], [0])
    seal = read_seal(path)
    good = storage / "good"
    found_out = 0
    began_s = time.perf_counter()
    assert rig.load([key], [1]).outcomes == [0]
    load_s = time.perf_counter() - began_s
    for number in range(40):
        flip_bit(path, number)
        good.write_bytes(chunk)
        write_seal(good, seal)
        job = rig.submit("load", [key], [1])
        # At another moment of the load each time, and at last after it.
        until = time.perf_counter() + number * load_s / 10
        while time.perf_counter() < until:
            pass
        good.replace(path)
        (outcome,) = rig.finish()[job].outcomes
        assert outcome in (0, errno.EBADMSG)
        found_out += outcome == errno.EBADMSG
        assert path.read_bytes() == chunk
        assert rig.load([key], [1]).outcomes == [0]
    assert found_out > 0
    assert _damage_counts(rig)[0] == found_out


@pytest.mark.parametrize("size_bytes", [0, 4095, 4097])
def test_file_of_a_wrong_size_is_not_counted_as_damaged(
    start_rig: StartRig, storage: Path, size_bytes: int
) -> None:
    rig = start_rig(storage)
    rig.store([rig.key(1)], [0])
    os.truncate(rig.path(rig.key(1)), size_bytes)
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.EBADMSG]
    assert _damage_counts(rig) == (0, int(size_bytes < 4096))
