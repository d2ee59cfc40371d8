"""Find what comes from Debian's packages and not from Python's; as root, install what is missing.

`python3 -m harness.sessions.sysdeps` checks (as root on Debian: installs) everything in the table.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

CXX20_PROGRAM = """\
#include <concepts>
#include <span>
int main() { std::span<const int> none; return static_cast<int>(none.size()); }
"""
FUZZ_PROGRAM = """\
#include <cstddef>
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }
"""
PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SystemPackage:
    """One Debian package: what it is for, when it is needed, and how to see that it is there.

    Attributes:
        debian: The name of the package in Debian 12 (and in Ubuntu).
        why: What it is for, in a few words.
        need: Which of `NEEDS` it belongs to.
        problem: Takes the interpreter of the session; returns what is wrong, or "" when all is well.
    """

    debian: str
    why: str
    need: str
    problem: Callable[[str], str]


def compiler_problem(_python: str) -> str:
    """Say why C++20 cannot be compiled and linked here; "" when it can. Tries a program of three lines."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++" if shutil.which("g++") else "c++"]
    if shutil.which(compiler[0]) is None:
        return f"no C++ compiler ({compiler[0]} is not on PATH)"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "probe.cpp")
        source.write_text(CXX20_PROGRAM)
        command = [*compiler, "-std=c++20", str(source), "-o", str(Path(scratch, "probe"))]
        return _failure(command, f"{compiler[0]} cannot compile C++20")


def fuzzer_problem(_python: str) -> str:
    """Say why clang cannot link a fuzz target; "" when it can. Tries one that does nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "probe.cpp")
        source.write_text(FUZZ_PROGRAM)
        command = ["clang++", "-fsanitize=fuzzer,address,undefined", str(source)]
        return _failure([*command, "-o", str(Path(scratch, "probe"))], "clang++ cannot link a fuzz target")


def headers_problem(python: str) -> str:
    """Say why extensions for `python` cannot be compiled; "" when its Python.h is there."""
    program = (
        "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').resolve())"
    )
    run = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
    )
    if run.returncode != 0:
        return f"{python} does not run: {_gist(run.stderr)}"
    header = run.stdout.strip()
    return "" if Path(header).is_file() else f"no headers of {python} ({header} is missing)"


def venv_problem(python: str) -> str:
    """Say why `python -m venv` cannot work; "" when it can. Debian packages ensurepip apart from Python."""
    return _failure([python, "-c", "import ensurepip, venv"], f"{python} cannot make virtual environments")


def numa_problem(_python: str) -> str:
    """Say why vLLM's CPU build cannot be loaded; "" when the one library that it does not bring is there."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        return str(error)
    return ""


def program_problem(program: str, _python: str) -> str:
    """Say that a program is not there; "" when it is. Debian's places for root's count, too."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return "" if shutil.which(program, path=path) else f"{program} is not on PATH"


def browser() -> str | None:
    """Return the path of a Chromium, whatever it is called here; None where there is none."""
    names = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")
    return next((found for name in names if (found := shutil.which(name))), None)


def browser_problem(_python: str) -> str:
    """Say that no page can be looked at; "" when a Chromium is there."""
    return "" if browser() else "no Chromium is on PATH"


# The one list of what comes from Debian; CONTRIBUTING.md quotes it and tests/nox compares the two.
PACKAGES = (
    SystemPackage(
        debian="python3-venv",
        why="environments, where nox is not installed yet",
        need="bootstrap",
        problem=venv_problem,
    ),
    SystemPackage(
        debian="g++",
        why="compiles the extension (C++20)",
        need="compile",
        problem=compiler_problem,
    ),
    SystemPackage(
        debian="python3-dev",
        why="Python.h for the extension",
        need="compile",
        problem=headers_problem,
    ),
    SystemPackage(
        debian="libnuma1",
        why="vLLM's CPU build links to it",
        need="vllm",
        problem=numa_problem,
    ),
    SystemPackage(
        debian="fio",
        why="optional, the disk's own limit in `micro`",
        need="micro",
        problem=partial(program_problem, "fio"),
    ),
    SystemPackage(
        debian="strace",
        why="optional, counts system calls in `micro`",
        need="micro",
        problem=partial(program_problem, "strace"),
    ),
    SystemPackage(
        debian="mount",
        why="optional, mounts and loop devices in `faults` (as root)",
        need="faults",
        problem=partial(program_problem, "losetup"),
    ),
    SystemPackage(
        debian="e2fsprogs",
        why="optional, ext4 in `faults`",
        need="faults",
        problem=partial(program_problem, "mkfs.ext4"),
    ),
    SystemPackage(
        debian="xfsprogs",
        why="optional, xfs in `faults`",
        need="faults",
        problem=partial(program_problem, "mkfs.xfs"),
    ),
    SystemPackage(
        debian="btrfs-progs",
        why="optional, btrfs in `faults`",
        need="faults",
        problem=partial(program_problem, "mkfs.btrfs"),
    ),
    SystemPackage(
        debian="clang",
        why="compiles the fuzz targets of the C++ code",
        need="fuzz",
        problem=partial(program_problem, "clang++"),
    ),
    SystemPackage(
        debian="libclang-rt-dev",
        why="libFuzzer and the sanitizers that clang links to",
        need="fuzz",
        problem=fuzzer_problem,
    ),
    SystemPackage(
        debian="chromium-headless-shell",
        why="optional, opens the report in its tests (any Chromium or Chrome will do)",
        need="browser",
        problem=browser_problem,
    ),
)
NEEDS = ("bootstrap", "compile", "vllm", "micro", "faults", "fuzz", "browser")
# What a session goes on without: it does less, and says what.
OPTIONAL_NEEDS = ("micro", "faults", "browser")


def missing(need: str, python: str) -> dict[str, str]:
    """Return the Debian packages that are missing for `need`, each with what is wrong.

    Raises:
        ValueError: If `need` is none of `NEEDS`.
    """
    if need not in NEEDS:
        raise ValueError(f"need must be one of {', '.join(NEEDS)}, got {need!r}")
    found = {package.debian: package.problem(python) for package in PACKAGES if package.need == need}
    return {name: problem for name, problem in found.items() if problem}


def is_debian(os_release: Path = Path("/etc/os-release")) -> bool:
    """Say whether this is Debian or one of its children, with apt-get."""
    if shutil.which("apt-get") is None or not os_release.is_file():
        return False
    pairs = (line.partition("=") for line in os_release.read_text().splitlines())
    fields = {key: value.strip("\"'") for key, _, value in pairs}
    return "debian" in (fields.get("ID", ""), *fields.get("ID_LIKE", "").split())


def install_command(packages: Sequence[str]) -> list[str]:
    """Return the command that installs `packages`, without a leading sudo."""
    return ["apt-get", "install", "--yes", "--no-install-recommends", *packages]


def ensure(need: str, python: str, *, root: bool | None = None, debian: bool | None = None) -> None:
    """Make sure that what `need` takes from Debian is there: look, install as root, look again.

    What an optional need lacks in the end is only told.

    Args:
        need: One of `NEEDS`.
        python: The interpreter that the session uses.
        root: Whether packages may be installed; the effective user decides by default.
        debian: Whether apt-get is this system's; the system says by default.

    Raises:
        SystemExit: If something stays missing. The message has each problem and the line that cures it.
    """
    try:
        _require(need, python, root, debian)
    except SystemExit as missed:
        if need not in OPTIONAL_NEEDS:
            raise
        print(f"kvfs: goes on with less than it could do. {missed}", flush=True)


def _require(need: str, python: str, root: bool | None, debian: bool | None) -> None:
    problems = missing(need, python)
    if not problems:
        return
    packages = sorted(problems)
    listed = "; ".join(f"{name}: {problems[name]}" for name in packages)
    on_debian = is_debian() if debian is None else debian
    as_root = os.geteuid() == 0 if root is None else root
    if not on_debian:
        raise SystemExit(
            f"kvfs needs what Debian calls {' '.join(packages)} ({listed}). "
            "This system is not Debian's kin: install its own packages of that kind, then run again."
        )
    line = shlex.join(install_command(packages))
    if not as_root:
        raise SystemExit(f"kvfs needs packages from Debian ({listed}). Install them with:\n  sudo {line}")
    print(f"kvfs: installing from Debian: {' '.join(packages)} ({listed})", flush=True)
    _apt_get(packages, line)
    problems = missing(need, python)
    if problems:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise SystemExit(
            f"kvfs: {' '.join(packages)} installed, and still: {listed}. If the interpreter or the compiler "
            "is not Debian's own, install its development files from where it came."
        )


def _apt_get(packages: Sequence[str], line: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "--quiet"], install_command(packages)):
        # Its pages of output help only when it fails.
        run = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            print(run.stdout)
            raise SystemExit(f"kvfs: {shlex.join(command)} failed with status {run.returncode}; try: {line}")


def _failure(command: Sequence[str], sentence: str) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{sentence}: {error}"
    return "" if run.returncode == 0 else f"{sentence}: {_gist(run.stderr)}"


def _gist(text: str) -> str:
    """Return the line of an error output that says most: the first with "error" in it, or the last."""
    lines = text.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1]).strip()


def main() -> None:
    """Check every need with this interpreter."""
    for need in NEEDS:
        ensure(need, sys.executable)
    looked_for = ", ".join(package.debian for package in PACKAGES if package.need not in OPTIONAL_NEEDS)
    print(f"kvfs: nothing is missing from {looked_for}")


if __name__ == "__main__":
    main()
