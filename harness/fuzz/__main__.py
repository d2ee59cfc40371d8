"""Fuzz every target for some seconds and print what came of it: `nox -s fuzz`."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from harness.fuzz import inputs, native
from harness.fuzz.fuzzer import Fuzzer, Result, table
from harness.fuzz.python_targets import TARGETS as PYTHON_TARGETS

_OUT: Final = inputs.ROOT / "build" / "fuzz"
_SECONDS: Final = 20
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a new directory in it


def fuzzers(programs: dict[str, Path]) -> dict[str, Fuzzer]:
    """Return how each target is run, by its name."""
    found = {
        f"native-{name}": Fuzzer(f"native-{name}", name, (str(program),))
        for name, program in programs.items()
    }
    for name, (kind, _) in PYTHON_TARGETS.items():
        command = (sys.executable, "-P", "-m", "harness.fuzz.atheris_main", name)
        found[f"python-{name}"] = Fuzzer(f"python-{name}", kind, command)
    return found


def names() -> list[str]:
    """Return the names of all targets."""
    return list(fuzzers({name: Path(name) for name in native.TARGETS}))


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=_SECONDS, help="for each target (default: %(default)s)"
    )
    parser.add_argument("--target", action="append", choices=names(), help="only this one; may be repeated")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the target on this input alone")
    options = parser.parse_args(arguments)
    if options.seconds < 1:
        parser.error(f"--seconds must be at least 1, got {options.seconds}")
    if options.replay is not None and len(options.target or ()) != 1:
        parser.error("--replay needs one --target")
    return options


def main(arguments: list[str]) -> int:
    """Run the targets; return 1 if one of them found something."""
    options = _arguments(arguments)
    logging.basicConfig(format="%(message)s")
    chosen = options.target or names()
    is_native = any(name.startswith("native-") for name in chosen)
    programs = native.build(_OUT / "native", os.cpu_count() or 1) if is_native else {}
    runs = [fuzzer for name, fuzzer in fuzzers(programs).items() if name in chosen]
    # In memory, where there is some: it is files that most targets put their input into.
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="kvfs-fuzz-", dir=parent))
    try:
        if options.replay is not None:
            return runs[0].replay(options.replay, scratch)
        results: list[Result] = []
        for fuzzer in runs:
            print(f"{fuzzer.name}: {options.seconds} s", flush=True)
            results.append(fuzzer.run(options.seconds, _OUT, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(table(results))
    for result in results:
        for finding in result.findings:
            print(f"\n{result.name} broke on {finding}; what it said is in {result.log}. Again:")
            print(f"  python3 noxfile.py -s fuzz -- --target {result.name} --replay {finding}")
            print(
                f"Once it is mended, keep it in {inputs.REGRESSIONS.relative_to(inputs.ROOT)}/{result.kind}/."
            )
        if result.problem:
            print(f"\n{result.name} {result.problem}; see {result.log}")
    return 1 if any(result.findings or result.problem for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
