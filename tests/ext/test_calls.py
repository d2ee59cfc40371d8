"""Every call of the core to the system is one that `nox -s faults` can make fail, so that its build works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXTENSION = Path(__file__).resolve().parents[2] / "src" / "kvfs_ext"
ROOMS = ("base", "fs", "index", "jobs", "layouts")
# As the build of `faults` has it; less optimised, which calls the same functions and is sooner done.
FLAGS = ("-std=c++20", "-O1", "-fno-lto", "-U_FORTIFY_SOURCE", "-fPIC", f"-I{EXTENSION}")


@pytest.mark.uninstrumented
@pytest.mark.timeout(600)
def test_each_call_to_the_system_is_wrapped_or_named_as_none(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "no C++ compiler, which has built the extension"
    sources = [source for room in ROOMS for source in sorted((EXTENSION / room).glob("*.cpp"))]
    assert len(sources) > 20

    def build(source: Path) -> Path:
        made = tmp_path / f"{source.parent.name}-{source.stem}.o"
        subprocess.run([compiler, *FLAGS, "-c", source, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, sources))
    library = tmp_path / "libcore.a"
    subprocess.run(["ar", "rcs", library, *objects], check=True)
    checked = subprocess.run(
        [
            sys.executable,
            EXTENSION / "testing" / "check_calls.py",
            library,
            EXTENSION / "testing" / "wrapped.txt",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
