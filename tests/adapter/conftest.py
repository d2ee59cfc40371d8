"""Fixtures of the adapter's tests: tiers made by vLLM's own factory, on real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_parts import Tier


@pytest.fixture
def make_tier(tmp_path: Path) -> Iterator[Callable[..., Tier]]:
    """Make tiers on one root, shut down at the end."""
    made: list[Tier] = []

    def make(*arguments: Any, root: Path | None = None, **options: Any) -> Tier:
        tier = Tier(root or tmp_path / "root", *arguments, **options)
        made.append(tier)
        return tier

    yield make
    for tier in made:
        tier.manager.shutdown()


@pytest.fixture
def tier(make_tier: Callable[..., Tier]) -> Tier:
    """A kvfs tier with random bytes in its rows."""
    tier: Tier = make_tier()
    tier.rows[:] = np.random.default_rng(889).integers(-128, 128, tier.rows.shape, dtype=np.int8)
    return tier
