"""Names of temporaries, which say who writes them; docs/capacity.md, "Orphans"."""

from __future__ import annotations

import itertools
import os
import re
from typing import Final

# Tells the writers of one directory apart. A forked child has its parent's; its process id differs.
WRITER_NUMBER: Final = int.from_bytes(os.urandom(8), "big")

_TEMPORARY: Final = re.compile(r".*_kvfs([0-9a-f]{16})[0-9a-f]{16}\.tmp", re.DOTALL)
_COUNT_MAX: Final = 2**32 - 1
_PID_MAX: Final = 2**32 - 1
_count = itertools.count()


def temporary_name(name: str) -> str:
    """Return a name beside `name` that no other writer can have, in this process or another."""
    pid, count = os.getpid() & _PID_MAX, next(_count) & _COUNT_MAX
    return f"{name}_kvfs{WRITER_NUMBER:016x}{pid:08x}{count:08x}.tmp"


def writer_of(temporary: str) -> int | None:
    """Return the number of the writer who made a temporary of this name; None if no engine did."""
    match = _TEMPORARY.fullmatch(temporary)
    return None if match is None else int(match[1], 16)
