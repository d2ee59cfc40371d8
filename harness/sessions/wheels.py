"""Where the sessions' wheels lie, what they are made from, and how pip is told to make them."""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from harness.sessions.stamps import Stamp, digest_of_files, digest_of_strings
from harness.sessions.tree import own_files

# What ends up in a wheel or decides how it is built.
_INPUT_ROOMS = ("src", "kvfs")
_INPUT_FILES = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
_NATIVE_SUFFIXES = (".so", ".pyd", ".a")


@dataclass(frozen=True)
class WheelBuild:
    """One wheel of this tree: with the extension for one Python, or pure.

    Attributes:
        root: The repository's root.
        python_version: "3.12", of the interpreter that builds it.
        pure: Whether it is the pure-Python wheel, which needs no compiler.
        sanitize: What `-fsanitize=` gets, empty for the wheel as users have it.
        faults: Whether its system calls fail when a test says so.
    """

    root: Path
    python_version: str
    pure: bool
    sanitize: str = ""
    faults: bool = False

    @property
    def directory(self) -> Path:
        """Return the wheel's directory, which holds nothing else."""
        name = "pure" if self.pure else "cp" + self.python_version.replace(".", "")
        if self.sanitize:
            name += "-" + self.sanitize.replace(",", "-")
        if self.faults:
            name += "-faults"
        return self.root / "build" / "wheels" / name

    @property
    def digest(self) -> str:
        """Return a digest of everything that the wheel is made from."""
        paths = [
            path
            for path in own_files(self.root)
            if path.parts[0] in _INPUT_ROOMS or path.as_posix() in _INPUT_FILES
        ]
        return digest_of_strings([digest_of_files(self.root, paths), *self.pip_arguments, *self.environment])

    @property
    def stamp(self) -> Stamp:
        """Return the stamp of the wheel as the tree is now."""
        return Stamp(self.directory / "kvfs-stamp", self.digest)

    @property
    def pip_arguments(self) -> list[str]:
        """Return the arguments of `python -m pip`."""
        arguments = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(self.directory)]
        if not self.pure:
            # Our own sessions stop at a warning; a user's newer compiler does not have to.
            arguments += ["--config-settings=cmake.define.KVFS_WERROR=ON"]
        if self.sanitize or self.faults:
            # CMake remembers options.
            arguments += [f"--config-settings=build-dir=build/{self.directory.name}"]
        if self.faults:
            arguments += ["--config-settings=cmake.define.KVFS_FAULTS=ON"]
        if self.sanitize:
            # Line numbers for the reports.
            arguments += [
                f"--config-settings=cmake.define.KVFS_SANITIZE={self.sanitize}",
                "--config-settings=cmake.build-type=RelWithDebInfo",
                "--config-settings=install.strip=false",
            ]
        return [*arguments, str(self.root)]

    @property
    def environment(self) -> dict[str, str]:
        """Return what the build's environment has beside the caller's."""
        # The pure wheel must come out where there is no compiler to be found.
        return {"KVFS_PURE_PYTHON": "1", "CC": "false", "CXX": "false"} if self.pure else {}

    def path(self) -> Path:
        """Return the wheel's path.

        Raises:
            FileNotFoundError: If there is not exactly one wheel.
        """
        wheels = sorted(self.directory.glob("kvfs-*.whl"))
        if len(wheels) != 1:
            raise FileNotFoundError(f"expected one wheel in {self.directory}, found {len(wheels)}")
        return wheels[0]

    def check(self) -> None:
        """Check that the wheel is of the kind that was asked for.

        Raises:
            ValueError: If it is not; the message says what the wheel has or lacks.
        """
        wheel = self.path()
        native = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(_NATIVE_SUFFIXES)]
        is_pure_name = re.search(r"-py3-none-any\.whl$", wheel.name) is not None
        if self.pure and (native or not is_pure_name):
            raise ValueError(f"{wheel.name} must be py3-none-any without native code, it has {native}")
        if not self.pure and (len(native) != 1 or is_pure_name):
            raise ValueError(f"{wheel.name} must have one native module and name its platform, has {native}")
