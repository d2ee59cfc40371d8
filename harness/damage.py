"""Damage the chunks of a tier on disk, as a broken disk would: other bytes, the same length."""

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The middle half of each file.
_FIRST_QUARTER: Final = 4
_SEED: Final = 57912


@dataclass(frozen=True)
class DamagedChunk:
    """One damaged file, and what it takes to repair it.

    Attributes:
        path: Its name.
        offset: Where the damage begins, in bytes.
        before: What was there.
        digest: SHA-256 of what is there now, unless somebody has replaced the file since.
    """

    path: Path
    offset: int
    before: bytes
    digest: bytes


def damage_chunks(root_dir: Path) -> int:
    """Overwrite the middle half of every chunk below a directory; return how many there are.

    Blocks. What was read of them before is taken out of the page cache.
    """
    random_bytes = random.Random(_SEED).randbytes
    paths = _chunks(root_dir)
    for path in paths:
        size_bytes = path.stat().st_size
        _overwrite(path, size_bytes // _FIRST_QUARTER, random_bytes(size_bytes // 2))
    return len(paths)


def damage_share(root_dir: Path, share: float, seed: int) -> list[DamagedChunk]:
    """Overwrite the middle half of some chunks below a directory; return what `repair` needs.

    Blocks, and keeps half of each in memory.

    Args:
        root_dir: The tier's directory.
        share: Of all chunks, 0 to 1; at least one is damaged where there is any.
        seed: Decides which, and the bytes.
    """
    generator = random.Random(seed)
    paths = _chunks(root_dir)
    count = min(len(paths), max(1, round(share * len(paths))))
    damaged = []
    for path in sorted(generator.sample(paths, count)):
        size_bytes = path.stat().st_size
        offset, after = size_bytes // _FIRST_QUARTER, generator.randbytes(size_bytes // 2)
        before = _read(path, offset, len(after))
        _overwrite(path, offset, after)
        damaged.append(DamagedChunk(path, offset, before, hashlib.sha256(after).digest()))
    return damaged


def repair(damaged: Sequence[DamagedChunk]) -> int:
    """Write back what was there, unless the file has been replaced; return how many files that were."""
    repaired = 0
    for chunk in damaged:
        try:
            now = _read(chunk.path, chunk.offset, len(chunk.before))
        except FileNotFoundError:
            continue
        if hashlib.sha256(now).digest() == chunk.digest:
            _overwrite(chunk.path, chunk.offset, chunk.before)
            repaired += 1
    return repaired


def _chunks(root_dir: Path) -> list[Path]:
    return sorted(root_dir.rglob("*.bin"))


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)


def _overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
