"""Tests of the damage that the control does to chunks on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.damage import damage_chunks, damage_share, repair


@pytest.fixture
def chunks(tmp_path: Path) -> list[Path]:
    """Twenty chunks, and a file that is none."""
    paths = [tmp_path / f"b_g0/{number}.bin" for number in range(20)]
    for path in (*paths, tmp_path / "config.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(path.name.encode() * 1000)
    return paths


def test_the_middle_half_of_each_chunk_changes_and_nothing_else(tmp_path: Path) -> None:
    before = bytes(range(256)) * 64
    for name in ("a/b_g0/one.bin", "a/c_g0/two.bin", "config.json", "a/b_g0/three.bin_1.tmp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before)
    assert damage_chunks(tmp_path) == 2
    quarter = len(before) // 4
    damaged = [(tmp_path / name).read_bytes() for name in ("a/b_g0/one.bin", "a/c_g0/two.bin")]
    for after in damaged:
        assert len(after) == len(before)
        assert after[:quarter] == before[:quarter]
        assert after[3 * quarter :] == before[3 * quarter :]
        same = sum(x == y for x, y in zip(after[quarter:-quarter], before[quarter:-quarter], strict=True))
        assert same < quarter // 16
    assert damaged[0] != damaged[1]
    for name in ("config.json", "a/b_g0/three.bin_1.tmp"):
        assert (tmp_path / name).read_bytes() == before
    assert damage_chunks(tmp_path / "nothing") == 0


def test_a_share_of_the_chunks_is_damaged_by_its_seed(tmp_path: Path, chunks: list[Path]) -> None:
    before = {path: path.read_bytes() for path in chunks}
    first = damage_share(tmp_path, 0.1, 1)
    assert len(first) == 2
    changed = [path for path in chunks if path.read_bytes() != before[path]]
    assert sorted(changed) == sorted(chunk.path for chunk in first)
    assert repair(first) == 2
    again = damage_share(tmp_path, 0.1, 1)
    assert [(chunk.path, chunk.digest) for chunk in again] == [(chunk.path, chunk.digest) for chunk in first]
    repair(again)
    others = [{chunk.path for chunk in damage_share(tmp_path, 0.1, seed)} for seed in range(2, 8)]
    assert len(set(map(frozenset, others))) > 1
    assert (tmp_path / "config.json").read_bytes() == b"config.json" * 1000


def test_repair_restores_every_byte(tmp_path: Path, chunks: list[Path]) -> None:
    before = [path.read_bytes() for path in chunks]
    damaged = damage_share(tmp_path, 1.0, 1)
    assert all(path.read_bytes() != content for path, content in zip(chunks, before, strict=True))
    assert repair(damaged) == 20
    assert [path.read_bytes() for path in chunks] == before


def test_repair_leaves_what_was_removed_or_replaced_since(tmp_path: Path, chunks: list[Path]) -> None:
    """A tier that found the damage has removed the chunk, or stored it again, with another seal."""
    damaged = damage_share(tmp_path, 1.0, 1)
    chunks[0].unlink()
    chunks[1].write_bytes(b"stored again" * 1000)
    assert repair(damaged) == 18
    assert not chunks[0].exists()
    assert chunks[1].read_bytes() == b"stored again" * 1000


def test_at_least_one_chunk_is_damaged_where_there_is_one(tmp_path: Path) -> None:
    assert damage_share(tmp_path, 0.1, 1) == []
    (tmp_path / "one.bin").write_bytes(bytes(1000))
    assert len(damage_share(tmp_path, 0.1, 1)) == 1
