"""The index by itself: nothing is lost or made up, whatever the lengths and however it grows."""

from __future__ import annotations

import random
import threading

import pytest

import kvfs_ext

KEY_BYTES = 36


def _keys(count: int, seed: int, size_bytes: int = KEY_BYTES) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(size_bytes) for _ in range(count)]


def test_every_key_is_found_and_no_other(subtests_of_growth: int) -> None:
    index = kvfs_ext.KeyIndex()
    keys = _keys(subtests_of_growth, 1)
    for start in range(0, len(keys), 1000):
        index.insert(b"".join(keys[start : start + 1000]), KEY_BYTES)
    assert len(index) == len(keys)
    assert index.lookup_prefix(b"".join(keys), KEY_BYTES) == len(keys)
    assert sum(index.lookup(key) for key in _keys(20_000, 2)) == 0


@pytest.fixture(params=[0, 1, 7, 8, 9, 5000, 200_000])
def subtests_of_growth(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def test_keys_of_several_lengths_stay_apart() -> None:
    index = kvfs_ext.KeyIndex()
    sizes = [5, 12, 36, 68, 255]
    for size_bytes in sizes:
        index.insert(b"".join(_keys(50, size_bytes, size_bytes)), size_bytes)
    assert len(index) == 50 * len(sizes)
    for size_bytes in sizes:
        keys = _keys(50, size_bytes, size_bytes)
        assert index.lookup_prefix(b"".join(keys), size_bytes) == 50
        # The same beginning in another length is another key.
        assert sum(index.lookup(key[:-1] + b"xy") for key in keys if len(key) < 255) == 0


def test_prefix_ends_at_the_first_key_that_is_not_there() -> None:
    index = kvfs_ext.KeyIndex()
    keys = _keys(10, 3)
    index.insert(b"".join(keys[:4] + keys[5:]), KEY_BYTES)
    assert index.lookup_prefix(b"".join(keys), KEY_BYTES) == 4
    assert index.lookup_prefix(b"", KEY_BYTES) == 0


def test_keys_that_share_their_first_bytes_are_told_apart() -> None:
    # All in one place of the table, as far as its hash can see.
    index = kvfs_ext.KeyIndex()
    keys = [bytes(8) + number.to_bytes(24, "big") + bytes(4) for number in range(3000)]
    index.insert(b"".join(keys[:2000]), KEY_BYTES)
    assert [index.lookup(key) for key in keys] == [1] * 2000 + [0] * 1000


def test_memory_of_a_key_is_at_most_64_bytes() -> None:
    index = kvfs_ext.KeyIndex()
    count = 300_000
    index.insert(random.Random(4).randbytes(KEY_BYTES * count), KEY_BYTES)
    assert len(index) == count
    assert index.memory_bytes / count <= 64


def test_lookups_beside_growth_never_lose_a_key() -> None:
    index = kvfs_ext.KeyIndex()
    known = b"".join(_keys(2000, 5))
    index.insert(known, KEY_BYTES)
    fresh = random.Random(6).randbytes(KEY_BYTES * 200_000)
    grower = threading.Thread(target=index.insert, args=(fresh, KEY_BYTES))
    grower.start()
    while grower.is_alive():
        assert index.lookup_prefix(known, KEY_BYTES) == 2000
    grower.join()
    assert len(index) == 202_000


@pytest.mark.parametrize("ttl_s", [True, "1", None])
def test_time_to_live_that_is_no_number_is_a_type_error(ttl_s: object) -> None:
    with pytest.raises(TypeError, match="negative_ttl_s"):
        kvfs_ext.KeyIndex(ttl_s)  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("ttl_s", [-1, float("nan"), float("inf")])
def test_time_to_live_out_of_range_is_a_value_error(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="negative_ttl_s"):
        kvfs_ext.KeyIndex(ttl_s)
