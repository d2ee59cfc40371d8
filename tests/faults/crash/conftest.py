"""Where processes are killed: an ordinary directory, and a FUSE file system, which has no nameless files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_nursery import Nursery
from crash_rounds import Report
from file_systems import Mounts

_reports: list[tuple[str, Report]] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was done and the worst that was seen, also where nothing failed."""
    if _reports:
        terminalreporter.section("crashes")
        for name, report in _reports:
            terminalreporter.line(f"{name}: {report}")
        kills = sum(report.kills for _, report in _reports)
        wrong = sum(report.wrong for _, report in _reports)
        terminalreporter.line(f"{kills} kills, {wrong} wrong chunks")


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Return what is filled in and shown at the end."""
    made = Report()
    _reports.append((request.node.name, made))
    return made


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Yield the maker of processes."""
    with Nursery() as made:
        yield made


@pytest.fixture
def fuse_nursery(fuse_place: tuple[Path, Path]) -> Iterator[Nursery]:
    """Yield a maker of processes that see the FUSE file system."""
    with Nursery() as made:
        yield made


@pytest.fixture(params=["needs_root"])
def fuse_place(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """Yield a directory of a FUSE file system, and where its files are without FUSE in between."""
    mounts = Mounts()
    try:
        disk = mounts.make("fuse")
        assert disk.fuse is not None
        place = disk.fresh()
        yield place, disk.fuse.shown(place)
    finally:
        mounts.close()
