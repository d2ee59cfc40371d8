"""Keys whose chunks anybody can compute, where their files lie, and what lies below a root."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KEY_SIZE_BYTES: Final = 36
_GROUP: Final = bytes(4)
_FIRST_LEVEL: Final = re.compile(r"[0-9a-f]{3}$")
_BLOCK_BYTES: Final = 512


def key_of(number: int) -> bytes:
    """Return a key; first-level directories are few, since they may come on top of the capacity."""
    digits = hashlib.sha256(number.to_bytes(8, "big")).hexdigest()
    return bytes.fromhex(f"{number % 16:03x}{digits[3:]}") + _GROUP


def content_of(key: bytes, size_bytes: int) -> bytes:
    """Return the content of a key's chunk."""
    return hashlib.shake_128(key).digest(size_bytes)


def path_of(key: bytes) -> str:
    """Return where docs/engine.md has a key's file, below the namespace."""
    digits = key[:-4].hex()
    return f"{digits[:3]}/{digits[3:5]}_g{int.from_bytes(key[-4:], 'big')}/{digits}.bin"


def entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all that lies below a directory."""
    with os.scandir(directory) as found:
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from entries(Path(entry.path))


def bounded_bytes(root: Path) -> int:
    """Return what takes part in the capacity, in bytes of blocks; exact while nobody writes there.

    All but what docs/capacity.md lets come on top: directories of the first level. And but for snapshots,
    which an engine writes when it closes and the next one counts.
    """
    total = root.stat().st_blocks
    for entry in entries(root):
        is_slack = _FIRST_LEVEL.match(entry.name) and entry.is_dir(follow_symlinks=False)
        if not is_slack and not entry.name.startswith("kvfs.index"):
            total += entry.stat(follow_symlinks=False).st_blocks
    return total * _BLOCK_BYTES


def nameless_bytes(pid: int, device: int) -> int:
    """Return what a process's files without a name take on disk, in bytes of blocks."""
    blocks: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                status = link.stat()
                if status.st_nlink == 0 and status.st_dev == device:
                    blocks[status.st_ino] = status.st_blocks
    return sum(blocks.values()) * _BLOCK_BYTES
