"""Tests that the report needs no more than its session installs, whatever the suites' judges import."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import made_up_report
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.records import RecordLog

ROOT = Path(__file__).resolve().parents[2]
# As if only some packages were installed.
PROGRAM = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Missing())
del sys.argv[1]
runpy.run_module("harness.report", run_name="__main__", alter_sys=True)
"""


def _with_what_they_need(requirements: Iterable[str]) -> set[str]:
    """Return the distributions of requirements, and all those that they require."""
    found: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return found


@pytest.mark.slow
def test_report_is_written_with_what_its_session_installs_and_nothing_else(tmp_path: Path) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    installed = _with_what_they_need(groups["report"])
    modules = importlib.metadata.packages_distributions()
    missing = [
        module
        for module, owners in modules.items()
        if module != "harness" and not installed & {canonicalize_name(owner) for owner in owners}
    ]
    assert {"vllm", "torch", "pytest"} <= set(missing)
    RecordLog(tmp_path).extend(made_up_report.everything())
    run = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, ",".join(missing), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "report.md").stat().st_size > 1000
