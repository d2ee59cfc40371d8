"""Where a key's chunk lies in its namespace, and which names are those of chunks."""

from __future__ import annotations

import re
from typing import Final

from kvfs.fallback.checks import GROUP_INDEX_BYTES, KEY_SIZE_BYTES_MAX

# A hash of one byte has two digits, and then none are left for the second level.
_FIRST_LEVEL: Final = re.compile("[0-9a-f]{2,3}")
_SECOND_LEVEL: Final = re.compile("[0-9a-f]{0,2}_g(0|[1-9][0-9]{0,9})")
_FILE: Final = re.compile("((?:[0-9a-f]{2})+)\\.bin")
_GROUP_INDEX_MAX: Final = 2 ** (8 * GROUP_INDEX_BYTES) - 1


def chunk_names(key: bytes) -> tuple[str, str, str]:
    """Return the two directories and the file of a key, as vLLM's FileMapper names them."""
    digits = key[:-GROUP_INDEX_BYTES].hex()
    group = int.from_bytes(key[-GROUP_INDEX_BYTES:], "big")
    return digits[:3], f"{digits[3:5]}_g{group}", f"{digits}.bin"


def key_of(first: str, second: str, name: str) -> bytes | None:
    """Return the key of the chunk that has this place; None if no chunk belongs there."""
    digits = _FILE.fullmatch(name)
    if digits is None or not (is_first_level(first) and is_second_level(first, second)):
        return None
    group = int(second.partition("_g")[2]).to_bytes(GROUP_INDEX_BYTES, "big")
    key = bytes.fromhex(digits[1]) + group
    if len(key) > KEY_SIZE_BYTES_MAX or chunk_names(key) != (first, second, name):
        return None
    return key


def is_first_level(name: str) -> bool:
    """Tell whether a namespace has directories of chunks of this name."""
    return _FIRST_LEVEL.fullmatch(name) is not None


def is_leaf(name: str) -> bool:
    """Tell whether a directory of this name, two levels below a namespace, is one for chunks."""
    return _SECOND_LEVEL.fullmatch(name) is not None


def is_second_level(first: str, second: str) -> bool:
    """Tell whether a directory of this name below `first` has chunks of some key."""
    match = _SECOND_LEVEL.fullmatch(second)
    if match is None or int(match[1]) > _GROUP_INDEX_MAX:
        return False
    # Three digits are of a hash of two bytes at least, which has one more.
    return (len(first) == 2) == second.startswith("_g")  # noqa: PLR2004
