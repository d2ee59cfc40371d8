"""The inputs of the native targets through whole engines, native or Python: what the tests replay.

No coverage guides these; they need no compiler, and hold what a user would see. Each returns whether that
user has his chunk.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.fuzz import inputs
from harness.fuzz.python_targets import put_attributes
from kvfs.fallback import crc32c
from kvfs.jobs import HIT, EngineLike

EngineTarget = Callable[[bytes, Path, types.ModuleType], bool]

_WAIT_S: Final = 30.0


@contextmanager
def _engine(
    io: types.ModuleType, base: Path, size_bytes: int, **options: object
) -> Iterator[tuple[EngineLike, memoryview]]:
    memory = memoryview(bytearray(size_bytes))
    engine: EngineLike = io.Engine(str(base), memory.cast("B", (1, size_bytes)), 1, 1, **options)
    try:
        _await_stats(engine, "scan_complete")
        yield engine, memory
    finally:
        engine.close()


def _await_stats(engine: EngineLike, name: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not engine.stats()[name]:
        assert time.monotonic() < deadline, f"{name} stays 0"
        time.sleep(0.0002)


def snapshot(data: bytes, scratch: Path, io: types.ModuleType) -> bool:
    """Start on a snapshot: after the scan the hits are the files that are there."""
    inputs.make_namespace(scratch)
    (scratch / "kvfs.index").write_bytes(data)
    with _engine(io, scratch, inputs.CHUNK_SIZE_BYTES) as (engine, _):
        assert engine.stats()["index_keys"] == len(inputs.KEYS)
        assert [engine.lookup(key) for key in inputs.KEYS] == [HIT] * len(inputs.KEYS)
    return True


def names(data: bytes, scratch: Path, io: types.ModuleType) -> bool:
    """Start where a file of this path lies: it is a hit if it lies where its key belongs."""
    path = inputs.path_below(scratch, data)
    if path is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(inputs.CHUNK_SIZE_BYTES))
    with _engine(io, scratch, inputs.CHUNK_SIZE_BYTES) as (engine, _):
        key = inputs.key_at(os.fsdecode(data))
        assert engine.stats()["index_keys"] == (key is not None)
        assert key is None or engine.lookup(key) == HIT
    shutil.rmtree(path.parents[1])
    return key is not None


def seal(data: bytes, scratch: Path, io: types.ModuleType) -> bool:
    """Load a chunk whose file has any attributes: it comes whole, or is refused for what its seal says."""
    right_checksum = crc32c.checksum(memoryview(inputs.SEALED_CONTENT)).to_bytes(4, "big")
    right_tag = inputs.SEALED_KEY[-28:]
    given = inputs.SealInput.parse(data, right_checksum, right_tag)
    if given is None:
        return False
    path = scratch / inputs.chunk_path(inputs.SEALED_KEY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(inputs.SEALED_CONTENT)
    try:
        put_attributes(path, given)
    except OSError:
        path.unlink()
        return False
    checksum = "require" if given.required else "auto"
    with _engine(io, scratch, len(inputs.SEALED_CONTENT), checksum=checksum) as (engine, memory):
        engine.submit_load(0, inputs.SEALED_KEY, len(inputs.SEALED_KEY), [0])
        assert engine.drain(_WAIT_S)
        (completion,) = engine.poll()
        if given.required and None in (given.checksum, given.tag):
            assert completion.outcomes == [errno.ENODATA]
        elif given.tag not in (None, right_tag) or given.checksum not in (None, right_checksum):
            assert completion.outcomes == [errno.EBADMSG]
            assert not path.exists()
        else:
            assert completion.outcomes == [0]
            assert bytes(memory) == inputs.SEALED_CONTENT
    path.unlink(missing_ok=True)
    return completion.outcomes == [0]


def space(data: bytes, scratch: Path, io: types.ModuleType) -> bool:
    """Start on a shared space file: what it says keeps no chunk from being loaded, and adds up."""
    (scratch / "kvfs.space").write_bytes(data)
    limits = {"capacity_bytes": 1 << 30, "space_root": str(scratch)}
    with _engine(io, scratch / "namespace", inputs.CHUNK_SIZE_BYTES, **limits) as (engine, _):
        # Until then all that is on the disk may be its own, and stores are shed.
        _await_stats(engine, "space_counted")
        engine.submit_store(0, inputs.KEYS[0], len(inputs.KEYS[0]), [0])
        assert engine.drain(_WAIT_S)
        (completion,) = engine.poll()
        # Shed, where the file says that all of the capacity is taken.
        assert completion.outcomes in ([0], [errno.EAGAIN])
        assert 0 <= engine.stats()["used_bytes"] < 1 << 62
    shutil.rmtree(scratch / "namespace")
    return completion.outcomes == [0]


# By the kind of their inputs.
ENGINE_TARGETS: Final[Mapping[str, EngineTarget]] = {
    "names": names,
    "seal": seal,
    "snapshot": snapshot,
    "space": space,
}
