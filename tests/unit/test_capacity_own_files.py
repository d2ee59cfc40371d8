"""What is counted at the first start has the engine's own files, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig


def test_first_count_has_the_shared_file(start_rig: StartRig, tmp_path: Path) -> None:
    # The Python engine wrote it after the count only, so that 12 KiB were promised away twice.
    root = tmp_path / "root"
    rig = start_rig(root, capacity_bytes=1 << 20)
    assert rig.await_stats(space_counted=1)
    found = sum(path.lstat().st_blocks * 512 for path in (root, *root.rglob("*")))
    assert rig.engine.stats()["used_bytes"] >= found
    rig.engine.close()
