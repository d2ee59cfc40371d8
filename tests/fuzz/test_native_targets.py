"""The native fuzz targets fit the code that they call, though only the fuzz session builds and runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests/fuzz/native"


@pytest.mark.parametrize("source", sorted(NATIVE.glob("*.cpp")), ids=lambda source: source.stem)
def test_native_target_compiles_without_a_warning(source: Path) -> None:
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
    includes = (f"-I{ROOT / 'src/kvfs_ext'}", f"-I{NATIVE}")
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", *warnings, *includes, source],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
