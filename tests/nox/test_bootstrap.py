"""noxfile.py where nox is missing or broken: real environments, real pip, packages of our own."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from harness.sessions import bootstrap

ROOT = Path(__file__).resolve().parents[2]
MINIMUM = "9000.1"
# A noxfile in small: it must end up in an interpreter that can import nox.
SCRIPT = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from harness.sessions import bootstrap
bootstrap.require_nox(Path(__file__).resolve(), {MINIMUM!r}, sys.argv[1:])
import nox
print("nox", nox.__file__, sys.argv[1:])
"""


def _make_nox_wheel(directory: Path, version: str) -> None:
    directory.mkdir()
    info = f"nox-{version}.dist-info"
    with zipfile.ZipFile(directory / f"nox-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("nox.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nox\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def _run(noxfile: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment.pop(bootstrap.MARKER_VARIABLE, None)
    return subprocess.run(
        [sys.executable, str(noxfile), *arguments],
        cwd="/",
        env={**environment, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def noxfile(tmp_path: Path) -> Path:
    path = tmp_path / "clone" / "noxfile.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_require_nox_missing_makes_an_environment_once(noxfile: Path, tmp_path: Path) -> None:
    _make_nox_wheel(tmp_path / "index", MINIMUM)
    first = _run(noxfile, "-s", "a b", PIP_FIND_LINKS=str(tmp_path / "index"))
    assert first.returncode == 0, first.stderr
    said, result = first.stdout.splitlines()
    environment = bootstrap.bootstrap_dir(noxfile.parent)
    assert said == (
        f"noxfile.py: no nox >= {MINIMUM} here; installing it into {environment.relative_to(noxfile.parent)}"
    )
    assert result.startswith(f"nox {environment}/")
    assert result.endswith("['-s', 'a b']")
    # With no index at all: nothing is installed again.
    second = _run(noxfile, "-l")
    assert second.stdout.splitlines() == [result.replace("['-s', 'a b']", "['-l']")]
    # An environment that lost its nox ends in a sentence, not in a loop.
    shutil.rmtree(next(environment.rglob("nox-*.dist-info")))
    broken = _run(noxfile)
    assert broken.returncode == 1
    assert f"nox >= {MINIMUM} is missing from {environment}" in broken.stderr


@pytest.mark.slow
def test_require_nox_not_to_be_had_says_what_to_do(noxfile: Path) -> None:
    run = _run(noxfile)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(f"noxfile.py: cannot install nox into {bootstrap.bootstrap_dir(noxfile.parent)}")
    assert f'pipx install "nox>={MINIMUM}"' in last


@pytest.mark.parametrize(
    ("older", "newer"), [("2025.5.1", "2025.10.2"), ("2024.4.15", "2025.5"), ("2025.5", "2025.5.1")]
)
def test_version_key_orders_as_versions_do(older: str, newer: str) -> None:
    assert bootstrap.version_key(older) < bootstrap.version_key(newer)


def test_noxfile_names_one_minimum_of_nox() -> None:
    text = (ROOT / "noxfile.py").read_text()
    (minimum,) = re.findall(r'^NOX_MINIMUM = "(.+)"$', text, flags=re.MULTILINE)
    assert f'nox.needs_version = ">={minimum}"' in text
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, flags=re.MULTILINE)
    assert block, "no inline script metadata"
    metadata = tomllib.loads(re.sub(r"^# ?", "", block.group(1), flags=re.MULTILINE))
    assert metadata["dependencies"] == [f"nox>={minimum}"]
    assert metadata["requires-python"] == ">=3.11"


def test_noxfile_old_python_parses_it_to_get_the_sentence() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(), feature_version=(3, 6))
    assert "SystemExit" in ast.dump(tree)
