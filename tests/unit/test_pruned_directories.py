"""Stores whose directory is removed by somebody else just then, as an eviction does where it is empty."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

STORES = 1500


def test_stores_succeed_though_their_directory_is_removed_meanwhile(
    start_rig: StartRig, tmp_path: Path
) -> None:
    # ext4 answers EPERM where a file without a name is to be made in a directory that has just been removed.
    rig = start_rig(tmp_path / "base", num_chunks=8)
    key = bytes(32) + bytes(4)
    leaf = rig.path(key).parent
    wanted = threading.Semaphore(0)
    ended = threading.Event()

    def remove() -> None:
        """Remove the directory once for each store, at any instant."""
        while wanted.acquire() and not ended.is_set():
            with contextlib.suppress(OSError):
                leaf.rmdir()

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(STORES):
            job = rig.submit("store", [key], [0])
            wanted.release()
            done = rig.finish()[job]
            assert done.outcomes == [0], done.detail
            rig.path(key).unlink()
    finally:
        ended.set()
        wanted.release()
        remover.join()
