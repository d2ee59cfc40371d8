"""The sanitizers of `nox -s sanitize`: their runtimes really report, and what they report is found."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.sessions.sanitizers import SANITIZERS, Sanitizer, command_prefix, reports

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = {
    "address": "int main(int n, char**) { int* p = new int[1]; delete[] p; return p[n - 1]; }",
    "thread": """
#include <thread>
int shared = 0;
int main() {
  std::thread other([] { for (int i = 0; i < 100000; ++i) ++shared; });
  for (int i = 0; i < 100000; ++i) ++shared;
  other.join();
}
""",
}
SOUND = "int main() {}"


def _run(sanitizer: Sanitizer, source: str, directory: Path) -> tuple[int, list[str]]:
    """Build a program with a sanitizer and run it as the tests are run; return its status and the reports."""
    code, program, log = directory / "code.cpp", directory / "program", directory / "report"
    code.write_text(source)
    subprocess.run(
        ["g++", "-g", "-O1", f"-fsanitize={sanitizer.flags}", "-pthread", "-o", program, code],
        check=True,
        timeout=60,
    )
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
        for name in sanitizer.libraries
    ]
    done = subprocess.run(
        [*command_prefix(), program],
        env={**os.environ, **sanitizer.environment(libraries, log)},
        check=False,
        timeout=60,
    )
    return done.returncode, list(reports(log))


@pytest.mark.parametrize("sanitizer", SANITIZERS, ids=lambda sanitizer: sanitizer.name)
def test_defect_is_reported_and_fails_the_command(sanitizer: Sanitizer, tmp_path: Path) -> None:
    status, found = _run(sanitizer, DEFECTS[sanitizer.name], tmp_path)
    assert status != 0
    assert len(found) == 1
    assert "code.cpp" in found[0]
    assert not list(reports(tmp_path / "report")), "a report is taken once"


@pytest.mark.parametrize("sanitizer", SANITIZERS, ids=lambda sanitizer: sanitizer.name)
def test_sound_program_has_no_report(sanitizer: Sanitizer, tmp_path: Path) -> None:
    assert _run(sanitizer, SOUND, tmp_path) == (0, [])


def test_tests_of_a_sanitizer_exist() -> None:
    for sanitizer in SANITIZERS:
        assert all((ROOT / path).exists() for path in sanitizer.tests)
