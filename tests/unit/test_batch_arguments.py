"""Level 1's argument checks: the same exceptions from both implementations, and nothing moves before them."""

from __future__ import annotations

import array
import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from kvfs.jobs import IoBackend

NOT_LISTS = [
    pytest.param(("a",), "tuple", id="tuple"),
    pytest.param(None, "NoneType", id="none"),
    pytest.param((name for name in ("a",)), "generator", id="generator"),
    pytest.param("a", "str", id="str"),
    pytest.param({"a": 1}, "dict", id="dict"),
]
NOT_STRINGS = [
    pytest.param(b"a", "bytes", id="bytes"),
    pytest.param(None, "NoneType", id="none"),
    pytest.param(Path("a"), "PosixPath", id="path-object"),
    pytest.param(3, "int", id="int"),
]
BAD_PATHS = [
    pytest.param("a\0b", id="nul"),
    pytest.param("\0", id="only-nul"),
    pytest.param("a\ud800", id="lone-surrogate"),
]


def _read_only() -> memoryview:
    return memoryview(bytes(8))


def _strided() -> memoryview:
    return memoryview(bytearray(16))[::2]


@pytest.mark.parametrize(("paths", "type_name"), NOT_LISTS)
def test_batch_lookup_not_a_list_raises_type_error(io: IoBackend, paths: object, type_name: str) -> None:
    with pytest.raises(TypeError, match=type_name):
        io.batch_lookup(paths)  # type: ignore[arg-type]


@pytest.mark.parametrize(("element", "type_name"), NOT_STRINGS)
def test_batch_lookup_element_no_str_raises_type_error_with_index(
    io: IoBackend, element: object, type_name: str
) -> None:
    with pytest.raises(TypeError, match=rf"\b2\b.*{type_name}"):
        io.batch_lookup(["a", "b", element])  # type: ignore[list-item]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_batch_lookup_impossible_path_raises_value_error(io: IoBackend, path: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        io.batch_lookup(["a", path])


def test_batch_lookup_path_with_nul_after_existing_file_raises_value_error(
    io: IoBackend, tmp_path: Path
) -> None:
    existing = tmp_path / "chunk.bin"
    existing.write_bytes(b"x")
    # C strings end at NUL: an implementation that forgets that finds the file.
    with pytest.raises(ValueError, match=r"(?i)nul"):
        io.batch_lookup([f"{existing}\0.bin"])


@pytest.mark.parametrize(("paths", "type_name"), NOT_LISTS)
@pytest.mark.parametrize("position", [0, 1, 2], ids=["tmp_paths", "dest_paths", "buffers"])
def test_batch_store_not_a_list_raises_type_error(
    io: IoBackend, position: int, paths: object, type_name: str
) -> None:
    arguments: list[object] = [["a.tmp"], ["a"], [b"x"]]
    arguments[position] = paths
    with pytest.raises(TypeError, match=type_name):
        io.batch_store(arguments[0], arguments[1], arguments[2])  # type: ignore[arg-type]


@pytest.mark.parametrize(("paths", "type_name"), NOT_LISTS)
@pytest.mark.parametrize("position", [0, 1], ids=["paths", "buffers"])
def test_batch_load_not_a_list_raises_type_error(
    io: IoBackend, position: int, paths: object, type_name: str
) -> None:
    arguments: list[object] = [["a"], [bytearray(1)]]
    arguments[position] = paths
    with pytest.raises(TypeError, match=type_name):
        io.batch_load(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("element", "type_name"), NOT_STRINGS)
@pytest.mark.parametrize("position", [0, 1], ids=["tmp_paths", "dest_paths"])
def test_batch_store_element_no_str_raises_type_error_and_stores_nothing(
    io: IoBackend, tmp_path: Path, position: int, element: object, type_name: str
) -> None:
    arguments: list[list[object]] = [
        [str(tmp_path / "0.tmp"), str(tmp_path / "1.tmp")],
        [str(tmp_path / "0"), str(tmp_path / "1")],
    ]
    arguments[position][1] = element
    with pytest.raises(TypeError, match=rf"\b1\b.*{type_name}"):
        io.batch_store(arguments[0], arguments[1], [b"x", b"y"])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("position", [0, 1], ids=["tmp_paths", "dest_paths"])
def test_batch_store_impossible_path_raises_value_error_and_stores_nothing(
    io: IoBackend, tmp_path: Path, position: int, path: str
) -> None:
    arguments = [
        [str(tmp_path / "0.tmp"), str(tmp_path / "1.tmp")],
        [str(tmp_path / "0"), str(tmp_path / "1")],
    ]
    arguments[position][1] = str(tmp_path / path)
    with pytest.raises(ValueError, match=r".+"):
        io.batch_store(arguments[0], arguments[1], [b"x", b"y"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", BAD_PATHS)
def test_batch_load_impossible_path_raises_value_error_and_loads_nothing(
    io: IoBackend, tmp_path: Path, path: str
) -> None:
    good = tmp_path / "0"
    good.write_bytes(b"xx")
    buffers = [bytearray(2), bytearray(2)]
    with pytest.raises(ValueError, match=r".+"):
        io.batch_load([str(good), str(tmp_path / path)], buffers)  # type: ignore[arg-type]
    assert buffers[0] == bytes(2)


@pytest.mark.parametrize(
    ("tmp_count", "dest_count", "buffer_count"),
    [(1, 2, 2), (2, 1, 2), (2, 2, 1), (0, 1, 1), (1, 1, 0)],
    ids=str,
)
def test_batch_store_mismatched_lengths_raises_value_error_with_lengths(
    io: IoBackend, tmp_path: Path, tmp_count: int, dest_count: int, buffer_count: int
) -> None:
    temporaries = [str(tmp_path / f"{i}.tmp") for i in range(tmp_count)]
    destinations = [str(tmp_path / f"{i}") for i in range(dest_count)]
    with pytest.raises(ValueError, match=rf"{max(tmp_count, dest_count, buffer_count)}") as caught:
        io.batch_store(temporaries, destinations, [b"x"] * buffer_count)
    assert str(min(tmp_count, dest_count, buffer_count)) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path_count", "buffer_count"), [(1, 2), (2, 1), (0, 1), (1, 0)])
def test_batch_load_mismatched_lengths_raises_value_error_with_lengths(
    io: IoBackend, path_count: int, buffer_count: int
) -> None:
    with pytest.raises(ValueError, match=str(path_count)) as caught:
        io.batch_load(["missing"] * path_count, [bytearray(1) for _ in range(buffer_count)])
    assert str(buffer_count) in str(caught.value)


@pytest.mark.parametrize(
    ("buffer", "error", "words"),
    [
        pytest.param(b"", ValueError, "empty", id="empty"),
        pytest.param(_strided(), ValueError, "contiguous", id="strided"),
        pytest.param(np.zeros((4, 4), np.int8).T[1:], ValueError, "contiguous", id="transposed-slice"),
        pytest.param(np.asfortranarray(np.zeros((4, 2), np.int8)), ValueError, "contiguous", id="fortran"),
        pytest.param("text", TypeError, "str", id="str"),
        pytest.param(None, TypeError, "NoneType", id="none"),
        pytest.param([1, 2], TypeError, "list", id="list"),
    ],
)
def test_batch_store_unusable_buffer_raises_with_index_and_stores_nothing(
    io: IoBackend, tmp_path: Path, buffer: object, error: type[Exception], words: str
) -> None:
    temporaries = [str(tmp_path / "0.tmp"), str(tmp_path / "1.tmp")]
    destinations = [str(tmp_path / "0"), str(tmp_path / "1")]
    with pytest.raises(error, match=rf"\b1\b.*{words}"):
        io.batch_store(temporaries, destinations, [b"x", buffer])  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("buffer", "error", "words"),
    [
        pytest.param(bytearray(), ValueError, "empty", id="empty"),
        pytest.param(b"xx", ValueError, "writable", id="bytes"),
        pytest.param(_read_only(), ValueError, "writable", id="read-only-view"),
        pytest.param(_strided(), ValueError, "contiguous", id="strided"),
        pytest.param("text", TypeError, "str", id="str"),
        pytest.param(None, TypeError, "NoneType", id="none"),
    ],
)
def test_batch_load_unusable_buffer_raises_with_index_and_loads_nothing(
    io: IoBackend, tmp_path: Path, buffer: object, error: type[Exception], words: str
) -> None:
    good = tmp_path / "0"
    good.write_bytes(b"xx")
    first = bytearray(2)
    with pytest.raises(error, match=rf"\b1\b.*{words}"):
        io.batch_load([str(good), str(good)], [first, buffer])  # type: ignore[list-item]
    assert first == bytes(2)


@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param(bytearray(64), id="bytearray"),
        pytest.param(memoryview(bytearray(80))[8:72], id="memoryview-slice"),
        pytest.param(array.array("i", [0] * 16), id="array-of-int"),
        pytest.param(mmap.mmap(-1, 64), id="mmap"),
        pytest.param((ctypes.c_ubyte * 64)(), id="ctypes"),
        pytest.param(np.zeros((4, 16), np.int8), id="numpy-int8-2d"),
        pytest.param(np.zeros(16, np.float32), id="numpy-float32"),
    ],
)
def test_batch_round_trip_any_contiguous_buffer_keeps_bytes(
    io: IoBackend, tmp_path: Path, buffer: bytearray
) -> None:
    path = tmp_path / "chunk"
    data = bytes(range(64))
    path.write_bytes(data)
    io.batch_load([str(path)], [buffer])
    io.batch_store([str(tmp_path / "copy.tmp")], [str(tmp_path / "copy")], [buffer])
    assert (tmp_path / "copy").read_bytes() == data


def test_batch_empty_lists_do_nothing(io: IoBackend) -> None:
    assert io.batch_lookup([]) == []
    io.batch_store([], [], [])
    io.batch_load([], [])


def test_batch_store_failure_releases_buffers(io: IoBackend, tmp_path: Path) -> None:
    buffer = bytearray(8)
    with pytest.raises(OSError, match=r".+") as caught:
        io.batch_store([str(tmp_path / "a.tmp")], [str(tmp_path)], [buffer])
    # The exception is still alive; it must not hold the buffer, or this resize raises BufferError.
    buffer.extend(b"more")
    assert caught.value.filename == str(tmp_path)
