"""Which sanitizers the extension is tested under, and what an interpreter needs to load such a build."""

from collections.abc import Iterator, Sequence
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
        libraries: What has to be loaded before anything else: the runtime and the C++ library, where it looks
            for functions at the start of any program.
        variables: The runtime's own variables.
        options: What they get beside the place of the log.
        tests: What runs under it.
    """

    name: str
    flags: str
    libraries: tuple[str, ...]
    variables: tuple[str, ...]
    options: str
    tests: tuple[str, ...]

    def environment(self, library_paths: Sequence[str], log: Path) -> dict[str, str]:
        """Return the variables of a run.

        Args:
            library_paths: Where the compiler has `libraries`.
            log: Reports go to files of this name and the process's id: pytest takes standard error.
        """
        options = f"{self.options}:log_path={log}"
        return {"LD_PRELOAD": " ".join(library_paths), **dict.fromkeys(self.variables, options)}


SANITIZERS: Final = (
    Sanitizer(
        name="address",
        flags="address,undefined",
        libraries=("libasan.so", "libstdc++.so.6"),
        variables=("ASAN_OPTIONS", "UBSAN_OPTIONS"),
        # CPython frees little of what it holds when it ends, and its tests ask for more memory than there is.
        options="detect_leaks=0:allocator_may_return_null=1:halt_on_error=1:print_stacktrace=1",
        tests=("tests/unit", "tests/ext"),
    ),
    Sanitizer(
        name="thread",
        flags="thread",
        libraries=("libtsan.so", "libstdc++.so.6"),
        variables=("TSAN_OPTIONS",),
        options="exitcode=66",
        # What has threads of its own; the rest runs on the caller's.
        tests=(
            "tests/unit/test_base_path.py",
            "tests/unit/test_capacity.py",
            "tests/unit/test_capacity_eviction.py",
            "tests/unit/test_capacity_exact.py",
            "tests/unit/test_close.py",
            "tests/unit/test_engine_lifecycle.py",
            "tests/unit/test_engine_outcomes.py",
            "tests/unit/test_engine_process.py",
            "tests/unit/test_engine_round_trip.py",
            "tests/unit/test_interrupted.py",
            "tests/unit/test_io_engine.py",
            "tests/unit/test_lookup_ahead.py",
            "tests/unit/test_lookup_ask.py",
            "tests/unit/test_lookup_calls.py",
            "tests/unit/test_lookup_checks.py",
            "tests/unit/test_lookup_ownership.py",
            "tests/unit/test_lookup_probes.py",
            "tests/unit/test_lookup_scan.py",
            "tests/unit/test_lookup_tier.py",
            "tests/unit/test_o_direct.py",
            "tests/unit/test_orphans.py",
            "tests/unit/test_pause.py",
            "tests/unit/test_pruned_directories.py",
            "tests/unit/test_queueing.py",
            "tests/unit/test_seals_damage.py",
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
        if "Sanitizer:" in text or "runtime error:" in text:
            yield text
