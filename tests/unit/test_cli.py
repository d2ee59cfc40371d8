"""The `kvfs` command as a user runs it: a process, its output and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvfs import backend


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from kvfs.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def test_info_names_engine_and_registration() -> None:
    done = run("info")
    assert done.returncode == 0, done.stderr
    assert f"{backend.describe()[0]}: kvfs runs on its" in done.stdout
    assert '"type": "kvfs" is offered to vLLM' in done.stdout


def test_info_follows_the_switch_that_disables_the_extension() -> None:
    assert "fallback: kvfs runs on its pure-Python engine" in run("info", KVFS_DISABLE_EXT="1").stdout


def test_check_stores_loads_compares_and_leaves_nothing(tmp_path: Path) -> None:
    done = run("check", str(tmp_path), "--chunks", "4", "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert "4 of 1048576 bytes, all came back unchanged" in done.stdout
    assert "GB/s" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["check", "/nowhere/at/all"], "does not exist", id="missing-directory"),
        pytest.param(["check", __file__], "is a file", id="file"),
        pytest.param(["check", "/proc"], "/proc", id="not-writable"),
        pytest.param(["check", ".", "--threads", "0"], "0 is not in the range", id="zero-threads"),
        pytest.param(["nonsense"], "No such command", id="unknown-command"),
    ],
)
def test_users_mistake_gets_one_clear_error_and_no_traceback(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_extra_is_named() -> None:
    program = "import sys; sys.modules['click'] = None\nfrom kvfs.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'kvfs[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
