"""The two wheels of a comparison: built from revisions or given, each unpacked into its own directory."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import harness
from harness.errors import HarnessError, UsageError
from harness.sessions.wheels import WheelBuild

ROOT: Final = Path(harness.__file__).resolve().parents[1]
WORKING_TREE: Final = "working tree"

_CACHE: Final = Path("build", "gate")
_DIGITS: Final = 12


@dataclass(frozen=True)
class Wheel:
    """A wheel that can be imported.

    Attributes:
        revision: What it was built from, as people read it.
        sha256: Of the file.
        directory: What goes on the path.
    """

    revision: str
    sha256: str
    directory: Path

    @property
    def is_native(self) -> bool:
        """Whether it has the extension."""
        return any(self.directory.glob("kvfs_ext*.so"))


def commit_of(revision: str, root: Path = ROOT) -> str:
    """Return the commit that a revision names.

    Raises:
        UsageError: There is no such revision.
    """
    try:
        commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"{revision!r} is no revision of {root}: name a commit, a branch or a tag"
        ) from error
    return commit.decode().strip()


def build_revision(revision: str, commit: str, root: Path = ROOT) -> tuple[Path, str]:
    """Build the wheel of a revision, unless it is there already; return it and its name. Blocks.

    Args:
        revision: As the user named it.
        commit: Which that is.
        root: The repository.

    Raises:
        HarnessError: It cannot be built.
    """
    tree = root / _CACHE / commit
    if not (tree / "pyproject.toml").is_file():
        shutil.rmtree(tree, ignore_errors=True)
        # Made whole under another name, since an interrupted one would be taken for the revision.
        partial = tree.with_name(f"{commit}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", commit))) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(tree)
    return build_tree(tree), f"{revision} ({commit[:_DIGITS]})"


def build_tree(root: Path, *, faults: bool = False) -> Path:
    """Build the wheel of a source tree, unless it is there already; return its path. Blocks.

    Args:
        root: The tree.
        faults: With the switches that tests set, see docs/faults.md.

    Raises:
        HarnessError: It cannot be built.
    """
    build = WheelBuild(root, f"{sys.version_info.major}.{sys.version_info.minor}", pure=False, faults=faults)
    if not build.stamp.is_current():
        shutil.rmtree(build.directory, ignore_errors=True)
        command = [sys.executable, "-m", "pip", *build.pip_arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **build.environment}, check=False
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise HarnessError(f"the wheel of {root} cannot be built; pip's last lines:\n{tail}")
        build.check()
        build.stamp.write()
    return build.path()


def unpack(path: Path, directory: Path, revision: str) -> Wheel:
    """Unpack a wheel into a directory, which is emptied first.

    Raises:
        UsageError: It is no wheel of kvfs.
    """
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if "kvfs/__init__.py" not in archive.namelist():
                raise UsageError(f"{path} is no wheel of kvfs: kvfs/__init__.py is not in it")
            shutil.rmtree(directory, ignore_errors=True)
            archive.extractall(directory)  # noqa: S202  zipfile keeps members inside
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as a wheel ({error}); name a .whl file") from error
    # Absolute, since the processes that import it have another working directory.
    return Wheel(revision, hashlib.sha256(content).hexdigest(), directory.resolve())


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout
