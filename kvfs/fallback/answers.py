"""The answers to questions: a look at the disk for each, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kvfs.fallback.chunks import Chunks
from kvfs.fallback.index import KeyIndex
from kvfs.fallback.ownership import Ownership
from kvfs.fallback.probes import Question


def answer(
    questions: Iterable[Question],
    chunks: Chunks,
    chunk_size_bytes: int,
    index: KeyIndex,
    ownership: Ownership,
) -> None:
    """Look for the chunks that were asked about and tell the index. Blocks; never fails."""
    for key, asked_at in questions:
        asked = None if asked_at is None else index.ask(key, asked_at)
        if asked is None and asked_at is not None:
            continue
        looked_at = time.monotonic()
        try:
            present = chunks.lookup(key, chunk_size_bytes) == 0
        except Exception:  # noqa: BLE001 - a thread that dies would owe the caller an answer
            present = False
        if asked is not None:
            index.answer(key, asked, present=present, looked_at=looked_at)
        elif present and not index.explains(key):
            # Somebody stores who takes no lock.
            ownership.give_up()
