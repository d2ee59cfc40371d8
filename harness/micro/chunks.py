"""The chunks of a run: keys and files, bytes that nothing can compress, and proof that they came back."""

import contextlib
import errno
import functools
import hashlib
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from harness.micro.cases import PAGE_BYTES
from kvfs.fallback.seals import Seal

# What both vLLM's FileMapper and kvfs's Namespace derive the directory from, so that arms share files.
FIELDS: Final[dict[str, object]] = {
    "model_name": "kvfs/micro",
    "tokens_per_hash": 16,
    "blocks_per_file": 1,
    "tp_size": 1,
    "pp_size": 1,
    "pcp_size": 1,
    "dcp_size": 1,
    "dtype": "torch.bfloat16",
    "kv_cache_groups": [],
    "inference_engine": "vllm",
}

_GROUP: Final = (0).to_bytes(4, "big")
_STAMP_FACTOR: Final = 0x9E3779B97F4A7C15
_WORDS_PER_PAGE: Final = PAGE_BYTES // 8
_UNLIKE: Final = 0xA5


@functools.cache
def key_of(seed: int, number: int) -> bytes:
    """Return the key of a chunk: a SHA-256 as vLLM's default block hash is one, and the group."""
    return hashlib.sha256(f"{seed}/{number}".encode()).digest() + _GROUP


def path_of(base_path: str, key: bytes) -> Path:
    """Return the file of a key in the `files` layout."""
    digits = key[:-4].hex()
    group = int.from_bytes(key[-4:], "big")
    return Path(base_path, digits[:3], f"{digits[3:5]}_g{group}", f"{digits}.bin")


class Content:
    """Bytes of chunks: one random chunk, with a number stamped into each page of each copy.

    A page in the wrong place, of the wrong chunk, or left as it was shows.
    """

    def __init__(self, chunk_bytes: int, seed: int) -> None:
        generator = np.random.Generator(np.random.SFC64(seed))
        self._words = np.frombuffer(generator.bytes(chunk_bytes), dtype=np.uint64).copy()

    def write(self, number: int, words: npt.NDArray[np.uint64]) -> None:
        """Put chunk `number` into `words`, one chunk long."""
        np.copyto(words, self._words)
        words[::_WORDS_PER_PAGE] = self._stamps(number)

    def is_in(self, number: int, words: npt.NDArray[np.uint64]) -> bool:
        """Say whether `words` hold chunk `number`, all of it."""
        expected = self._words.copy()
        expected[::_WORDS_PER_PAGE] = self._stamps(number)
        return bool(np.array_equal(expected, words))

    def _stamps(self, number: int) -> npt.NDArray[np.uint64]:
        pages = np.arange(len(self._words) // _WORDS_PER_PAGE, dtype=np.uint64)
        return (pages + np.uint64(1)) * np.uint64(_STAMP_FACTOR) + np.uint64(number)


class PrimaryBuffer:
    """The primary tier: shared memory in pages, as vLLM's own region, of shape (rows, chunk_bytes).

    Attributes:
        rows: How many chunks it holds.
        view: What an engine gets: signed bytes in two dimensions, as vLLM hands it out.
    """

    def __init__(self, rows: int, content: Content, chunk_bytes: int) -> None:
        self.rows = rows
        self._content = content
        self._map = mmap.mmap(-1, rows * chunk_bytes)
        self.view = memoryview(self._map).cast("b", (rows, chunk_bytes))
        self._words = np.frombuffer(self._map, dtype=np.uint64).reshape(rows, chunk_bytes // 8)
        # Every page is there before the clock runs, as in vLLM.
        self.reset(rows)

    def reset(self, loaded_rows: int) -> None:
        """Put bytes that are no chunk's into the first rows, and chunk i into each row i after them."""
        self.blank(loaded_rows)
        for row in range(loaded_rows, self.rows):
            self._content.write(row, self._words[row])

    def blank(self, rows: int) -> None:
        """Put bytes that are no chunk's into the first rows."""
        self._words[:rows].view(np.uint8).fill(_UNLIKE)

    def wrong_rows(self, numbers: Iterable[tuple[int, int]]) -> list[int]:
        """Return the rows that do not hold what they should, of pairs (row, chunk's number)."""
        return [row for row, number in numbers if not self._content.is_in(number, self._words[row])]


def write_files(
    base_path: str, content: Content, chunk_bytes: int, keys: Sequence[bytes], *, sealed: bool = False
) -> list[Path]:
    """Store chunk i under key i, past the page cache where that works, and return the files. Blocks.

    Args:
        base_path: The namespace's directory.
        content: Of the chunks.
        chunk_bytes: Size of each.
        keys: Theirs.
        sealed: Whether they get kvfs's checksums, which the file system must have attributes for.
    """
    words = np.frombuffer(mmap.mmap(-1, chunk_bytes), dtype=np.uint64)
    paths = []
    for number, key in enumerate(keys):
        content.write(number, words)
        path = path_of(base_path, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, words.data.cast("B"))
        if sealed:
            _seal(path, key, words.data.cast("B"))
        paths.append(path)
    return paths


def _write(path: Path, data: memoryview) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        _write_with(path, data, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        _write_with(path, data, flags)


def _seal(path: Path, key: bytes, data: memoryview) -> None:
    with path.open("r+b") as file:
        Seal(key, required=True).put(file.fileno(), data)


def _write_with(path: Path, data: memoryview, flags: int) -> None:
    descriptor = os.open(path, flags, 0o600)
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
    finally:
        os.close(descriptor)


def wrong_files(content: Content, files: Iterable[tuple[Path, int]]) -> list[Path]:
    """Return the files that do not hold what they should, of pairs (file, chunk's number)."""
    wrong = []
    for path, number in files:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        if len(data) % PAGE_BYTES or not content.is_in(number, np.frombuffer(data, dtype=np.uint64)):
            wrong.append(path)
    return wrong


def make_leaves(base_path: str, keys: Iterable[bytes]) -> None:
    """Make the directories of keys, as they are in a tier that has been in use for long."""
    for key in keys:
        path_of(base_path, key).parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files that exist, and the directories that this leaves empty."""
    for path in paths:
        path.unlink(missing_ok=True)
        for directory in path.parents[:2]:
            with contextlib.suppress(OSError):
                directory.rmdir()
