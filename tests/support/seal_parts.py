"""What tests of seals share: the attributes, a checksum computed in another way, and damage to files."""

from __future__ import annotations

import functools
import os
from pathlib import Path

CHECKSUM = "user.vllm.kv_crc32c"
KEY = "user.kvfs.key"
# The coefficients of the Castagnoli polynomial, the lowest degree in the highest bit.
_POLYNOMIAL = 0x82F63B78


@functools.cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        state = value
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return table


def crc32c(data: bytes) -> int:
    """Return the CRC32C, byte by byte as textbooks have it."""
    table = _table()
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ table[state & 0xFF ^ byte]
    return state ^ 0xFFFFFFFF


def seal_of(key: bytes, content: bytes) -> dict[str, bytes]:
    """Return the attributes that docs/integrity.md gives a chunk."""
    return {CHECKSUM: crc32c(content).to_bytes(4, "big"), KEY: key[-28:]}


def read_seal(path: Path) -> dict[str, bytes]:
    """Return the attributes that a file has of a seal."""
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name in (CHECKSUM, KEY)}


def write_seal(path: Path, seal: dict[str, bytes]) -> None:
    """Give a file exactly these attributes of a seal."""
    for name in read_seal(path):
        os.removexattr(path, name)
    for name, value in seal.items():
        os.setxattr(path, name, value)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes of a file in place, which leaves its attributes."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip_bit(path: Path, offset: int) -> None:
    """Flip the lowest bit of one byte of a file."""
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 1]))
