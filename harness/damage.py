"""Damage the chunks of a tier on disk, as a broken disk would: other bytes, the same length."""

import os
import random
from pathlib import Path
from typing import Final

# The middle half of each file.
_FIRST_QUARTER: Final = 4
_SEED: Final = 57912


def damage_chunks(root_dir: Path) -> int:
    """Overwrite the middle half of every chunk below a directory; return how many there are.

    Blocks. What was read of them before is taken out of the page cache.
    """
    random_bytes = random.Random(_SEED).randbytes
    count = 0
    for path in sorted(root_dir.rglob("*.bin")):
        with path.open("r+b") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(size_bytes // _FIRST_QUARTER)
            file.write(random_bytes(size_bytes // 2))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        count += 1
    return count
