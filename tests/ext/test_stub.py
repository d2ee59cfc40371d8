"""The committed stub is what the built module says of itself."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parents[2] / "src/kvfs_ext/stubs/kvfs_ext/__init__.pyi"


def test_committed_stub_equals_the_generated_one(tmp_path: Path) -> None:
    generated = tmp_path / "kvfs_ext.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "kvfs_ext", "-o", str(generated)],
        check=True,
        timeout=60,
    )
    difference = "".join(
        difflib.unified_diff(
            STUB.read_text().splitlines(keepends=True),
            generated.read_text().splitlines(keepends=True),
            "committed",
            "generated",
        )
    )
    command = f"python -m nanobind.stubgen -m kvfs_ext -o {STUB.relative_to(STUB.parents[4])}"
    assert not difference, f"the stub is out of date; with the wheel installed run: {command}\n{difference}"


def test_installed_stub_is_the_committed_one() -> None:
    import kvfs_ext  # noqa: PLC0415

    installed = Path(kvfs_ext.__file__).parent / "kvfs_ext-stubs" / "__init__.pyi"
    assert installed.read_text() == STUB.read_text()
