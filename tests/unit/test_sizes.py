"""Sizes that people write: every unit, and what is no size; and the options that take them."""

from __future__ import annotations

import pytest

from kvfs.config import TierConfig
from kvfs.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [
        (1, 1),
        (2**63 - 1, 2**63 - 1),
        ("1", 1),
        ("4096", 4096),
        ("7B", 7),
        ("1kB", 1000),
        ("1KB", 1000),
        ("200GB", 200 * 10**9),
        ("200GiB", 200 * 2**30),
        ("1.5TB", 1_500_000_000_000),
        ("1.5 TB", 1_500_000_000_000),
        ("500 MiB", 500 * 2**20),
        ("  3KiB\n", 3072),
        ("0.1GB", 100_000_000),
        ("1.0000000001GB", 1_000_000_000),
        ("2PiB", 2 * 2**50),
        ("3PB", 3 * 10**15),
        ("7EiB", 7 * 2**60),
        ("9EB", 9 * 10**18),
        ("1MB", 10**6),
        ("1TiB", 2**40),
    ],
    ids=repr,
)
def test_size_is_the_bytes_that_it_says(size: int | str, size_bytes: int) -> None:
    assert parse_size(size) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "1G", "1g", "1gb", "1gib", "1Gi", "1 2GB", "1  GB", "1,5GB", "1.GB", ".5GB", "-1GB",
     "+1GB", "1e9", "0x10", "1GBs", "1GB/s", "1ZB", "inf", "nan", "1_000", "\u0663GB", "1" * 20, "1.5.5GB",
     "1KIB", "1Kib", "1bits"],
    ids=repr,
)  # fmt: skip
def test_text_that_is_no_size_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match=r'"200GiB".*got ') as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "size", [0, -1, 2**63, "0", "0GB", "0.4B", "8EiB", "10EB", "9999999999999999999"], ids=repr
)
def test_size_out_of_range_is_refused(size: int | str) -> None:
    with pytest.raises(ValueError, match="at least 1 and at most"):
        parse_size(size)


@pytest.mark.parametrize("size", [None, 1.5, True, [1], b"1GB", {"GB": 1}], ids=repr)
def test_anything_but_text_and_integers_is_a_type_error(size: object) -> None:
    with pytest.raises(TypeError, match="a number of bytes"):
        parse_size(size)  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1024.0 KiB"),
        (200 * 2**30, "200.0 GiB"),
        (2**63 - 1, "8.0 EiB"),
        (2**75, "32768.0 EiB"),
    ],
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


def _config(**options: object) -> TierConfig:
    return TierConfig.from_options({"root_dir": "kv", **options})


def test_without_options_there_is_no_limit() -> None:
    assert (_config().capacity_bytes, _config().min_free_bytes) == (None, None)
    config = _config(capacity_bytes=None, min_free_bytes=None, max_bytes=None)
    assert (config.capacity_bytes, config.min_free_bytes) == (None, None)


@pytest.mark.parametrize("name", ["capacity_bytes", "max_bytes"])
def test_capacity_under_either_name(name: str) -> None:
    given: dict[str, object] = {name: "200GiB", "min_free_bytes": "10 GB"}
    config = _config(**given)
    assert (config.capacity_bytes, config.min_free_bytes) == (200 * 2**30, 10**10)
    assert given == {name: "200GiB", "min_free_bytes": "10 GB"}


def test_both_names_have_to_agree() -> None:
    assert _config(capacity_bytes="1GiB", max_bytes=2**30).capacity_bytes == 2**30
    with pytest.raises(
        ValueError, match=r"'max_bytes' is 1000000000 but 'capacity_bytes' is 1073741824; leave"
    ):
        _config(capacity_bytes="1GiB", max_bytes="1GB")
    with pytest.raises(ValueError, match="leave one of them out"):
        _config(capacity_bytes=None, max_bytes="1GB")


@pytest.mark.parametrize("name", ["capacity_bytes", "max_bytes", "min_free_bytes"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-5, ValueError),
        (2**63, ValueError),
        ("much", ValueError),
        (1.5, TypeError),
        (True, TypeError),
    ],
    ids=repr,
)
def test_wrong_limit_names_the_option_and_the_value(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"kvfs option '{name}' must be .*got {value!r}"):
        _config(**{name: value})


@pytest.mark.parametrize("name", ["capacity_bytes", "min_free_bytes"])
def test_wrong_limit_is_refused_without_from_options_too(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        TierConfig("kv", **{name: "1GB"})  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match=name):
        TierConfig("kv", **{name: 0})  # type: ignore[arg-type]  # of any option
