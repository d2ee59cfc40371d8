"""Level 2's argument checks: what is refused, with which message, and that nothing was accepted then."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

KEY = bytes(36)


def _buffer() -> memoryview:
    return memoryview(bytearray(4 * 512)).cast("B", (4, 512))


@pytest.mark.parametrize("count", [0, -1, 1025, 10_000, 2**40])
@pytest.mark.parametrize("name", ["n_read_threads", "n_write_threads"])
def test_engine_bad_thread_count_raises_value_error_with_name_and_value(
    io: IoBackend, tmp_path: Path, name: str, count: int
) -> None:
    counts = {"n_read_threads": 1, "n_write_threads": 1, name: count}
    threads_before = threading.active_count()
    with pytest.raises(ValueError, match=rf"{name}.*1024.*{count}"):
        io.Engine(str(tmp_path), _buffer(), counts["n_read_threads"], counts["n_write_threads"], False)
    assert threading.active_count() == threads_before


@pytest.mark.parametrize(
    ("count", "error"),
    [("1", TypeError), (1.0, TypeError), (None, TypeError), (2**70, (TypeError, ValueError))],
    ids=["str", "float", "none", "beyond-64-bits"],
)
def test_engine_impossible_thread_count_raises(
    io: IoBackend, tmp_path: Path, count: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        io.Engine(str(tmp_path), _buffer(), count, 1, False)  # type: ignore[arg-type]


LIMITS = ("max_inflight_read_bytes", "max_inflight_write_bytes", "max_queued_store_bytes")


@pytest.mark.parametrize(
    ("limit_bytes", "error", "words"),
    [
        pytest.param(0, ValueError, "must be at least 1, got 0", id="zero"),
        pytest.param(-1, ValueError, "must be at least 1, got -1", id="negative"),
        pytest.param("1", TypeError, None, id="str"),
        pytest.param(1.5, TypeError, None, id="float"),
        pytest.param(2.0, TypeError, None, id="whole-float"),
        pytest.param([1], TypeError, None, id="list"),
        pytest.param(None, TypeError, None, id="none"),
    ],
)
@pytest.mark.parametrize("name", LIMITS)
def test_engine_bad_limit_raises_and_leaves_nothing(
    io: IoBackend, tmp_path: Path, name: str, limit_bytes: object, error: type[Exception], words: str | None
) -> None:
    if limit_bytes is None and name == "max_queued_store_bytes":
        io.Engine(str(tmp_path), _buffer(), 1, 1, max_queued_store_bytes=None).close()
        return
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    threads_before = threading.active_count()
    with pytest.raises(error, match=words and f"^{name} {words}") as caught:
        io.Engine(str(tmp_path / "ns"), buffer, 1, 1, **{name: limit_bytes})  # type: ignore[arg-type]
    assert caught.value is not None
    assert threading.active_count() == threads_before
    assert not (tmp_path / "ns").exists()
    buffer.release()
    memory.extend(b"would raise BufferError")


@pytest.mark.parametrize("name", LIMITS)
def test_engine_limit_may_be_a_numpy_integer_and_huge(io: IoBackend, tmp_path: Path, name: str) -> None:
    for limit_bytes in (np.int64(1), np.uint32(2**32 - 1), 2**63 - 1):
        engine = io.Engine(str(tmp_path), _buffer(), 1, 1, **{name: limit_bytes})  # type: ignore[arg-type]
        engine.submit_store(1, KEY, 36, [0])
        engine.submit_load(2, KEY, 36, [1])
        assert engine.drain(30)
        engine.close()
        assert len(engine.poll()) == 2


@pytest.mark.parametrize(
    ("base_path", "error", "words"),
    [
        pytest.param("", ValueError, "base_path.*empty", id="empty"),
        pytest.param("a\0b", ValueError, "(?i)nul", id="nul"),
        pytest.param("a\ud800", ValueError, "surrogate|encode", id="lone-surrogate"),
        pytest.param(b"a", TypeError, "bytes", id="bytes"),
        pytest.param(Path("a"), TypeError, "PosixPath", id="path-object"),
        pytest.param(None, TypeError, "None", id="none"),
    ],
)
def test_engine_bad_base_path_raises(
    io: IoBackend, base_path: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        io.Engine(base_path, _buffer(), 1, 1, False)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        pytest.param(lambda: memoryview(bytes(64)).cast("B", (8, 8)), ValueError, "writable", id="read-only"),
        pytest.param(lambda: bytearray(64), ValueError, r"num_chunks", id="1-d"),
        pytest.param(lambda: np.zeros((2, 4, 8), np.int8), ValueError, r"num_chunks", id="3-d"),
        pytest.param(lambda: np.zeros((8, 8), np.int16), ValueError, "byte", id="two-bytes-an-element"),
        pytest.param(lambda: np.zeros((8, 8), np.float32), ValueError, "byte", id="float32"),
        pytest.param(lambda: np.zeros((8, 16), np.int8)[:, ::2], ValueError, "contiguous", id="strided"),
        pytest.param(lambda: np.zeros((8, 16), np.int8)[:, :8], ValueError, "contiguous", id="column-slice"),
        pytest.param(lambda: np.zeros((8, 4), np.int8).T, ValueError, "contiguous", id="transposed"),
        pytest.param(lambda: np.zeros((0, 8), np.int8), ValueError, "num_chunks", id="no-chunks"),
        pytest.param(lambda: np.zeros((8, 0), np.int8), ValueError, "num_chunks", id="chunks-of-no-bytes"),
        pytest.param(lambda: "text", TypeError, "str", id="str"),
        pytest.param(lambda: None, TypeError, "None", id="none"),
    ],
)
def test_engine_bad_buffer_raises(
    io: IoBackend, tmp_path: Path, make: Callable[[], bytearray], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        io.Engine(str(tmp_path), make(), 1, 1, False)


def test_engine_bad_argument_does_not_keep_the_buffer(io: IoBackend, tmp_path: Path) -> None:
    memory = bytearray(64)
    with pytest.raises(ValueError, match="n_read_threads") as caught:
        io.Engine(str(tmp_path), memoryview(memory).cast("B", (8, 8)), 0, 1, False)
    assert caught.value is not None
    with pytest.raises(ValueError, match="num_chunks") as caught:
        io.Engine(str(tmp_path), memory, 1, 1, False)
    assert caught.value is not None
    memory.extend(b"would raise BufferError")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(_buffer, id="memoryview"),
        pytest.param(lambda: np.zeros((4, 512), np.int8), id="numpy-int8"),
        pytest.param(lambda: np.zeros((4, 512), np.uint8), id="numpy-uint8"),
        pytest.param(lambda: np.zeros((4, 512), np.bool_), id="numpy-bool"),
        pytest.param(lambda: np.zeros((9, 512), np.int8)[5:], id="numpy-row-slice"),
        pytest.param(lambda: memoryview(bytearray(2048)).cast("b", (4, 512)), id="memoryview-int8"),
        pytest.param((ctypes.c_int8 * 512) * 4, id="ctypes-int8"),
    ],
)
def test_engine_any_one_byte_buffer_is_used_in_place(
    io: IoBackend, tmp_path: Path, make: Callable[[], bytearray]
) -> None:
    buffer = make()
    path = tmp_path / "000" / "00_g0" / ("0" * 64 + ".bin")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x01" * 512)
    engine = io.Engine(str(tmp_path), buffer, 1, 1, False)
    engine.submit_load(1, KEY, 36, [2])
    assert engine.drain(30)
    engine.close()
    assert engine.poll()[0].outcomes == [0]
    assert memoryview(buffer).tobytes() == bytes(1024) + b"\x01" * 512 + bytes(512)


@pytest.mark.parametrize("use_o_direct", [1, "yes", None], ids=repr)
def test_engine_use_o_direct_no_bool_raises_type_error(
    io: IoBackend, tmp_path: Path, use_o_direct: object
) -> None:
    with pytest.raises(TypeError):
        io.Engine(str(tmp_path), _buffer(), 1, 1, use_o_direct)  # type: ignore[arg-type]


def _submit(rig_engine: object, kind: str, arguments: tuple[object, ...]) -> None:
    count = 3 if kind == "lookup" else 4
    getattr(rig_engine, f"submit_{kind}")(*arguments[:count])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        pytest.param((1, KEY, 4, [0]), ValueError, r"key_size_bytes.*\b4\b", id="key-size-4"),
        pytest.param((1, KEY, 0, [0]), ValueError, r"key_size_bytes.*\b0\b", id="key-size-0"),
        pytest.param((1, KEY, -36, [0]), ValueError, r"key_size_bytes.*-36", id="key-size-negative"),
        pytest.param((1, bytes(256), 256, [0]), ValueError, r"key_size_bytes.*\b256\b", id="key-size-256"),
        pytest.param((1, b"", 0, []), ValueError, r"key_size_bytes.*\b0\b", id="no-keys-of-size-0"),
        pytest.param((1, KEY[:-1], 36, [0]), ValueError, r"\b35\b.*\b36\b", id="a-byte-short"),
        pytest.param((1, KEY + b"x", 36, [0]), ValueError, r"\b37\b.*\b36\b", id="a-byte-long"),
        pytest.param((1, bytearray(KEY), 36, [0]), TypeError, "bytearray", id="keys-bytearray"),
        pytest.param((1, "k" * 36, 36, [0]), TypeError, "str", id="keys-str"),
        pytest.param((1, [KEY], 36, [0]), TypeError, "list", id="keys-list"),
        pytest.param((1, None, 36, [0]), TypeError, "None", id="keys-none"),
        pytest.param((1, KEY, "36", [0]), TypeError, "str", id="key-size-str"),
        pytest.param((1, KEY, 36.0, [0]), TypeError, "float", id="key-size-float"),
        pytest.param(("1", KEY, 36, [0]), TypeError, "str", id="job-id-str"),
        pytest.param((None, KEY, 36, [0]), TypeError, "None", id="job-id-none"),
        pytest.param((1.0, KEY, 36, [0]), TypeError, "float", id="job-id-float"),
    ],
)
@pytest.mark.parametrize("kind", ["store", "load", "lookup"])
def test_submit_bad_keys_raise_and_nothing_is_accepted(
    start_rig: StartRig,
    tmp_path: Path,
    kind: str,
    arguments: tuple[object, ...],
    error: type[Exception],
    words: str,
) -> None:
    rig = start_rig(tmp_path)
    with pytest.raises(error, match=words):
        _submit(rig.engine, kind, arguments)
    assert rig.engine.stats()["inflight_jobs"] == 0
    assert rig.engine.drain(30)
    assert list(rig.engine.poll()) == []
    assert rig.files() == []


@pytest.mark.parametrize(
    ("chunk_ids", "error", "words"),
    [
        pytest.param([], ValueError, r"\b1\b.*\b0\b|\b0\b.*\b1\b", id="too-few"),
        pytest.param([0, 1], ValueError, r"\b1\b.*\b2\b|\b2\b.*\b1\b", id="too-many"),
        pytest.param((0,), TypeError, "tuple", id="tuple"),
        pytest.param(None, TypeError, "None", id="none"),
        pytest.param(0, TypeError, "int", id="int"),
        pytest.param(np.array([0]), TypeError, "ndarray", id="numpy-array"),
        pytest.param(["0"], TypeError, r"\b0\b.*str", id="of-str"),
        pytest.param([0.0], TypeError, r"\b0\b.*float", id="of-float"),
        pytest.param([None], TypeError, r"\b0\b.*None", id="of-none"),
    ],
)
@pytest.mark.parametrize("kind", ["store", "load"])
def test_submit_bad_chunk_ids_raise_and_nothing_is_accepted(
    start_rig: StartRig, tmp_path: Path, kind: str, chunk_ids: object, error: type[Exception], words: str
) -> None:
    rig = start_rig(tmp_path)
    with pytest.raises(error, match=words):
        _submit(rig.engine, kind, (1, KEY, 36, chunk_ids))
    assert rig.engine.stats()["inflight_jobs"] == 0
    assert list(rig.engine.poll()) == []
    assert rig.files() == []


@pytest.mark.parametrize("job_id", [2**63, -(2**63) - 1, 2**100])
def test_submit_job_id_beyond_64_bits_raises(start_rig: StartRig, tmp_path: Path, job_id: int) -> None:
    engine = start_rig(tmp_path).engine
    with pytest.raises((TypeError, ValueError), match="job_id"):
        engine.submit_lookup(job_id, KEY, 36)
    assert list(engine.poll()) == []


@pytest.mark.parametrize("key_size_bytes", [5, 6, 12, 36, 68, 255])
def test_submit_any_key_size_in_range_is_accepted(
    start_rig: StartRig, tmp_path: Path, key_size_bytes: int
) -> None:
    rig = start_rig(tmp_path)
    rig.engine.submit_lookup(7, bytes(3 * key_size_bytes), key_size_bytes)
    assert len(rig.finish()[7].outcomes) == 3


def test_submit_keywords_as_in_the_stub_are_accepted(io: IoBackend, tmp_path: Path) -> None:
    engine = io.Engine(
        base_path=str(tmp_path), buffer=_buffer(), n_read_threads=1, n_write_threads=1, use_o_direct=True
    )
    engine.submit_store(job_id=1, keys=KEY, key_size_bytes=36, chunk_ids=[0])
    assert engine.drain(timeout_s=30)
    engine.submit_load(job_id=2, keys=KEY, key_size_bytes=36, chunk_ids=[1])
    engine.submit_lookup(job_id=3, keys=KEY, key_size_bytes=36)
    assert engine.drain()
    engine.close()
    assert sorted((done.job_id, done.outcomes) for done in engine.poll()) == [(1, [0]), (2, [0]), (3, [0])]


@pytest.mark.parametrize("timeout_s", ["1", b"1", [1]], ids=repr)
def test_drain_timeout_no_number_raises_type_error(
    start_rig: StartRig, tmp_path: Path, timeout_s: object
) -> None:
    with pytest.raises(TypeError):
        start_rig(tmp_path).engine.drain(timeout_s)  # type: ignore[arg-type]
