"""What a namespace says of its chunks: written once, compared field by field, never trusted half."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest
from identity_parts import CHUNK_SIZE_BYTES, WEIGHTS, make_namespace, record_of, temporaries

from kvfs import ChunkEngine, Namespace, TierConfig, identity

WHOLE = {"layout": "files", "layout_version": 1, "chunk_size_bytes": CHUNK_SIZE_BYTES, "weights": WEIGHTS}


def put(namespace: Namespace, content: object) -> Path:
    """Write a `kvfs.json`, JSON or bytes as they are."""
    path = Path(namespace.identity_path)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_first_engine_writes_the_file_for_its_user_alone(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path, weights=WEIGHTS)
    previous = os.umask(0)
    try:
        assert identity.settle(namespace, CHUNK_SIZE_BYTES) == WHOLE
    finally:
        os.umask(previous)
    path = Path(namespace.identity_path)
    assert path == Path(namespace.config_path).parent / "kvfs.json"
    assert json.loads(path.read_bytes()) == WHOLE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert temporaries(namespace) == []


def test_two_identical_engines_share_and_the_second_writes_nothing(tmp_path: Path) -> None:
    first = make_namespace(tmp_path, weights=WEIGHTS, kv_cache_layout="NHD")
    identity.settle(first, CHUNK_SIZE_BYTES)
    before = Path(first.identity_path).stat()
    second = make_namespace(tmp_path, weights=WEIGHTS, kv_cache_layout="NHD")
    assert identity.settle(second, CHUNK_SIZE_BYTES) == WHOLE | {"kv_cache_layout": "NHD"}
    after = Path(second.identity_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_namespace_of_the_stock_tier_gets_a_file(tmp_path: Path) -> None:
    namespace = Namespace(str(tmp_path), {"model_name": "org/model"})
    # What vLLM's tier leaves: the directory, the configuration, chunks.
    Path(namespace.config_dir).mkdir()
    Path(namespace.config_path).write_text(json.dumps(dict(namespace.fields), indent=2, sort_keys=True))
    chunk = Path(namespace.chunk_path(bytes(36)))
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(bytes(CHUNK_SIZE_BYTES))
    namespace.write_config()
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert record_of(namespace) == WHOLE | {"weights": None}
    assert chunk.read_bytes() == bytes(CHUNK_SIZE_BYTES)


@pytest.mark.parametrize(
    ("chunk_size_bytes", "traits", "difference"),
    [
        pytest.param(8192, {}, "chunk_size_bytes: 4096 there, 8192 here", id="chunk-size"),
        pytest.param(
            4096, {"weights": "files:other"}, "weights: 'commit:0123' there, 'files:other' here", id="weights"
        ),
        pytest.param(
            4096, {"kv_cache_layout": "HND"}, "kv_cache_layout: 'NHD' there, 'HND' here", id="layout"
        ),
        pytest.param(4096, {"mine": "b"}, "mine: 'a' there, 'b' here", id="field-of-a-library"),
        pytest.param(
            8192,
            {"mine": "b"},
            "chunk_size_bytes: 4096 there, 8192 here; mine: 'a' there, 'b' here",
            id="two-fields",
        ),
    ],
)
def test_other_chunks_are_refused_with_field_values_file_and_ways_out(
    tmp_path: Path, chunk_size_bytes: int, traits: dict[str, str], difference: str
) -> None:
    known = {"weights": WEIGHTS, "kv_cache_layout": "NHD", "mine": "a"}
    identity.settle(make_namespace(tmp_path, **known), CHUNK_SIZE_BYTES)
    namespace = make_namespace(tmp_path, **(known | traits))
    before = Path(namespace.identity_path).read_bytes()
    with pytest.raises(ValueError, match="other chunks") as caught:
        identity.settle(namespace, chunk_size_bytes)
    assert str(caught.value) == (
        f"{namespace.identity_path} says that this namespace holds other chunks ({difference}); use another "
        f"root_dir, or remove {namespace.config_dir} and {namespace.config_dir}_r*"
    )
    assert Path(namespace.identity_path).read_bytes() == before


def test_newer_layout_is_refused_whatever_else_it_says(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path)
    put(namespace, WHOLE | {"layout_version": 2, "layout": {"kind": "files"}, "weights": [1]})
    with pytest.raises(ValueError, match="layout_version: 2 there, 1 here") as caught:
        identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert "it was written by a newer kvfs: install that, or use another root_dir" in str(caught.value)


def test_other_layout_is_refused(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path)
    put(namespace, WHOLE | {"layout": "slab"})
    with pytest.raises(ValueError, match="layout: 'slab' there, 'files' here"):
        identity.settle(namespace, CHUNK_SIZE_BYTES)


def test_fields_of_a_newer_kvfs_are_kept_and_ignored(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path, weights=WEIGHTS)
    extra = {"salt": ["a", {"b": 1.5}], "weights": None}
    path = put(namespace, WHOLE | extra)
    assert identity.settle(namespace, CHUNK_SIZE_BYTES) == WHOLE | {"salt": extra["salt"]}
    # Written again, since the weights are known by now, and still with what we do not know.
    assert json.loads(path.read_bytes()) == WHOLE | {"salt": extra["salt"]}


def test_field_that_nobody_knew_is_added_and_compared_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity.settle(make_namespace(tmp_path), CHUNK_SIZE_BYTES)
    knows = make_namespace(tmp_path, weights=WEIGHTS, kv_cache_layout="NHD")
    with caplog.at_level("INFO", "kvfs"):
        identity.settle(knows, CHUNK_SIZE_BYTES)
    assert record_of(knows) == WHOLE | {"kv_cache_layout": "NHD"}
    assert stat.S_IMODE(Path(knows.identity_path).stat().st_mode) == 0o600
    assert temporaries(knows) == []
    assert "did not say weights 'commit:0123', kv_cache_layout 'NHD'; from now on it does" in caplog.text
    with pytest.raises(ValueError, match="weights: 'commit:0123' there, 'commit:4567' here"):
        identity.settle(make_namespace(tmp_path, weights="commit:4567"), CHUNK_SIZE_BYTES)


def test_nothing_is_added_to_a_file_that_is_refused(tmp_path: Path) -> None:
    identity.settle(make_namespace(tmp_path), CHUNK_SIZE_BYTES)
    with pytest.raises(ValueError, match="chunk_size_bytes"):
        identity.settle(make_namespace(tmp_path, weights=WEIGHTS), 2 * CHUNK_SIZE_BYTES)
    assert record_of(make_namespace(tmp_path))["weights"] is None


def test_unknown_weights_on_a_file_that_has_them_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = make_namespace(tmp_path)
    put(namespace, WHOLE)
    assert identity.settle(namespace, CHUNK_SIZE_BYTES) == WHOLE
    (warning,) = warnings_in(caplog)
    assert "says which weights its chunks come from (commit:0123)" in warning
    assert record_of(namespace) == WHOLE


def test_field_that_would_make_the_file_too_large_is_not_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = make_namespace(tmp_path, weights=WEIGHTS)
    record = WHOLE | {"weights": None, "salt": ""}
    record["salt"] = "x" * (identity.SIZE_MAX_BYTES - len(json.dumps(record)))
    path = put(namespace, record)
    assert path.stat().st_size == identity.SIZE_MAX_BYTES
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert json.loads(path.read_bytes()) == record
    assert "the file would grow too large" in warnings_in(caplog)[0]


def view_of(chunk_size_bytes: int) -> memoryview:
    return memoryview(bytearray(2 * chunk_size_bytes)).cast("B", (2, chunk_size_bytes))


def options(root: Path) -> TierConfig:
    return TierConfig(str(root), n_read_threads=1, n_write_threads=1)


def test_engine_logs_its_namespace_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    namespace = make_namespace(tmp_path, weights=WEIGHTS)
    with caplog.at_level("INFO", "kvfs"), ChunkEngine(namespace, view_of(4096), options(tmp_path)):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "kvfs serves" in record.message]
    assert f"kvfs serves {namespace.base_path}, chunks of 4096 bytes, weights commit:0123, through" in line
    assert line.endswith("as its only writer")


def test_engine_with_another_chunk_size_is_refused_and_starts_nothing(tmp_path: Path) -> None:
    namespace = Namespace(str(tmp_path), {"model_name": "org/model"})
    with ChunkEngine(namespace, view_of(4096), options(tmp_path)):
        pass
    before = sorted(Path(namespace.base_path).iterdir())
    with pytest.raises(ValueError, match="chunk_size_bytes: 4096 there, 8192 here"):
        ChunkEngine(namespace, view_of(8192), options(tmp_path))
    assert sorted(Path(namespace.base_path).iterdir()) == before


@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param(memoryview(bytes(8192)).cast("B", (2, 4096)), id="read-only"),
        pytest.param(memoryview(bytearray(8192)), id="one-dimension"),
        pytest.param(memoryview(bytearray(8192)).cast("h").cast("B").cast("i", (2, 1024)), id="four-bytes"),
    ],
)
def test_buffer_that_is_no_primary_tier_is_refused_and_recorded_nowhere(
    tmp_path: Path, buffer: memoryview
) -> None:
    namespace = Namespace(str(tmp_path), {"model_name": "org/model"})
    with pytest.raises(ValueError, match="buffer must"):
        ChunkEngine(namespace, buffer, options(tmp_path))
    assert not Path(namespace.identity_path).exists()
