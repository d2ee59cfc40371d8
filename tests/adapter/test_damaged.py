"""Damaged chunks under vLLM's own objects: every good one of a job is kept, whichever others failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from seal_parts import flip_bit
from vllm_parts import CHUNK_BYTES, Tier, keys_of

MakeTier = Callable[..., Tier]

COUNT = 4
BAD = pytest.mark.parametrize(
    "bad",
    [{0}, {1}, {COUNT - 1}, {0, COUNT - 1}, {1, 2}, set(range(COUNT))],
    ids=lambda bad: "-".join(map(str, sorted(bad))),
)


@BAD
def test_load_with_damaged_chunks_keeps_all_others(tier: Tier, bad: set[int]) -> None:
    keys = keys_of(COUNT)
    tier.store(keys, list(range(COUNT)))
    assert [tier.verdict(key) for key in keys] == ["HIT"] * COUNT
    for number in bad:
        flip_bit(tier.path(keys[number]), CHUNK_BYTES // 2)
    good = [number for number in range(COUNT) if number not in bad]
    result = tier.load(keys, list(range(COUNT, 2 * COUNT)))
    assert not result.success
    assert list(result.successful_keys or ()) == [keys[number] for number in good]
    for number in good:
        assert np.array_equal(tier.rows[COUNT + number], tier.rows[number])
    assert [tier.verdict(key) for key in keys] == ["MISS" if i in bad else "HIT" for i in range(COUNT)]
    stats = tier.manager._engine.stats()
    assert (stats["damaged_chunks"], stats["verified_loads"]) == (len(bad), len(good))
    # Computed again, stored again, and served to the next request.
    assert tier.store(keys, list(range(COUNT))).transfer_bytes == len(bad) * CHUNK_BYTES
    tier.finish()
    assert tier.load(keys, list(range(COUNT, 2 * COUNT))).success
    assert np.array_equal(tier.rows[COUNT : 2 * COUNT], tier.rows[:COUNT])


def test_chunks_of_the_stock_tier_are_served_or_with_require_computed_again(
    make_tier: MakeTier, tmp_path: Path
) -> None:
    keys = keys_of(COUNT)
    stock = make_tier("fs")
    stock.rows[:] = 5
    assert stock.store(keys, list(range(COUNT))).success
    ours = make_tier(checksum="auto", index_mode="shared")
    assert ours.load(keys, list(range(COUNT))).success
    assert (ours.rows[:COUNT] == 5).all()
    assert ours.manager._engine.stats()["unverified_loads"] == COUNT
    strict = make_tier(checksum="require", index_mode="shared")
    result = strict.load(keys, list(range(COUNT)))
    assert not result.success
    assert result.successful_keys is None
    assert [strict.verdict(key) for key in keys] == ["MISS"] * COUNT
    strict.rows[:] = 5
    assert strict.store(keys, list(range(COUNT))).transfer_bytes == COUNT * CHUNK_BYTES
    strict.finish()
    assert strict.load(keys, list(range(COUNT))).success
    # What is sealed by now is as good to the stock tier as before.
    assert stock.load(keys, list(range(COUNT))).success


@pytest.mark.parametrize(("blocks", "seals"), [(True, 1), (False, 0)], ids=["true", "false"])
def test_option_of_the_stock_tier_switches_checksums(make_tier: MakeTier, blocks: bool, seals: int) -> None:
    tier = make_tier(checksum_blocks=blocks)
    assert tier.manager._engine.stats()["seals"] == seals
