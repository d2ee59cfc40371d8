"""Fuzz targets over the Python code: each takes any bytes and an empty directory, and asserts what holds.

Each returns whether the bytes were taken for what they stand for, so that a test can tell a seed that is
refused by now, and tests nothing but that, from one that is still used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from harness.fuzz import inputs
from kvfs import identity
from kvfs.config import TierConfig
from kvfs.fallback import crc32c
from kvfs.fallback.index import KeyIndex
from kvfs.fallback.names import chunk_names
from kvfs.fallback.ownership import Ownership
from kvfs.fallback.scan import Scan
from kvfs.fallback.seals import CHECKSUM_ATTRIBUTE, KEY_ATTRIBUTE, Seal, Verdict
from kvfs.fallback.snapshot import MAGIC, SNAPSHOT_NAME, clear_whole_mark
from kvfs.paths import Namespace
from kvfs.permissions import FILE_MODE

Target = Callable[[bytes, Path], bool]

_FIELDS: Final = {"model_name": "org/model", "block_size": 16}
_KEY_SIZES: Final = range(5, 256)


def identity_content(data: bytes, _scratch: Path) -> bool:
    """Parse a `kvfs.json`: only ValueError, and what parses serialises to what parses the same."""
    try:
        record = identity.parse(data)
    except ValueError:
        return False
    text = json.dumps(record, indent=2, sort_keys=True)
    assert identity.parse(text.encode()) == record
    return True


def identity_file(data: bytes, scratch: Path) -> bool:
    """Settle a namespace that has a `kvfs.json`: it keeps what it said, or is refused and stays."""
    namespace = Namespace(str(scratch), _FIELDS, traits={"kv_cache_dtype": "auto"})
    Path(namespace.config_dir).mkdir(exist_ok=True)
    path = Path(namespace.identity_path)
    path.write_bytes(data)
    try:
        settled = identity.settle(namespace, inputs.CHUNK_SIZE_BYTES)
    except ValueError:
        assert path.read_bytes() == data, "a record that was refused was changed"
        return False
    found = identity.parse(data)
    assert identity.parse(path.read_bytes()) == settled
    assert all(settled[name] == value for name, value in found.items() if value is not None)
    assert settled["chunk_size_bytes"] == inputs.CHUNK_SIZE_BYTES
    return True


def config_file(data: bytes, scratch: Path) -> bool:
    """Prepare a namespace that has a `config.json`: it says the same, is written anew, or is refused."""
    namespace = Namespace(str(scratch), _FIELDS)
    Path(namespace.config_dir).mkdir(exist_ok=True)
    path = Path(namespace.config_path)
    path.write_bytes(data)
    try:
        namespace.write_config()
    except ValueError:
        assert path.read_bytes() == data, "a configuration that was refused was changed"
        return False
    assert json.loads(path.read_bytes()) == _FIELDS
    with contextlib.suppress(ValueError, RecursionError):
        if json.loads(data) == _FIELDS:
            assert path.read_bytes() == data, "a configuration that agrees was written again"
            return True
    return False


def options(data: bytes, _scratch: Path) -> bool:
    """Take a tier's options from JSON: only TypeError and ValueError, and what is valid stays valid."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(given, dict):
        return False
    before = dict(given)
    try:
        config = TierConfig.from_options(given)
    except (TypeError, ValueError):
        return False
    assert given == before, "the caller's options were changed"
    assert dataclasses.replace(config) == config
    assert 0 <= float(config.negative_ttl_s) < float("inf")
    return True


def scanned_names(data: bytes, scratch: Path) -> bool:
    """Scan a namespace that has a file of this path: it is a chunk if it lies where its key belongs."""
    _key_paths(data)
    path = inputs.path_below(scratch, data)
    if path is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(inputs.CHUNK_SIZE_BYTES))
    index = KeyIndex(1.0)
    ownership = Ownership(str(scratch), "shared", FILE_MODE)
    try:
        scan = Scan(str(scratch), inputs.CHUNK_SIZE_BYTES, index, ownership)
        scan.run()
    finally:
        ownership.release()
    shutil.rmtree(path.parents[1])
    assert scan.complete
    key = inputs.key_at(os.fsdecode(data))
    assert scan.files == (key is not None)
    assert index.stats()["index_keys"] == scan.files
    assert key is None or index.count_present([key]) == 1
    return key is not None


def _key_paths(key: bytes) -> None:
    if len(key) not in _KEY_SIZES:
        return
    path = Namespace("/root", _FIELDS).chunk_path(key)
    below = "/".join(chunk_names(key))
    assert path == f"{Namespace('/root', _FIELDS).base_path}/{below}"
    assert below == inputs.chunk_path(key)
    assert all(part not in ("", ".", "..") for part in below.split("/"))
    assert inputs.key_at(below) == key, "the paths of two keys are one"


def whole_mark(data: bytes, scratch: Path) -> bool:
    """Take the mark of a snapshot away: of any other file not a byte changes."""
    path = scratch / SNAPSHOT_NAME
    path.write_bytes(data)
    clear_whole_mark(str(scratch))
    marked = MAGIC + b"\1"
    expected = MAGIC + b"\0" + data[len(marked) :] if data.startswith(marked) else data
    assert path.read_bytes() == expected
    return expected != data


def seal(data: bytes, scratch: Path) -> bool:
    """Verify a chunk whose file has any attributes: only the right ones are believed."""
    content = memoryview(inputs.SEALED_CONTENT)
    right_checksum = crc32c.checksum(content).to_bytes(4, "big")
    right_tag = inputs.SEALED_KEY[-28:]
    given = inputs.SealInput.parse(data, right_checksum, right_tag)
    if given is None:
        return False
    path = scratch / "chunk"
    path.unlink(missing_ok=True)
    path.touch()
    try:
        put_attributes(path, given)
    except OSError:
        # Larger than this file system has room for.
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        verdict = Seal(inputs.SEALED_KEY, given.required).check(fd, content)
    finally:
        os.close(fd)
    whole = given.checksum is not None and given.tag is not None
    if given.required and not whole:
        assert verdict is Verdict.UNSEALED
    elif given.tag not in (None, right_tag) or given.checksum not in (None, right_checksum):
        assert verdict is Verdict.DAMAGED
    else:
        assert verdict is (Verdict.UNVERIFIED if given.checksum is None else Verdict.VERIFIED)
        return True
    return False


def put_attributes(path: Path, given: inputs.SealInput) -> None:
    """Give a file the attributes of an input.

    Raises:
        OSError: What the file system said.
    """
    for name, value in ((CHECKSUM_ATTRIBUTE, given.checksum), (KEY_ATTRIBUTE, given.tag)):
        if value is not None:
            os.setxattr(path, name, value)


# Each with the kind of its inputs.
TARGETS: Final[Mapping[str, tuple[str, Target]]] = {
    "identity-content": ("identity", identity_content),
    "identity-file": ("identity", identity_file),
    "config-file": ("config", config_file),
    "options": ("options", options),
    "scanned-names": ("names", scanned_names),
    "whole-mark": ("snapshot", whole_mark),
    "seal": ("seal", seal),
}
