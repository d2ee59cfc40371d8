"""What tests of injected faults share: the switches, namespaces in memory, the run's length, its tally."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import fault_namespace as space
import pytest
from fault_namespace import Memory, Setup
from fault_run import Report, Run
from fault_seam import Fault, Seam, WrongBuildError

# Set by `nox -s faults -- --long`: every case instead of some of each kind.
LONG_VARIABLE = "KVFS_FAULTS_LONG"

_tally: Counter[str] = Counter()


@pytest.fixture(scope="session")
def seam() -> Seam:
    """Return the switches of the build under test, which must have them."""
    try:
        return Seam()
    except WrongBuildError as error:
        pytest.exit(str(error), pytest.ExitCode.USAGE_ERROR)


@pytest.fixture(scope="session", autouse=True)
def umask() -> Iterator[None]:
    """Take bits that the workload's directories need, whatever the user's umask: modes have to be mended."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def is_long() -> bool:
    """Say whether every case is wanted."""
    return os.environ.get(LONG_VARIABLE) == "1"


@pytest.fixture(scope="session")
def memory_dir() -> Iterator[Path]:
    """Yield a directory in memory: thousands of namespaces come and go there."""
    directory = Path(tempfile.mkdtemp(prefix="kvfs-faults-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


class Execute(Protocol):
    """Runs the workload with faults and checks everything but what the report says."""

    def __call__(self, setup: Setup, faults: Sequence[Fault], *, is_judged: bool = True) -> Report: ...


def _executor(seam: Seam, place: Path) -> Execute:
    templates: dict[Setup, tuple[Path, Memory]] = {}

    def execute(setup: Setup, faults: Sequence[Fault], *, is_judged: bool = True) -> Report:
        if setup not in templates:
            templates[setup] = place / f"template-{setup}", Memory(setup.chunk_size_bytes)
            seam.reset()
            space.make_template(setup, *templates[setup])
        template, memory = templates[setup]
        base = place / "namespace"
        report = Run(seam, setup, memory, (template, base), faults, is_judged=is_judged).execute()
        shutil.rmtree(base)
        _tally["runs"] += 1
        _tally["calls hit"] += len(report.hits)
        _tally["starts refused"] += not report.started
        _tally["temporaries left"] += report.temporaries
        return report

    return execute


@pytest.fixture(scope="session")
def execute(seam: Seam, memory_dir: Path) -> Execute:
    """Return a function that runs the workload with faults in a fresh namespace in memory."""
    return _executor(seam, memory_dir)


@pytest.fixture
def execute_on_disk(seam: Seam, tmp_path: Path) -> Execute:
    """Return the same for a namespace on the disk of temporary files."""
    return _executor(seam, tmp_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tally:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(_tally.items()))
        terminalreporter.write_line(f"injected faults: {counts}")
