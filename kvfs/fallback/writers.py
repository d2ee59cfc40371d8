"""Names of temporaries, which say who writes them; docs/capacity.md, "Orphans"."""

from __future__ import annotations

import functools
import itertools
import os
import re
from typing import Final

_TEMPORARY: Final = re.compile(r".*_kvfs([0-9a-f]{16})[0-9a-f]{16}\.tmp", re.DOTALL)
_COUNT_MAX: Final = 2**32 - 1
_PID_MAX: Final = 2**32 - 1
_count = itertools.count()


@functools.cache
def writer_number() -> int:
    """Return 64 random bits that tell this process from all others that write."""
    return int.from_bytes(os.urandom(8), "big")


# A forked child's temporaries would count as its parent's, and stay as long as that or another child lives.
os.register_at_fork(after_in_child=writer_number.cache_clear)


def temporary_name(name: str) -> str:
    """Return a name beside `name` that no other writer can have, in this process or another."""
    pid, count = os.getpid() & _PID_MAX, next(_count) & _COUNT_MAX
    return f"{name}_kvfs{writer_number():016x}{pid:08x}{count:08x}.tmp"


def writer_of(temporary: str) -> int | None:
    """Return the number of the writer who made a temporary of this name; None if no engine did."""
    match = _TEMPORARY.fullmatch(temporary)
    return None if match is None else int(match[1], 16)
