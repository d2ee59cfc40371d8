"""Tests of the damage that the control does to chunks on disk."""

from __future__ import annotations

from pathlib import Path

from harness.damage import damage_chunks


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
