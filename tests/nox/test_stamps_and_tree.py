"""What makes a session install or build again, and which files count."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.sessions.stamps import Stamp, digest_of_files, digest_of_strings
from harness.sessions.tree import own_files


def test_stamp_same_inputs_is_current_until_cleared(tmp_path: Path) -> None:
    stamp = Stamp(tmp_path / "stamp", digest_of_strings(["a>=1", "b"]))
    assert not stamp.is_current()
    stamp.write()
    assert Stamp(tmp_path / "stamp", digest_of_strings(["a>=1", "b"])).is_current()
    stamp.clear()
    assert not stamp.is_current()
    stamp.clear()


@pytest.mark.parametrize(
    "other",
    [["a>=1"], ["b", "a>=1"], ["a>=1b", ""], ["a>=2", "b"]],
    ids=["fewer", "reordered", "joined", "changed"],
)
def test_digest_of_strings_other_strings_differ(other: list[str]) -> None:
    assert digest_of_strings(["a>=1", "b"]) != digest_of_strings(other)


def test_digest_of_files_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    names = [Path("a.py"), Path("b.py")]
    for name in names:
        (tmp_path / name).write_text("x = 1\n")
    before = digest_of_files(tmp_path, names)
    (tmp_path / "a.py").touch()
    assert digest_of_files(tmp_path, reversed(names)) == before
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert digest_of_files(tmp_path, [Path("a.py"), Path("c.py")]) != before
    (tmp_path / "c.py").write_text("x = 2\n")
    (tmp_path / "c.py").rename(tmp_path / "b.py")
    assert digest_of_files(tmp_path, names) != before


def _write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_own_files_with_git_are_known_or_new_but_not_ignored(tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git, "the sessions need git on PATH"
    subprocess.run([git, "init", "--quiet"], cwd=tmp_path, check=True, timeout=30)
    _write(tmp_path, "known.py", "gone.py", "new.py", "build/x.py")
    (tmp_path / ".gitignore").write_text("build/\n")
    subprocess.run([git, "add", "known.py", "gone.py"], cwd=tmp_path, check=True, timeout=30)
    (tmp_path / "gone.py").unlink()
    assert own_files(tmp_path) == [Path(".gitignore"), Path("known.py"), Path("new.py")]


def test_own_files_without_git_leave_out_what_is_generated(tmp_path: Path) -> None:
    _write(tmp_path, "kvfs/a.py", "kvfs/__pycache__/a.pyc", "build/x.py", ".nox/y.py", ".github/w.yml")
    assert own_files(tmp_path) == [Path(".github/w.yml"), Path("kvfs/a.py")]
