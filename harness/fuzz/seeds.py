"""Write the seeds of `tests/fuzz/corpus` from files that kvfs itself makes: `python -m harness.fuzz.seeds`.

Run it in an environment with the wheel and its extension, and look at `git diff`.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import kvfs_ext
from harness.fuzz import inputs
from kvfs import identity
from kvfs.fallback import crc32c
from kvfs.paths import Namespace

_WAIT_S = 30.0
_FIELDS = {"model_name": "org/model", "block_size": 16}


def seeds(scratch: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield kind, name and bytes of each seed."""
    yield from _namespace_files(scratch / "root")
    yield from _snapshots(scratch / "snapshot")
    yield from _names()
    yield from _seals()
    yield "space", "engine", _space_file(scratch / "space")
    words = [1, 1 << 30, 5 << 20, 1 << 20, -(1 << 20)]
    yield "space", "three-processes", b"KVFSSPC1" + struct.pack("<5q", *words) + bytes(8 * 1021)
    yield "space", "cut-short", b"KVFSSPC1" + bytes(100)


def _namespace_files(root: Path) -> Iterator[tuple[str, str, bytes]]:
    root.mkdir()
    namespace = Namespace(str(root), _FIELDS, traits={"kv_cache_dtype": "auto"})
    namespace.write_config()
    identity.settle(namespace, inputs.CHUNK_SIZE_BYTES)
    config = Path(namespace.config_path).read_bytes()
    record = Path(namespace.identity_path).read_bytes()
    yield "config", "as-written", config
    yield "config", "another-configuration", config.replace(b"16", b"32")
    yield "config", "cut-short", config[:20]
    yield "config", "utf-16", config.decode().encode("utf-16")
    yield "identity", "as-written", record
    yield "identity", "of-a-newer-kvfs", record.replace(b'"layout_version": 1', b'"layout_version": 2')
    yield "identity", "without-traits", record.replace(b'"kv_cache_dtype": "auto",', b"")
    yield "identity", "field-twice", record.replace(b"{", b'{"layout": "files",', 1)
    yield "identity", "no-numbers", b'{"chunk_size_bytes": NaN, "layout_version": 1e999, "weights": null}'
    given = {"root_dir": "/data", "n_read_threads": 4, "io_engine": "psync", "negative_ttl_s": 0.5}
    modes = {"file_mode": "0640", "dir_mode": "750", "checksum_blocks": True, "locality": "LOCAL"}
    yield "options", "some", json.dumps(given | modes).encode()
    bytes_by_name = {"max_inflight_read_bytes": 1 << 20, "max_queued_store_bytes": None}
    more = {"checksum": "require", "index_mode": "shared", "use_o_direct": False, "enable_kv_events": True}
    yield "options", "others", json.dumps({"root_dir": "a", **bytes_by_name, **more}).encode()
    yield "options", "misspelt", b'{"root_dir": "/data", "n_read_thread": 4}'


def _snapshots(base: Path) -> Iterator[tuple[str, str, bytes]]:
    inputs.make_namespace(base)
    memory = memoryview(bytearray(inputs.CHUNK_SIZE_BYTES)).cast("B", (1, inputs.CHUNK_SIZE_BYTES))
    engine = kvfs_ext.Engine(str(base), memory, 1, 1, index_mode="owner")
    deadline = time.monotonic() + _WAIT_S
    while not engine.stats()["scan_complete"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    engine.close()
    whole = (base / "kvfs.index").read_bytes()
    yield "snapshot", "whole", whole
    yield "snapshot", "not-whole", whole[:8] + b"\0" + whole[9:]
    yield "snapshot", "cut-short", whole[:-20]
    yield "snapshot", "flipped-bit", whole[:70] + bytes([whole[70] ^ 1]) + whole[71:]
    # The first key is another one's, whose file is not there; the checksum is right for neither.
    yield "snapshot", "unknown-key", whole.replace(b"a" * 32, b"z" * 32)
    count = struct.pack("<Q", len(inputs.KEYS))
    yield "snapshot", "count-too-large", whole.replace(count, struct.pack("<Q", 1 << 60))
    yield "snapshot", "sections-of-all-lengths", _all_lengths(whole)


def _all_lengths(whole: bytes) -> bytes:
    """Return a snapshot with one key of each length; each costs the index tables of its own."""
    head = whole[:32] + struct.pack("<Q", 251)
    sections = [
        struct.pack("<QQ", size, 1) + b"k" * size + struct.pack("<IQ", 1, 1) for size in range(5, 256)
    ]
    return head + b"".join(sections) + bytes(8)


def _names() -> Iterator[tuple[str, str, bytes]]:
    for name, key in {
        "short": b"h" + bytes(4),
        "usual": bytes(range(32)) + bytes(4),
        "long": b"\xff" * 100 + b"\xff" * 4,
    }.items():
        yield "names", f"{name}-path", inputs.chunk_path(key).encode()
        yield "names", f"{name}-key", key
    lettered = inputs.chunk_path(bytes(range(0xA0, 0xC0)) + bytes(4))
    yield "names", "capital-digits", lettered.upper().replace("_G", "_g").replace("BIN", "bin").encode()
    path = inputs.chunk_path(bytes(36))
    yield "names", "group-too-large", path.replace("_g0", "_g4294967296").encode()
    yield "names", "group-with-zeros", path.replace("_g0", "_g00").encode()
    yield "names", "wrong-directory", path.replace("000/", "001/", 1).encode()
    yield "names", "temporary", f"{path}_kvfs{'0' * 32}.tmp".encode()
    yield "names", "no-utf-8", b"abc/\xff\xfe_g1/\xc3.bin"


def _seals() -> Iterator[tuple[str, str, bytes]]:
    both = inputs.HAS_CHECKSUM | inputs.HAS_TAG
    right = inputs.RIGHT_CHECKSUM | inputs.RIGHT_TAG
    checksum = crc32c.checksum(memoryview(inputs.SEALED_CONTENT)).to_bytes(4, "big")
    tag = inputs.SEALED_KEY[-28:]
    flags = {
        "right": both | right,
        "right-required": both | right | inputs.REQUIRED,
        "none": 0,
        "none-required": inputs.REQUIRED,
        "tag-alone": inputs.HAS_TAG | right,
        "checksum-alone": inputs.HAS_CHECKSUM | right,
        "wrong": both,
        "wrong-required": both | inputs.REQUIRED,
    }
    for name, value in flags.items():
        yield "seal", name, bytes([value, 4]) + b"abcd" + b"another key"
    yield "seal", "spelt-out", bytes([both, 4]) + checksum + tag
    yield "seal", "checksum-longer", bytes([both, 5]) + checksum + b"\0" + tag
    yield "seal", "tag-longer", bytes([both, 4]) + checksum + tag + b"\0"
    yield "seal", "tag-empty", bytes([both, 4]) + checksum


def _space_file(root: Path) -> bytes:
    memory = memoryview(bytearray(inputs.CHUNK_SIZE_BYTES)).cast("B", (1, inputs.CHUNK_SIZE_BYTES))
    limits = {"capacity_bytes": 1 << 30, "space_root": str(root)}
    engine = kvfs_ext.Engine(str(root / "namespace"), memory, 1, 1, **limits)  # type: ignore[arg-type]  # each of its own type
    engine.submit_store(0, inputs.KEYS[0], len(inputs.KEYS[0]), [0])
    assert engine.drain(_WAIT_S)
    engine.close()
    return (root / "kvfs.space").read_bytes()


def main() -> None:
    """Write all seeds."""
    with tempfile.TemporaryDirectory() as scratch:
        for kind, name, content in seeds(Path(scratch)):
            path = inputs.CORPUS / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    print(f"seeds are in {inputs.CORPUS}")


if __name__ == "__main__":
    main()
