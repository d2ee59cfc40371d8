"""Refuses a test run whose kvfs is not the one that the session meant to test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kvfs
from kvfs import backend

# pytest's own code for a usage error: the run is set up wrongly, nothing was tested.
_RETURN_CODE = 4


def pytest_configure() -> None:
    expected = os.environ.get("KVFS_EXPECT_BACKEND", "")
    name, reason = backend.describe()
    if expected and name != expected:
        pytest.exit(f"KVFS_EXPECT_BACKEND={expected}, but the active one is {name}: {reason}", _RETURN_CODE)
    package = Path(kvfs.__file__).resolve().parent
    if (
        os.environ.get("KVFS_EXPECT_INSTALLED") == "1"
        and package == Path(__file__).resolve().parents[1] / "kvfs"
    ):
        pytest.exit(
            f"KVFS_EXPECT_INSTALLED=1, but kvfs is imported from the source tree ({package}): install the "
            "wheel and run pytest without the source tree on PYTHONPATH",
            _RETURN_CODE,
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_root") is not None and os.geteuid() != 0:
        pytest.skip("needs root: it mounts a file system")


def pytest_report_header() -> str:
    name, reason = backend.describe()
    return f"kvfs: {name} ({reason}), package in {Path(kvfs.__file__).parent}"
