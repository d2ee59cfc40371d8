"""Tests of the micro benchmark's proof that bytes are right, and of its files, which all arms share."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from harness.micro import cases, chunks
from kvfs.paths import Namespace

CHUNK_BYTES = 64 << 10
PAGE_WORDS = cases.PAGE_BYTES // 8


def chunk(content: chunks.Content, number: int) -> npt.NDArray[np.uint64]:
    words = np.zeros(CHUNK_BYTES // 8, dtype=np.uint64)
    content.write(number, words)
    return words


def test_content_knows_its_own_chunk_and_no_other() -> None:
    content = chunks.Content(CHUNK_BYTES, 1)
    words = chunk(content, 7)
    assert content.is_in(7, words)
    assert not content.is_in(8, words)
    assert not chunks.Content(CHUNK_BYTES, 2).is_in(7, words)


def flip_one_bit(words: npt.NDArray[np.uint64]) -> None:
    words[12345 % len(words)] ^= np.uint64(1)


def swap_two_pages(words: npt.NDArray[np.uint64]) -> None:
    first = words[:PAGE_WORDS].copy()
    words[:PAGE_WORDS] = words[PAGE_WORDS : 2 * PAGE_WORDS]
    words[PAGE_WORDS : 2 * PAGE_WORDS] = first


def zero_the_last_page(words: npt.NDArray[np.uint64]) -> None:
    words[-PAGE_WORDS:] = 0


@pytest.mark.parametrize("damage", [flip_one_bit, swap_two_pages, zero_the_last_page])
def test_content_sees_damage(damage: object) -> None:
    content = chunks.Content(CHUNK_BYTES, 1)
    words = chunk(content, 0)
    assert callable(damage)
    damage(words)
    assert not content.is_in(0, words)


def test_buffer_is_of_vllms_shape_and_page_aligned() -> None:
    buffer = chunks.PrimaryBuffer(3, chunks.Content(CHUNK_BYTES, 1), CHUNK_BYTES)
    assert buffer.view.shape == (3, CHUNK_BYTES)
    assert buffer.view.format == "b"
    assert not buffer.view.readonly
    assert np.frombuffer(buffer.view.cast("B"), dtype=np.uint8).ctypes.data % cases.PAGE_BYTES == 0


def test_buffer_holds_chunks_in_stored_rows_and_nothing_in_loaded_ones() -> None:
    buffer = chunks.PrimaryBuffer(4, chunks.Content(CHUNK_BYTES, 1), CHUNK_BYTES)
    assert buffer.wrong_rows((row, row) for row in range(4)) == [0, 1, 2, 3]
    buffer.reset(0)
    assert buffer.wrong_rows((row, row) for row in range(4)) == []
    buffer.reset(2)
    assert buffer.wrong_rows((row, row) for row in range(4)) == [0, 1]


def test_paths_are_those_of_the_namespace() -> None:
    namespace = Namespace("/somewhere", chunks.FIELDS)
    key = chunks.key_of(1, 2)
    assert str(chunks.path_of(namespace.base_path, key)) == namespace.chunk_path(key)


def test_written_files_hold_their_chunks_and_damage_is_found(tmp_path: Path) -> None:
    content = chunks.Content(CHUNK_BYTES, 1)
    keys = [chunks.key_of(1, number) for number in range(3)]
    paths = chunks.write_files(str(tmp_path), content, CHUNK_BYTES, keys)
    pairs = list(zip(paths, range(3), strict=True))
    assert chunks.wrong_files(content, pairs) == []
    data = bytearray(paths[0].read_bytes())
    data[100] ^= 1
    paths[0].write_bytes(data)
    paths[1].write_bytes(data[:-1])
    paths[2].unlink()
    assert chunks.wrong_files(content, pairs) == paths


def test_remove_files_leaves_no_empty_directory_and_spares_others(tmp_path: Path) -> None:
    content = chunks.Content(CHUNK_BYTES, 1)
    keys = [chunks.key_of(1, number) for number in range(2)]
    gone, kept = chunks.write_files(str(tmp_path), content, CHUNK_BYTES, keys)
    neighbour = gone.with_name("other")
    neighbour.touch()
    chunks.remove_files([gone, gone.with_name("never-stored")])
    assert neighbour.exists()
    chunks.remove_files([neighbour])
    assert not gone.parent.parent.exists()
    assert kept.exists()
