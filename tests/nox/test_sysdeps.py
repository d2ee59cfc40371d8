"""What comes from Debian: the real probes, and an apt-get of our own where packages would be installed."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.sessions import sysdeps

ROOT = Path(__file__).resolve().parents[2]
Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Leave only a directory of our own on PATH; return a function that puts a shell script there."""
    path_before = os.environ["PATH"]
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("CXX", raising=False)

    def write(name: str, body: str) -> Path:
        path = directory / name
        path.write_text(f"#!/bin/sh\nPATH='{path_before}'\n{body}\n")
        path.chmod(0o755)
        return path

    return write


def test_missing_compile_here_is_nothing() -> None:
    # This environment's wheel was compiled on this machine.
    assert sysdeps.missing("compile", sys.executable) == {}


def test_missing_no_compiler_names_the_package(script: Script) -> None:
    script("true", "true")
    assert sysdeps.missing("compile", sys.executable) == {
        "g++": "no C++ compiler (c++ is not on PATH)",
    }


def test_missing_compiler_without_cxx20_says_what_it_said(script: Script) -> None:
    script("g++", "echo 'some output' >&2; echo 'g++: error: unrecognized option' >&2; exit 1")
    assert sysdeps.missing("compile", sys.executable) == {
        "g++": "g++ cannot compile C++20: g++: error: unrecognized option"
    }


def test_missing_cxx_variable_names_the_compiler_that_counts(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("g++", "exit 0")
    monkeypatch.setenv("CXX", "clang++-99 -O2")
    assert "clang++-99 is not on PATH" in sysdeps.missing("compile", sys.executable)["g++"]


def test_headers_problem_interpreter_without_headers_names_the_file(script: Script) -> None:
    python = script("python", "echo /nowhere/include/Python.h")
    assert (
        sysdeps.headers_problem(str(python))
        == f"no headers of {python} (/nowhere/include/Python.h is missing)"
    )


def test_headers_problem_interpreter_that_fails_says_so(script: Script) -> None:
    python = script("python", "echo 'no such module: error' >&2; exit 3")
    assert sysdeps.headers_problem(str(python)) == f"{python} does not run: no such module: error"


def test_venv_problem_without_ensurepip_says_so(script: Script) -> None:
    python = script("python", f"exec '{sys.executable}' -c 'import ensurepip_of_nobody'")
    assert "cannot make virtual environments: ModuleNotFoundError" in sysdeps.venv_problem(str(python))


def test_missing_unknown_need_raises() -> None:
    with pytest.raises(
        ValueError,
        match="need must be one of bootstrap, compile, vllm, micro, faults, fuzz, browser, got 'gpu'",
    ):
        sysdeps.missing("gpu", sys.executable)


def test_ensure_as_root_on_debian_installs_and_says_so(
    script: Script, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiler = shutil.which("g++", path="/usr/local/bin:/usr/bin:/bin")
    assert compiler, "the sessions need g++"
    calls = tmp_path / "calls"
    real = script("real", f'exec {compiler} "$@"')
    script(
        "apt-get",
        f"echo \"$DEBIAN_FRONTEND $*\" >> '{calls}'\n"
        f"if [ $1 = install ]; then ln -s '{real}' '{real.parent}/g++'; fi",
    )
    sysdeps.ensure("compile", sys.executable, root=True, debian=True)
    assert calls.read_text().splitlines() == [
        "noninteractive update --quiet",
        "noninteractive install --yes --no-install-recommends g++",
    ]
    assert "installing from Debian: g++ (g++: no C++ compiler" in capfd.readouterr().out


def test_ensure_not_root_ends_with_the_line_that_installs(script: Script) -> None:
    called = script("apt-get", "touch called")
    with pytest.raises(SystemExit) as caught:
        sysdeps.ensure("compile", sys.executable, root=False, debian=True)
    message = str(caught.value)
    assert message.splitlines()[-1] == "  sudo apt-get install --yes --no-install-recommends g++"
    assert "no C++ compiler" in message
    assert not (called.parent / "called").exists()


def test_ensure_optional_packages_that_cannot_be_had_are_told_and_missed(
    script: Script, capfd: pytest.CaptureFixture[str]
) -> None:
    script("true", "true")
    sysdeps.ensure("micro", sys.executable, root=False, debian=True)
    told = capfd.readouterr().out
    assert "goes on with less" in told
    assert "fio is not on PATH" in told
    assert "  sudo apt-get install --yes --no-install-recommends fio strace" in told


def test_missing_browser_is_nothing_where_any_chromium_is(script: Script) -> None:
    script("true", "true")
    assert sysdeps.missing("browser", sys.executable) == {"chromium-headless-shell": "no Chromium is on PATH"}
    script("google-chrome", "true")
    assert sysdeps.missing("browser", sys.executable) == {}


def test_ensure_not_debian_ends_with_what_is_missing(script: Script) -> None:
    script("true", "true")
    with pytest.raises(SystemExit, match=r"what Debian calls g\+\+ .*install its own packages"):
        sysdeps.ensure("compile", sys.executable, root=True, debian=False)


def test_ensure_apt_get_fails_ends_with_its_output(script: Script, capfd: pytest.CaptureFixture[str]) -> None:
    script("apt-get", "echo 'E: Unable to locate package'; exit 100")
    with pytest.raises(
        SystemExit, match=r"apt-get update --quiet failed with status 100; try: apt-get install"
    ):
        sysdeps.ensure("compile", sys.executable, root=True, debian=True)
    assert "E: Unable to locate package" in capfd.readouterr().out


def test_ensure_still_missing_after_installation_says_so(script: Script) -> None:
    script("apt-get", "exit 0")
    with pytest.raises(SystemExit, match=r"g\+\+ installed, and still: g\+\+: no C\+\+ compiler"):
        sysdeps.ensure("compile", sys.executable, root=True, debian=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\n", True),
        ('ID=ubuntu\nID_LIKE="debian"\n', True),
        ('ID=mint\nID_LIKE="ubuntu debian"\n', True),
        ("ID=fedora\n", False),
    ],
    ids=["debian", "ubuntu", "mint", "fedora"],
)
def test_is_debian_reads_os_release(script: Script, tmp_path: Path, text: str, expected: bool) -> None:
    script("apt-get", "exit 0")
    (tmp_path / "os-release").write_text(text)
    assert sysdeps.is_debian(tmp_path / "os-release") is expected


def test_is_debian_without_apt_get_is_false(script: Script, tmp_path: Path) -> None:
    script("true", "true")
    (tmp_path / "os-release").write_text("ID=debian\n")
    assert not sysdeps.is_debian(tmp_path / "os-release")


def test_contributing_quotes_the_table_of_packages() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| package | what for |\n|---|---|\n")[2].partition("\n\n")[0]
    quoted = re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, flags=re.MULTILINE)
    assert quoted == [(package.debian, package.why) for package in sysdeps.PACKAGES]


def test_each_need_is_seen_to_by_some_session() -> None:
    rooms = [ROOT / "noxfile.py", *(ROOT / "harness" / "sessions").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in rooms if path.name != "sysdeps.py")
    assert [need for need in sysdeps.NEEDS if f'"{need}"' not in text] == []
