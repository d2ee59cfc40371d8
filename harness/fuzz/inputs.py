"""What the bytes of a fuzz input are, where seeds and findings lie, and the namespace they are put into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"
# Inputs that once broke something; named after it.
REGRESSIONS: Final = ROOT / "tests" / "fuzz" / "regressions"

# The namespace that a snapshot is put into; tests/fuzz/native/snapshot.cpp makes the same one.
CHUNK_SIZE_BYTES: Final = 64
LETTERS: Final = b"abc"
KEYS: Final = tuple(bytes([letter]) * 32 + bytes(4) for letter in LETTERS)
# The key and the content of the chunk that a seal is put on, as in tests/fuzz/native/seal.cpp.
SEALED_KEY: Final = b"the hash of a block, 32 bytes longgroup"
SEALED_CONTENT: Final = b"what a chunk holds"

NAME_SIZE_MAX_BYTES: Final = 255

# First byte of a seal's input.
HAS_CHECKSUM: Final = 1
HAS_TAG: Final = 2
REQUIRED: Final = 4
RIGHT_CHECKSUM: Final = 8
RIGHT_TAG: Final = 16

# Kinds of inputs, each with the most bytes that are worth trying.
SIZE_MAX_BYTES: Final = {
    "config": 4096,
    "identity": 4096,
    "names": 600,
    "options": 2048,
    "seal": 600,
    "snapshot": 2048,
    "space": 8300,
}


@dataclass(frozen=True)
class SealInput:
    """What an input says of the attributes of a file; None for one that is not there."""

    required: bool
    checksum: bytes | None
    tag: bytes | None

    @classmethod
    def parse(cls, data: bytes, right_checksum: bytes, right_tag: bytes) -> SealInput | None:
        """Read an input: flags, the length of the checksum's value, that value, the tag's value."""
        if len(data) < 2:  # noqa: PLR2004 - flags and length
            return None
        flags, length = data[0], data[1]
        checksum = right_checksum if flags & RIGHT_CHECKSUM else data[2 : 2 + length]
        tag = right_tag if flags & RIGHT_TAG else data[2 + length :]
        return cls(
            bool(flags & REQUIRED),
            checksum if flags & HAS_CHECKSUM else None,
            tag if flags & HAS_TAG else None,
        )


def paths_of(kind: str) -> Iterator[Path]:
    """Yield the files of all seeds and regressions of a kind."""
    for directory in (CORPUS / kind, REGRESSIONS / kind):
        yield from sorted(path for path in directory.glob("*") if path.is_file())


def chunk_path(key: bytes) -> str:
    """Return where a key's chunk lies in its namespace, by vLLM's rule."""
    digits, group = key[:-4].hex(), int.from_bytes(key[-4:], "big")
    return f"{digits[:3]}/{digits[3:5]}_g{group}/{digits}.bin"


def key_at(path: str) -> bytes | None:
    """Return the key whose chunk lies at a path, None if no key's does."""
    first, _, rest = path.partition("/")
    second, _, name = rest.partition("/")
    digits, _, suffix = name.partition(".")
    group = second.partition("_g")[2]
    if suffix != "bin" or not group.isascii() or not group.isdecimal() or int(group) >= 1 << 32:
        return None
    try:
        key = bytes.fromhex(digits) + int(group).to_bytes(4, "big")
    except ValueError:
        return None
    allowed = 5 <= len(key) <= 255  # noqa: PLR2004 - docs/lookup.md
    return key if allowed and chunk_path(key) == path and path.startswith(f"{first}/") else None


def path_below(base: Path, data: bytes) -> Path | None:
    """Return the path of a file in a directory of a directory of `base`, None where an input is none."""
    parts = data.split(b"/")
    if len(parts) != 3 or b"\0" in data:  # noqa: PLR2004 - two directories and a file
        return None
    if any(part in (b"", b".", b"..") or len(part) > NAME_SIZE_MAX_BYTES for part in parts):
        return None
    return base / os.fsdecode(data)


def make_namespace(base: Path) -> None:
    """Make the three chunks, under directories whose times are the same each time."""
    for letter, key in zip(LETTERS, KEYS, strict=True):
        path = base / chunk_path(key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(bytes([letter]) * CHUNK_SIZE_BYTES)
        os.utime(path.parents[1], (0, 0))
