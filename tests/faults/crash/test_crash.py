"""Processes that store, load and evict are killed at random instants: what they leave is whole.

50 kills; KVFS_FAULTS_LONG=1 makes it 1,000.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_nursery import Nursery
from crash_rounds import Crashes, Report, times

from kvfs import backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(times(120))]

_SEED = 20
_EXTENSION = ("kvfs_ext",) if backend.describe()[0] == "extension" else ()
_FALLBACK = ("kvfs.fallback",)
# Each needs as many seconds as kills in the short form, or less.
_CASES = [
    pytest.param(_EXTENSION, "uring", 1, 12, id="extension-uring-alone"),
    pytest.param(_EXTENSION, "psync", 1, 8, id="extension-psync-alone"),
    pytest.param(_EXTENSION, "auto", 3, 10, id="extension-together"),
    pytest.param(_FALLBACK, "auto", 1, 5, id="fallback-alone"),
    pytest.param(_FALLBACK, "auto", 2, 5, id="fallback-together"),
]
if _EXTENSION:
    _CASES.append(pytest.param(_EXTENSION + _FALLBACK, "auto", 3, 6, id="both-together"))
_CASES = [case for case in _CASES if case.values[0]]


@pytest.mark.parametrize(("modules", "io_engine", "children", "kills"), _CASES)
def test_killed_processes_leave_whole_chunks_within_the_capacity_and_nothing_else(
    nursery: Nursery,
    tmp_path: Path,
    report: Report,
    modules: tuple[str, ...],
    io_engine: str,
    children: int,
    kills: int,
) -> None:
    crashes = Crashes(nursery, tmp_path, tmp_path, modules, io_engine, _SEED, report)
    crashes.run(times(kills), children)
    assert report.kills == times(kills)
    assert report.wrong == 0
    assert report.stores > 0
    assert report.loads > 0


@pytest.mark.needs_root
@pytest.mark.parametrize("children", [1, 2], ids=["alone", "together"])
def test_killed_processes_leave_no_temporary_where_files_have_names_from_the_start(
    fuse_place: tuple[Path, Path], fuse_nursery: Nursery, report: Report, children: int
) -> None:
    modules = _EXTENSION or _FALLBACK
    kills = times(5)
    crashes = Crashes(fuse_nursery, *fuse_place, modules, "auto", _SEED, report, slowness=3.0)
    crashes.run(kills, children)
    assert report.kills == kills
    assert report.wrong == 0
    assert report.stores > 0
