"""Build the native targets with clang: libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from harness.fuzz.inputs import ROOT
from harness.sessions.stamps import Stamp, digest_of_files, digest_of_strings

SOURCES: Final = ROOT / "src" / "kvfs_ext"
TARGET_SOURCES: Final = ROOT / "tests" / "fuzz" / "native"
# Each is a source there, and the kind of its inputs.
TARGETS: Final = ("names", "seal", "snapshot", "space")
# Rooms that read what lies on disk; neither threads nor Python.
_ROOMS: Final = ("base", "fs", "index", "layouts")
_COMPILER: Final = "clang++"
_FLAGS: Final = ("-std=c++20", "-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_SANITIZERS: Final = "address,undefined"
_BUILD_TIMEOUT_S: Final = 600.0


def build(directory: Path, jobs: int) -> dict[str, Path]:
    """Build what has changed; return the program of each target.

    Raises:
        RuntimeError: The compiler's own words.
    """
    sources = [path for room in _ROOMS for path in sorted((SOURCES / room).glob("*.cpp"))]
    targets = [TARGET_SOURCES / f"{target}.cpp" for target in TARGETS]
    programs = {target: directory / target for target in TARGETS}
    headers = [*SOURCES.rglob("*.hpp"), *TARGET_SOURCES.glob("*.hpp")]
    inputs = sorted(path.relative_to(ROOT) for path in (*headers, *sources, *targets))
    digest = digest_of_strings([digest_of_files(ROOT, inputs), _COMPILER, *_FLAGS, _SANITIZERS])
    stamp = Stamp(directory / "kvfs-stamp", digest)
    if stamp.is_current():
        return programs
    stamp.clear()
    directory.mkdir(parents=True, exist_ok=True)
    print(
        f"building {len(TARGETS)} targets from {len(sources) + len(targets)} files with {_COMPILER}",
        flush=True,
    )
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(_compiler_into(directory), [*sources, *targets]))
    core = objects[: len(sources)]
    for target, own in zip(TARGETS, objects[len(sources) :], strict=True):
        link = [f"-fsanitize=fuzzer,{_SANITIZERS}", *map(str, core), str(own), "-o", str(programs[target])]
        _run([_COMPILER, *_FLAGS, *link])
    stamp.write()
    return programs


def _compiler_into(directory: Path) -> Callable[[Path], Path]:
    includes = [f"-I{SOURCES}", f"-I{TARGET_SOURCES}", f"-fsanitize=fuzzer-no-link,{_SANITIZERS}"]

    def compile_one(source: Path) -> Path:
        compiled = directory / f"{source.parent.name}-{source.stem}.o"
        _run([_COMPILER, *_FLAGS, *includes, "-c", str(source), "-o", str(compiled)])
        return compiled

    return compile_one


def _run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr}")
