"""Real file systems for the scenarios: mounted once a run, each test in a directory of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import file_systems
import pytest
import quotas
from file_systems import MIB, Disk, Mounts
from fuse_mount import FuseMount
from rig import Rig

from kvfs import backend
from kvfs.jobs import IoBackend

ROOMY_SIZE_BYTES = 320 * MIB

StartRig = Callable[..., Rig]
Make = Callable[[str], Disk]

_HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run quota tests for each kind that this kernel has; the summary names those that it has not."""
    if "quota" in metafunc.fixturenames:
        kinds = quotas.working()[0] if os.geteuid() == 0 else quotas.KINDS
        metafunc.parametrize("quota", kinds, indirect=True, ids=lambda kind: kind.name)


def _about_file_systems() -> list[str]:
    if os.geteuid() != 0:
        return ["file systems: none, since only root may mount"]
    found, missing = quotas.working()
    lines = [f"file systems: {', '.join(file_systems.ALL)}; quotas: {', '.join(kind.name for kind in found)}"]
    if missing:
        lines.append(f"not in this kernel: quotas {', '.join(kind.name for kind in missing)}")
    return lines


def pytest_report_header() -> list[str]:
    return _about_file_systems()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end, too, where the tests ran, and how many were skipped."""
    here = str(_HERE)
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if str(terminalreporter.config.rootpath / report.nodeid.split("::")[0]).startswith(here)
    ]
    terminalreporter.section("faults on file systems")
    for line in _about_file_systems():
        terminalreporter.line(line)
    terminalreporter.line(f"skipped for want of root: {len(skipped)}")


@pytest.fixture(scope="session")
def io() -> IoBackend:
    """Return the implementation under test."""
    return backend.load()


# The one parameter is for the ids of all tests, which say what they need.
@pytest.fixture(scope="session", params=["needs_root"])
def mounts(request: pytest.FixtureRequest) -> Iterator[Mounts]:
    """Yield the maker of file systems that live as long as the run."""
    made = Mounts()
    yield made
    made.close()


@pytest.fixture(scope="session")
def roomy(mounts: Mounts) -> Make:
    """Return a function that gives a file system of some hundred MiB, one of each kind for the whole run."""
    disks: dict[str, Disk] = {}

    def get(kind: str) -> Disk:
        if kind not in disks:
            disks[kind] = mounts.make(kind, ROOMY_SIZE_BYTES)
        return disks[kind]

    return get


@pytest.fixture(scope="session")
def smallest(mounts: Mounts) -> Make:
    """Return a function that gives a small file system of a kind, one for the whole run."""
    disks: dict[str, Disk] = {}

    def get(kind: str) -> Disk:
        if kind not in disks:
            disks[kind] = mounts.make(kind)
        return disks[kind]

    return get


@pytest.fixture
def own_mounts(mounts: Mounts) -> Iterator[Mounts]:
    """Yield a maker of file systems for one test alone."""
    own = Mounts()
    yield own
    own.close()


@pytest.fixture
def start_rig(io: IoBackend, own_mounts: Mounts) -> Iterator[StartRig]:
    """Yield a function that starts a `Rig`; all are closed after the test, before anything is unmounted."""
    with contextlib.ExitStack() as stack:

        def start(base: Path, **options: object) -> Rig:
            rig = Rig(io, base, **options)  # type: ignore[arg-type] # the options are Rig's
            stack.callback(rig.engine.close)
            return rig

        yield start


@pytest.fixture(params=file_systems.ALL)
def disk(request: pytest.FixtureRequest, roomy: Make) -> Disk:
    """Return each file system, with room."""
    return roomy(request.param)


@pytest.fixture
def place(disk: Disk) -> Iterator[Path]:
    """Yield an empty directory on each file system."""
    directory = disk.fresh()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=file_systems.ALL)
def small(request: pytest.FixtureRequest, smallest: Make, start_rig: StartRig) -> Iterator[Disk]:
    """Yield each file system small; emptied and writable again before engines close."""
    disk = smallest(request.param)
    yield disk
    disk.remount("rw")
    disk.make_room()
    for directory in disk.directory.glob("case-*"):
        shutil.rmtree(directory)


@pytest.fixture(params=["fuse"])
def fuse_place(request: pytest.FixtureRequest, roomy: Make, start_rig: StartRig) -> Iterator[Path]:
    """Yield an empty directory on the FUSE file system, which behaves again before engines close."""
    disk = roomy(request.param)
    assert disk.fuse is not None
    directory = disk.fresh()
    yield directory
    disk.fuse.set_uncached(on=False)
    disk.fuse.clear()
    shutil.rmtree(directory)


@pytest.fixture
def fuse(fuse_place: Path, roomy: Make) -> FuseMount:
    """Return the process behind `fuse_place`, to tell it how to misbehave."""
    mount = roomy("fuse").fuse
    assert mount is not None
    return mount


@pytest.fixture
def quota(request: pytest.FixtureRequest, own_mounts: Mounts) -> quotas.Quota:
    """Return a bounded directory for each kind of quota that this kernel has."""
    return quotas.make(own_mounts, request.param)
