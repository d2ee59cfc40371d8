"""Make `python3 noxfile.py` work where nox cannot be imported: give nox a small environment of its own."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.sessions import sysdeps

# Set for the process that runs inside the environment, so that a broken one ends in an error, not a loop.
MARKER_VARIABLE = "KVFS_NOX_BOOTSTRAPPED"


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a release version, to compare by: "2025.10.2" is (2025, 10, 2)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def nox_is_usable(minimum: str) -> bool:
    """Say whether this interpreter can import a nox of at least version `minimum`."""
    try:
        installed = importlib.metadata.version("nox")
    except importlib.metadata.PackageNotFoundError:
        return False
    return version_key(installed) >= version_key(minimum)


def environments_dir(root: Path) -> Path:
    """Return where the environments lie that are made from this interpreter's version."""
    return root / ".nox" / f"{sys.version_info.major}.{sys.version_info.minor}"


def bootstrap_dir(root: Path) -> Path:
    """Return where nox's own environment lies."""
    return environments_dir(root) / ".bootstrap"


def require_nox(noxfile: Path, minimum: str, arguments: Sequence[str]) -> None:
    """Return if nox can be imported; otherwise replace this process by one that can.

    Args:
        noxfile: The file to run again, in the root of the repository.
        minimum: The oldest version of nox that will do.
        arguments: The command line after the file's name.

    Raises:
        SystemExit: If the environment cannot be made; the message says what to do.
    """
    if nox_is_usable(minimum):
        return
    if os.environ.get(MARKER_VARIABLE):
        raise SystemExit(
            f"noxfile.py: nox >= {minimum} is missing from {bootstrap_dir(noxfile.parent)}, which was made "
            "for it; remove that directory and run again"
        )
    python = _make_environment(noxfile.parent, minimum)
    # exec: signals and the exit status need no relaying.
    os.environ[MARKER_VARIABLE] = "1"
    os.execv(python, [str(python), str(noxfile), *arguments])  # noqa: S606  no shell is wanted


def _make_environment(root: Path, minimum: str) -> Path:
    directory = bootstrap_dir(root)
    python = directory / "bin" / "python"
    # Written last, so that an interrupted installation is made again.
    stamp = directory / "kvfs-stamp"
    requirement = f"nox>={minimum}"
    if stamp.is_file() and stamp.read_text() == requirement and python.exists():
        return python
    sysdeps.ensure("bootstrap", sys.executable)
    print(
        f"noxfile.py: no nox >= {minimum} here; installing it into {directory.relative_to(root)}", flush=True
    )
    shutil.rmtree(directory, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement],
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"noxfile.py: cannot install nox into {directory}: {error}; see the lines above, or install "
            f'nox yourself (pipx install "{requirement}") and run it'
        ) from error
    stamp.write_text(requirement)
    return python
