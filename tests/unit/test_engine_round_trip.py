"""Jobs that succeed: what they move, where it lies, and what their completions say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig


@pytest.mark.parametrize("threads", [(1, 1), (4, 4)], ids=["1+1", "4+4"])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 200])
def test_round_trip_into_other_chunk_ids_returns_the_bytes(
    start_rig: StartRig, storage: Path, count: int, threads: tuple[int, int]
) -> None:
    rig = start_rig(storage, num_chunks=2 * count + 1, threads=threads)
    keys = [rig.key(number) for number in range(count)]
    chunks = [rig.tier.fill(chunk_id, seed=chunk_id) for chunk_id in range(count)]
    stored = rig.store(keys, range(count))
    assert stored.outcomes == [0] * count
    assert stored.bytes_moved == count * rig.tier.chunk_size_bytes
    assert stored.detail == ""
    assert rig.lookup(keys).outcomes == [0] * count
    # Backwards, and past the rows that were stored from.
    loaded = rig.load(keys, range(2 * count, count, -1))
    assert loaded.outcomes == [0] * count
    assert loaded.bytes_moved == count * rig.tier.chunk_size_bytes
    assert loaded.detail == ""
    assert [rig.tier.row(2 * count - number) for number in range(count)] == chunks
    assert rig.tier.row(count) == bytes(rig.tier.chunk_size_bytes)
    assert len(list(storage.rglob("*.bin"))) == count
    assert list(storage.rglob("*.tmp")) == []


@pytest.mark.parametrize("group", [0, 1, 255, 65536, 2**32 - 1])
@pytest.mark.parametrize("hash_size_bytes", [1, 2, 8, 32, 64])
def test_store_any_key_lies_at_the_documented_path(
    start_rig: StartRig, tmp_path: Path, hash_size_bytes: int, group: int
) -> None:
    rig = start_rig(tmp_path / "namespace")
    key = rig.key(hash_size_bytes, hash_size_bytes, group)
    chunk = rig.tier.fill(3, seed=group)
    assert rig.store([key], [3]).outcomes == [0]
    assert rig.files() == [rig.path(key)]
    assert rig.path(key).read_bytes() == chunk
    assert rig.lookup([key]).outcomes == [0]
    assert rig.load([key], [4]).outcomes == [0]
    assert rig.tier.row(4) == chunk


def test_store_known_key_lies_at_the_literal_path(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    key = bytes.fromhex("0123456789abcdef") + bytes([0, 0, 1, 2])
    assert rig.store([key], [0]).outcomes == [0]
    assert (tmp_path / "012" / "34_g258" / "0123456789abcdef.bin").is_file()


def test_store_same_hash_in_two_groups_makes_two_files(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    keys = [rig.key(1, group=0), rig.key(1, group=7)]
    chunks = [rig.tier.fill(0, seed=1), rig.tier.fill(1, seed=2)]
    assert rig.store(keys, [0, 1]).outcomes == [0, 0]
    assert [rig.path(key).read_bytes() for key in keys] == chunks


def test_store_again_moves_nothing_and_is_counted(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    keys = [rig.key(0), rig.key(1)]
    assert rig.store(keys[:1], [0]).bytes_moved == 4096
    again = rig.store(keys, [0, 1])
    assert again.outcomes == [0, 0]
    assert again.bytes_moved == 4096
    assert rig.engine.stats()["duplicate_stores"] == 1
    assert rig.engine.stats()["healed_files"] == 0


def test_store_same_key_many_times_in_one_job_keeps_one_whole_file(
    start_rig: StartRig, storage: Path
) -> None:
    rig = start_rig(storage, num_chunks=1, threads=(4, 4), chunk_size_bytes=65536)
    chunk = rig.tier.fill(0, seed=5)
    completion = rig.store([rig.key(9)] * 64, [0] * 64)
    assert completion.outcomes == [0] * 64
    assert rig.engine.stats()["duplicate_stores"] == 63
    assert completion.bytes_moved == 65536
    assert rig.path(rig.key(9)).read_bytes() == chunk
    assert [path.name for path in rig.path(rig.key(9)).parent.iterdir()] == [rig.path(rig.key(9)).name]


def test_numpy_integers_are_chunk_ids(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path)
    chunk = rig.tier.fill(3, seed=1)
    rig.engine.submit_store(1, rig.key(1), 36, list(np.array([3])))
    assert rig.finish()[1].outcomes == [0]
    assert rig.path(rig.key(1)).read_bytes() == chunk


def test_load_same_key_into_many_rows_fills_all(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=8)
    chunk = rig.tier.fill(0, seed=5)
    rig.store([rig.key(1)], [0])
    assert rig.load([rig.key(1)] * 7, range(1, 8)).outcomes == [0] * 7
    assert [rig.tier.row(row) for row in range(8)] == [chunk] * 8


def test_lookup_many_keys_answers_in_order(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=1)
    present = {number for number in range(500) if number % 7 == 3}
    stored = [rig.key(number) for number in sorted(present)]
    assert rig.store(stored, [0] * len(stored)).outcomes == [0] * len(stored)
    completion = rig.lookup([rig.key(number) for number in range(500)])
    assert [number for number, outcome in enumerate(completion.outcomes) if outcome == 0] == sorted(present)
    assert completion.bytes_moved == 0


@pytest.mark.parametrize("kind", ["store", "load", "lookup"])
def test_empty_job_succeeds(start_rig: StartRig, tmp_path: Path, kind: str) -> None:
    rig = start_rig(tmp_path)
    job_id = rig.submit(kind, [])
    completion = rig.finish()[job_id]
    assert (completion.kind, completion.outcomes, completion.bytes_moved, completion.detail) == (
        kind,
        [],
        0,
        "",
    )
    assert completion.queue_s >= 0
    assert completion.transfer_s >= 0


@pytest.mark.parametrize("job_id", [0, 1, -1, 2**31, 2**63 - 1, -(2**63)])
def test_completion_echoes_the_job_id(start_rig: StartRig, tmp_path: Path, job_id: int) -> None:
    rig = start_rig(tmp_path)
    rig.engine.submit_lookup(job_id, rig.key(1), 36)
    assert list(rig.finish()) == [job_id]


def test_completion_times_add_up_to_no_more_than_the_wall_time(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=50)
    began = time.monotonic()
    completion = rig.store([rig.key(number) for number in range(50)], range(50))
    elapsed_s = time.monotonic() - began
    assert completion.queue_s >= 0
    assert completion.transfer_s > 0
    assert completion.queue_s + completion.transfer_s <= elapsed_s


@pytest.mark.parametrize(
    "name", ["\udcff", "Kapitän", "trailing/"], ids=["not-utf8", "utf8", "trailing-slash"]
)
def test_base_path_with_odd_name_is_used_as_it_is(start_rig: StartRig, storage: Path, name: str) -> None:
    rig = start_rig(storage / name)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert [os.fsencode(path.name) for path in storage.iterdir()] == [os.fsencode(name.rstrip("/"))]
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
