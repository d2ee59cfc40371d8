"""Which implementation is chosen, why, and that it is said once; and the test suite's own guard on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from kvfs import backend
from kvfs.jobs import IoBackend

SCRIPT = """
import json, logging, sys
{prepare}
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
logging.getLogger("kvfs").addHandler(handler)
logging.getLogger("kvfs").setLevel(logging.DEBUG)
from kvfs import backend
for _ in range(3):
    io = backend.load()
    assert io is backend.load()
    name, reason = backend.describe()
print(json.dumps({{
    "module": io.__name__,
    "name": name,
    "reason": reason,
    "records": records,
    "loaded": [name for name in ("kvfs_ext", "numpy", "torch") if sys.modules.get(name)],
}}))
"""
WITHOUT_EXTENSION = 'sys.modules["kvfs_ext"] = None'
BROKEN_EXTENSION = """
class Broken:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "kvfs_ext":
            raise ImportError("libstdc++.so.6: version GLIBCXX_9 not found")
sys.meta_path.insert(0, Broken)
"""


class Answer(TypedDict):
    """What a process chose and logged; `loaded` are the modules that it must not need."""

    module: str
    name: str
    reason: str
    records: list[list[str]]
    loaded: list[str]


def _ask(tmp_path: Path, *, disable: str | None, prepare: str = "") -> Answer:
    """Run a new process that chooses, and return what it chose and logged."""
    environment = {key: value for key, value in os.environ.items() if key != "KVFS_DISABLE_EXT"}
    if disable is not None:
        environment["KVFS_DISABLE_EXT"] = disable
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(prepare=prepare)],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer: Answer = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("value", ["1", "true", "no", "00"])
def test_backend_disabled_by_variable_is_the_fallback_and_warns_once(tmp_path: Path, value: str) -> None:
    answer = _ask(tmp_path, disable=value)
    assert (answer["name"], answer["module"]) == ("fallback", "kvfs.fallback")
    assert answer["loaded"] == []
    assert answer["records"] == [["WARNING", answer["reason"]]]
    assert f"KVFS_DISABLE_EXT={value}" in answer["reason"]
    assert "unset it" in answer["reason"]


@pytest.mark.parametrize("value", [None, "", "0"], ids=["unset", "empty", "zero"])
def test_backend_without_extension_is_the_fallback_and_warns_once(tmp_path: Path, value: str | None) -> None:
    answer = _ask(tmp_path, disable=value, prepare=WITHOUT_EXTENSION)
    assert (answer["name"], answer["module"]) == ("fallback", "kvfs.fallback")
    assert answer["loaded"] == []
    assert answer["records"] == [["WARNING", answer["reason"]]]
    assert "kvfs_ext" in answer["reason"]
    assert "reinstall" in answer["reason"]
    assert "wheel" in answer["reason"]


def test_backend_with_broken_extension_says_what_is_broken(tmp_path: Path) -> None:
    answer = _ask(tmp_path, disable=None, prepare=BROKEN_EXTENSION)
    assert answer["name"] == "fallback"
    assert "GLIBCXX_9" in answer["reason"]
    assert [level for level, _ in answer["records"]] == ["WARNING"]


@pytest.mark.parametrize("value", [None, "", "0"], ids=["unset", "empty", "zero"])
def test_backend_not_disabled_is_the_extension_where_there_is_one(tmp_path: Path, value: str | None) -> None:
    answer = _ask(tmp_path, disable=value)
    # The pure-Python wheel has none, and then the reason says so.
    expected = {"extension": ("kvfs_ext", "INFO"), "fallback": ("kvfs.fallback", "WARNING")}[answer["name"]]
    assert (answer["module"], answer["records"]) == (expected[0], [[expected[1], answer["reason"]]])
    assert answer["loaded"] == (["kvfs_ext"] if answer["name"] == "extension" else [])
    if backend.describe()[0] == "extension":
        assert answer["name"] == "extension"


def test_backend_has_the_whole_interface(io: IoBackend) -> None:
    names = ("Completion", "Engine", "batch_load", "batch_lookup", "batch_store", "copy_pages")
    assert [name for name in names if not hasattr(io, name)] == []


def _collect(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).resolve().parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        str(tests / "unit" / "test_backend.py"),
    ]
    return subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_suite_with_another_backend_than_expected_fails_whole(tmp_path: Path) -> None:
    name, _ = backend.describe()
    other = {"extension": "fallback", "fallback": "extension"}[name]
    result = _collect(tmp_path, KVFS_EXPECT_BACKEND=other)
    assert result.returncode == 4
    assert f"KVFS_EXPECT_BACKEND={other}, but the active one is {name}" in result.stdout + result.stderr


def test_suite_with_the_expected_backend_is_collected(tmp_path: Path) -> None:
    result = _collect(tmp_path, KVFS_EXPECT_BACKEND=backend.describe()[0])
    assert result.returncode == 0
    assert "test_backend.py" in result.stdout


def test_suite_from_the_source_tree_fails_whole_when_installed_is_expected(tmp_path: Path) -> None:
    source_tree = str(Path(__file__).resolve().parents[2])
    result = _collect(tmp_path, KVFS_EXPECT_BACKEND="", KVFS_EXPECT_INSTALLED="1", PYTHONPATH=source_tree)
    assert result.returncode == 4
    assert "install the wheel" in result.stdout + result.stderr
