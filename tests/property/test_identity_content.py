"""Whatever bytes stand in a `kvfs.json`, they are a whole record or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfs import identity

WHOLE = {"layout": "files", "layout_version": 1, "chunk_size_bytes": 4096, "weights": "commit:0123"}
# What text in JSON can trip over, without a table of all of Unicode.
TEXT = st.text(alphabet='ab1 "\\{\n\0\xe9\ud800', max_size=6)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=10,
)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_no_record(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        identity.parse(content)


@settings(max_examples=300)
@given(st.integers(min_value=0, max_value=200), st.binary(min_size=1, max_size=20))
def test_whole_record_with_other_bytes_in_it_is_whole_or_refused(offset: int, other: bytes) -> None:
    content = json.dumps(WHOLE, indent=2).encode()
    damaged = content[:offset] + other + content[offset + len(other) :]
    record = _accepted(damaged)
    assert record is None or record == json.loads(damaged)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*WHOLE, "more"]), JSON_VALUES))
def test_random_records_are_whole_or_refused(fields: dict[str, object]) -> None:
    content = json.dumps(WHOLE | fields).encode()
    record = _accepted(content)
    assert record is None or record == json.loads(content)


def _accepted(content: bytes) -> dict[str, object] | None:
    """Return the record, checked for what every one has; None for content that is refused."""
    try:
        record = identity.parse(content)
    except ValueError:
        return None
    assert type(record["layout_version"]) is int
    assert record["layout_version"] >= 1
    assert type(record["chunk_size_bytes"]) is int or record["layout_version"] > 1
    # It can be kept when a field is added.
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    return record
