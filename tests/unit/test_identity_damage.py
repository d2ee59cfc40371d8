"""A `kvfs.json` or `config.json` that is not whole is never trusted, and `kvfs.json` never overwritten."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from identity_parts import CHUNK_SIZE_BYTES, WEIGHTS, make_namespace, record_of

from kvfs import Namespace, identity

WHOLE = {"layout": "files", "layout_version": 1, "chunk_size_bytes": CHUNK_SIZE_BYTES, "weights": WEIGHTS}


@pytest.fixture
def namespace(tmp_path: Path) -> Namespace:
    return make_namespace(tmp_path, weights=WEIGHTS)


def refused(namespace: Namespace, content: bytes) -> str:
    """Return why the content is refused; it must stay as it is."""
    path = Path(namespace.identity_path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged \(.+\), so kvfs cannot tell") as caught:
        identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert path.read_bytes() == content
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged (")
    assert message.endswith(
        "use another root_dir or remove the namespace. If its chunks are certainly those of this "
        "configuration, remove only that file, and kvfs writes it again."
    )
    return message


def test_every_truncation_of_the_file_is_refused_and_left(namespace: Namespace) -> None:
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    whole = Path(namespace.identity_path).read_bytes()
    for length in range(len(whole)):
        refused(namespace, whole[:length])
    # Removing it, as the message says, is all it takes.
    Path(namespace.identity_path).unlink()
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert Path(namespace.identity_path).read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\xff\xfe{}", "utf-8", id="not-utf-8"),
        pytest.param(b"[" * 100_000, "more than", id="over-64-KiB"),
        pytest.param(b"[" * 60_000, "nested too deeply", id="deeply-nested"),
        pytest.param(b'{"a":' * 9_000 + b"1" + b"}" * 9_000, "nested too deeply", id="deep-objects"),
        pytest.param(b"[]", "a list instead of an object", id="list"),
        pytest.param(b"null", "a NoneType instead of an object", id="null"),
        pytest.param(b"{}", "layout_version must be a positive integer, got None", id="empty-object"),
        pytest.param(b'{"layout_version": 1, "layout_version": 1}', "a field is there twice", id="twice"),
        pytest.param(b'{"layout_version": NaN}', "NaN is no number of JSON", id="nan"),
        pytest.param(b'{"layout_version": 1e999}', "layout_version must be a positive", id="infinite"),
        pytest.param(b'{"layout_version": ' + b"9" * 5000 + b"}", "Exceeds the limit", id="huge-number"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(
    namespace: Namespace, content: bytes, reason: str
) -> None:
    if len(content) > identity.SIZE_MAX_BYTES:
        Path(namespace.identity_path).write_bytes(content)
        with pytest.raises(OSError, match="more than 65536 bytes") as caught:
            identity.settle(namespace, CHUNK_SIZE_BYTES)
        assert caught.value.errno == errno.EFBIG
        return
    assert reason in refused(namespace, content)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("layout_version", True, "layout_version must be a positive integer, got True"),
        ("layout_version", 0, "layout_version must be a positive integer, got 0"),
        ("layout_version", "1", "layout_version must be a positive integer, got '1'"),
        ("chunk_size_bytes", 4096.0, "chunk_size_bytes must be a positive integer, got 4096.0"),
        ("chunk_size_bytes", -4096, "chunk_size_bytes must be a positive integer, got -4096"),
        ("chunk_size_bytes", None, "chunk_size_bytes must be a positive integer, got None"),
        ("layout", None, "layout must be a string, got None"),
        ("layout", "", "layout must be a string, got ''"),
        ("weights", 7, "weights must be a string or null, got 7"),
        ("weights", "x" * 257, "weights must be a string or null, got 'xxx"),
    ],
)
def test_wrong_type_is_refused_with_the_field(
    namespace: Namespace, field: str, value: object, reason: str
) -> None:
    assert reason in refused(namespace, json.dumps(WHOLE | {field: value}).encode())


def test_other_field_of_a_wrong_type_is_a_difference(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path, kv_cache_layout="NHD")
    Path(namespace.identity_path).write_text(json.dumps(WHOLE | {"kv_cache_layout": ["NHD"]}))
    with pytest.raises(ValueError, match=r"kv_cache_layout: \['NHD'\] there, 'NHD' here"):
        identity.settle(namespace, CHUNK_SIZE_BYTES)


@pytest.mark.parametrize("kind", ["directory", "link", "dangling-link", "fifo"])
def test_what_is_no_regular_file_is_an_os_error_and_stays(
    namespace: Namespace, tmp_path: Path, kind: str
) -> None:
    path = Path(namespace.identity_path)
    target = tmp_path / "target"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(target)
        if kind == "link":
            # A good one, elsewhere: it is not followed either.
            target.write_text(json.dumps(WHOLE))
    with pytest.raises(OSError, match="cannot read what the kvfs namespace holds") as caught:
        identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert caught.value.filename == namespace.identity_path
    assert "it must be a regular file that this user can read" in str(caught.value)
    expected = {"directory": errno.EISDIR, "fifo": errno.EINVAL}.get(kind, errno.ELOOP)
    assert caught.value.errno == expected
    assert os.path.lexists(path)
    assert target.exists() == (kind == "link")


def test_every_truncation_of_config_json_is_written_again(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path)
    path = Path(namespace.config_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        namespace.write_config()
        assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b""], ids=["deep", "not-utf-8", "empty"])
def test_config_json_that_is_no_json_is_written_again(
    namespace: Namespace, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(namespace.config_path)
    whole = path.read_bytes()
    path.write_bytes(content)
    namespace.write_config()
    assert path.read_bytes() == whole
    assert "is not JSON" in caplog.text


def test_config_json_that_is_huge_is_an_os_error(namespace: Namespace) -> None:
    os.truncate(namespace.config_path, 1 << 30)
    with pytest.raises(OSError, match=r"cannot prepare the kvfs namespace \(more than 16777216 bytes"):
        namespace.write_config()


def test_record_survives_the_damage_of_config_json(namespace: Namespace) -> None:
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    Path(namespace.config_path).write_bytes(b"{")
    namespace.write_config()
    assert record_of(namespace) == WHOLE
