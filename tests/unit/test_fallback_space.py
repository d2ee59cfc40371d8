"""The Python engine's counts of a root by themselves: two at once, and processes that end during one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfs.fallback.space import Space, SpaceLimits

CHUNK_SIZE_BYTES = 4096
# More than any disk has, so that there is room before all has been counted.
CAPACITY_BYTES = 1 << 59
# Far more than a lease, which stays promised.
PART_BYTES = 1 << 30


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[], Space]]:
    """Join those who share a root; all leave at the end."""
    joined: list[Space] = []

    def make() -> Space:
        limits = SpaceLimits(capacity_bytes=CAPACITY_BYTES, min_free_bytes=None)
        joined.append(Space(limits, str(tmp_path), CHUNK_SIZE_BYTES, 0o600, 0o700))
        return joined[-1]

    yield make
    for space in joined:
        space.close()


def _used(space: Space) -> int:
    space.refresh()
    return space.stats()["used_bytes"]


def test_later_count_does_not_replace_one_that_chunks_were_evicted_from(join: Callable[[], Space]) -> None:
    first, second = join(), join()
    assert first.must_count
    assert second.must_count
    begun = first.begin_count(), second.begin_count()
    second.set_counted(10 * PART_BYTES, begun[1])
    # Evicted by the second; the first comes to its place after that, and sees seven parts.
    second.removed(3 * PART_BYTES)
    used = _used(second)
    assert 7 * PART_BYTES <= used < 8 * PART_BYTES
    first.set_counted(7 * PART_BYTES, begun[0])
    assert _used(first) == used


def test_what_a_process_stored_that_ended_during_a_count_is_not_forgotten(join: Callable[[], Space]) -> None:
    first, other = join(), join()
    start = first.begin_count()
    assert other.reserve()
    other.made_directory()
    other.stored()
    other.close()
    # Its directory was read before that.
    first.set_counted(5 * PART_BYTES, start)
    assert _used(first) >= 5 * PART_BYTES + other.cost_bytes


def test_what_was_stored_before_a_count_is_counted_once(join: Callable[[], Space]) -> None:
    space = join()
    assert space.reserve()
    space.made_directory()
    space.stored()
    start = space.begin_count()
    before = _used(space)
    space.set_counted(space.cost_bytes + 5 * PART_BYTES, start)
    assert _used(space) == before + 5 * PART_BYTES
