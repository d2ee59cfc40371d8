"""Waiting for what happens elsewhere, with a bound; and the smallest primary tier that an engine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kvfs.jobs import SHED, CompletionLike

DEADLINE_S: Final = 30.0


def await_that(condition: Callable[[], bool]) -> bool:
    """Poll until `condition` holds; False when it does not within the bound."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def small_buffer() -> memoryview:
    """Return a primary tier of four chunks of 4096 bytes."""
    return memoryview(bytearray(4 * 4096)).cast("B", (4, 4096))


def until_admitted(store: Callable[[], CompletionLike]) -> CompletionLike:
    """Repeat a store until its job is let through, after the disk took none; return its completion."""
    done: list[CompletionLike] = []

    def is_admitted() -> bool:
        done[:] = [store()]
        return SHED not in done[0].outcomes

    assert await_that(is_admitted)
    return done[0]
