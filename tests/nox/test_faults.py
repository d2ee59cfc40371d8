"""The session `faults`: its arguments, its count of skips, and the check that the seam knows every call."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.sessions.fault_runs import Tally, parse, read_tally

ROOT = Path(__file__).resolve().parents[2]
TESTING = ROOT / "src/kvfs_ext/testing"
METHOD = "_ZN3Box4openEi"


@pytest.mark.parametrize(
    ("arguments", "is_long", "paths", "concern_fallback"),
    [
        ([], False, ["tests/faults"], True),
        (["--long", "-x"], True, ["tests/faults"], True),
        (["-k", "pwrite", "tests/faults/injected"], False, [], False),
        (["tests/faults/injected/test_seam.py", "tests/faults/disks"], False, [], True),
    ],
)
def test_arguments_are_the_sessions_and_pytests(
    arguments: list[str], is_long: bool, paths: list[str], concern_fallback: bool
) -> None:
    parsed = parse(arguments)
    assert parsed.is_long == is_long
    assert "--long" not in parsed.rest
    assert parsed.paths == paths
    assert parsed.concern_fallback == concern_fallback
    assert parsed.environment == {"KVFS_FAULTS_LONG": "1" if is_long else "0"}


def test_tally_of_a_run_of_pytest_counts_skips_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "@pytest.mark.skip(reason='needs root: it mounts a file system')\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_b(n): pass\n"
        "def test_c(): pytest.skip('no quotas here')\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    subprocess.run(
        [*command, f"--junitxml={report}", str(tmp_path)], check=True, timeout=60, capture_output=True
    )
    tally = read_tally(report)
    assert tally == Tally(4, Counter({"needs root: it mounts a file system": 2, "no quotas here": 1}))
    assert (tally + tally).lines() == [
        "8 tests, 6 skipped, 4 of them for want of root",
        "  4 skipped: needs root: it mounts a file system",
        "  2 skipped: no quotas here",
    ]
    assert read_tally(tmp_path / "missing.xml") == Tally(0, Counter())


def _check(directory: Path, source: str, wrapped: str) -> tuple[int, str]:
    """Compile a source into a library and check its calls; return the status and what was printed."""
    code, objects, library = directory / "code.cpp", directory / "code.o", directory / "libcode.a"
    code.write_text(source)
    subprocess.run(["g++", "-std=c++20", "-O1", "-c", "-o", objects, code], check=True, timeout=60)
    subprocess.run(["ar", "rcs", library, objects], check=True, timeout=30)
    (directory / "wrapped.txt").write_text(wrapped)
    done = subprocess.run(
        [sys.executable, TESTING / "check_calls.py", library, directory / "wrapped.txt"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stderr


SOURCE = """
#include <unistd.h>
struct Box { bool open(int); };
int f(Box& box, const char* path) { return box.open(1) ? ::unlink(path) : ::getpid(); }
"""


def test_check_of_calls_all_known_passes(tmp_path: Path) -> None:
    assert _check(tmp_path, SOURCE, f"# What is wrapped.\nunlink\n{METHOD}\n") == (0, "")


def test_check_of_calls_unknown_call_fails(tmp_path: Path) -> None:
    status, message = _check(tmp_path, SOURCE, f"{METHOD}\n")
    assert status == 1
    assert message.startswith("error: unlink() is called and no test can make it fail")


def test_check_of_calls_changed_signature_fails(tmp_path: Path) -> None:
    status, message = _check(tmp_path, SOURCE, "unlink\n_ZN3Box4openEv\n")
    assert status == 1
    assert "_ZN3Box4openEv is wrapped and nobody calls it" in message


def test_check_of_calls_stream_of_the_cxx_library_fails(tmp_path: Path) -> None:
    source = '#include <fstream>\nvoid f() { std::ofstream("x") << 1; }\n'
    status, message = _check(tmp_path, source, "")
    assert status == 1
    assert "basic_ofstream" in message or "basic_filebuf" in message


def test_every_wrapped_call_has_its_wrap() -> None:
    text = "".join(path.read_text() for path in TESTING.glob("wraps*.cpp"))
    symbols = [line for line in (TESTING / "wrapped.txt").read_text().split("\n") if line and line[0] != "#"]
    assert len(symbols) > 20
    for symbol in symbols:
        needle = f"prefix##{symbol}" if symbol.startswith("_Z") else f"__wrap_{symbol}("
        assert needle in text, symbol
