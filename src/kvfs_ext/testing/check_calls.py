"""Fail the build of the tests of faults when the core makes a call that they cannot make fail.

`check_calls.py LIBRARY WRAPPED` compares what the objects of a static library leave undefined with a list of
wrapped symbols. A C function that is in neither that list nor in `NO_CALLS` is a call to the system as far as
we know; a wrapped method that nobody calls has changed its signature.
"""
# ruff: noqa: INP001  a program of the build, not of a package

import subprocess
import sys
from pathlib import Path

# What is no call about files: memory, threads, time, and what a compiler adds.
NO_CALLS = frozenset(
    {
        "_GLOBAL_OFFSET_TABLE_",
        "__cpu_model",
        "__dso_handle",
        "__errno_location",
        "__libc_single_threaded",
        "__stack_chk_fail",
        "__tls_get_addr",
        "abort",
        "calloc",
        "clock_gettime",
        "free",
        "geteuid",
        "getpid",
        "getpriority",
        "getrandom",
        "getuid",
        "malloc",
        "memchr",
        "memcmp",
        "memcpy",
        "memmove",
        "memset",
        "munmap",
        "nanosleep",
        "realloc",
        "sched_yield",
        "sigfillset",
        "strcmp",
        "strlen",
        "strstr",
        "strtoul",
    }
)
# The C++ library opens and writes files, too.
CALLS_OF_CXX = ("filesystem", "filebuf", "fstream")
NO_CALL_PREFIXES = ("_Unwind_", "__cxa_", "__gxx_", "_Z", "pthread_")


def undefined_symbols(library: Path) -> set[str]:
    """Return the symbols that at least one object of the library takes from another place."""
    output = subprocess.run(
        ["nm", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1] for line in output.splitlines() if line.split()[:1] in (["U"], ["w"])}


def wrapped_symbols(path: Path) -> list[str]:
    """Return the symbols of the list, without its comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def problems(library: Path, wrapped_path: Path) -> list[str]:
    """Return a sentence on each call that the list lacks, and on each method in it that nobody calls."""
    undefined = undefined_symbols(library)
    wrapped = wrapped_symbols(wrapped_path)
    found = [
        f"{symbol}() is called and no test can make it fail: wrap it in testing/wraps.cpp and name it in "
        f"{wrapped_path.name}, or add it to NO_CALLS if it is no call to the system"
        for symbol in sorted(undefined.difference(wrapped, NO_CALLS))
        if not symbol.startswith(NO_CALL_PREFIXES) or any(part in symbol for part in CALLS_OF_CXX)
    ]
    found += [
        f"{symbol} is wrapped and nobody calls it: its signature has changed, see testing/wraps_ring.cpp"
        for symbol in wrapped
        if symbol.startswith("_Z") and symbol not in undefined
    ]
    return found


def main() -> int:
    """Print the problems; return the exit status."""
    found = problems(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stderr.writelines(f"error: {problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
