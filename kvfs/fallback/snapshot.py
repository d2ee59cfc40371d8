"""The extension's snapshot of its index, of which the Python engine only takes a mark away."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

SNAPSHOT_NAME: Final = "kvfs.index"
MAGIC: Final = b"KVFSIDX2"
_WHOLE: Final = b"\1"


def clear_whole_mark(base_path: str) -> None:
    """Take away the mark which says that nobody has written to the namespace since the snapshot.

    Blocks. Changes one byte in place, in a regular file that begins as a snapshot does; never fails.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        fd = os.open(f"{base_path}/{SNAPSHOT_NAME}", flags)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(MAGIC) + 1, 0) == MAGIC + _WHOLE:
                os.pwrite(fd, b"\0", len(MAGIC))
        finally:
            os.close(fd)
