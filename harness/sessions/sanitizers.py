"""Which sanitizers the extension is tested under, and what an interpreter needs to load such a build."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RANDOM_BITS: Final = Path("/proc/sys/vm/mmap_rnd_bits")
# GCC 12's runtimes find their fixed addresses taken where more bits of an address are random.
_RANDOM_BITS_MAX: Final = 28


@dataclass(frozen=True)
class Sanitizer:
    """One instrumented build of the extension.

    Attributes:
        name: What to call its environment.
        flags: What `-fsanitize=` gets.
        library: The runtime that has to be loaded before anything else.
        variable: The runtime's own variable.
        options: What it gets beside the place of its log.
        tests: What runs under it.
    """

    name: str
    flags: str
    library: str
    variable: str
    options: str
    tests: tuple[str, ...]

    def environment(self, library_path: str, log: Path) -> dict[str, str]:
        """Return the variables of a run.

        Args:
            library_path: Where the compiler has `library`.
            log: Reports go to files of this name and the process's id: pytest takes standard error.
        """
        return {"LD_PRELOAD": library_path, self.variable: f"{self.options}:log_path={log}"}


SANITIZERS: Final = (
    Sanitizer(
        name="address",
        flags="address,undefined",
        library="libasan.so",
        variable="ASAN_OPTIONS",
        # CPython frees little of what it holds when it ends.
        options="detect_leaks=0",
        tests=("tests/unit", "tests/ext"),
    ),
    Sanitizer(
        name="thread",
        flags="thread",
        library="libtsan.so",
        variable="TSAN_OPTIONS",
        # One test forks and starts an engine in the child, as a vLLM worker may.
        options="die_after_fork=0:exitcode=66",
        # What has threads of its own; the rest runs on the caller's.
        tests=(
            "tests/unit/test_base_path.py",
            "tests/unit/test_engine_lifecycle.py",
            "tests/unit/test_engine_outcomes.py",
            "tests/unit/test_engine_process.py",
            "tests/unit/test_engine_round_trip.py",
            "tests/unit/test_interrupted.py",
            "tests/unit/test_io_engine.py",
            "tests/unit/test_o_direct.py",
            "tests/unit/test_queueing.py",
            "tests/unit/test_writers.py",
            "tests/ext",
        ),
    ),
)


def command_prefix() -> list[str]:
    """Return what goes before the interpreter, so that the runtimes find their addresses free."""
    try:
        bits = int(_RANDOM_BITS.read_text())
    except (OSError, ValueError):
        return []
    return ["setarch", "--addr-no-randomize"] if bits > _RANDOM_BITS_MAX else []


def reports(log: Path) -> Iterator[str]:
    """Yield the reports that were written to files of this name, and remove them."""
    for path in sorted(log.parent.glob(f"{log.name}.*")):
        text = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
        if "==ERROR" in text or "WARNING: ThreadSanitizer" in text or "runtime error:" in text:
            yield text
