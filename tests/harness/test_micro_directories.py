"""Tests of what is left of a run's directory, where removing names is cheap and where it is not."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_tools import MKFS

from harness.micro import directories

# Enough for ext4 to have 100,000 inodes; the image is sparse.
IMAGE_BYTES = 4 << 30
TIMEOUT_S = 60


def stored(directory: Path) -> Path:
    path = directory / "namespace" / "abc" / "de_g0" / "hash.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 10_000)
    return path


@pytest.fixture(params=["^has_journal", "has_journal"], ids=["no-journal-needs_root", "journal-needs_root"])
def ext4(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the directory of a fresh ext4, and whether it has a journal."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([MKFS, "-q", "-F", "-O", request.param, str(image)], check=True, timeout=TIMEOUT_S)
    directory = tmp_path / "mounted"
    directory.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(directory)], check=True, timeout=TIMEOUT_S)
    try:
        yield directory, not request.param.startswith("^")
    finally:
        subprocess.run(["umount", str(directory)], check=True, timeout=TIMEOUT_S)


@pytest.mark.needs_root
def test_names_stay_only_where_there_is_no_journal(ext4: tuple[Path, bool]) -> None:
    directory, has_journal = ext4
    assert directories.keeps_names(directory) is not has_journal
    with directories.own_directory(directory) as session:
        with directories.run_directory(session) as run:
            path = stored(run)
        assert run.exists() is not has_journal
        assert has_journal or path.stat().st_size == 0
    assert not session.exists()


def test_run_directory_keeps_no_data(tmp_path: Path) -> None:
    with directories.run_directory(tmp_path) as run:
        stored(run)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 0


def test_own_directory_is_removed_when_the_session_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), directories.own_directory(tmp_path / "new") as session:  # noqa: PT012
        stored(session / "run-1")
        (session / "fio.dat").touch()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    assert not list((tmp_path / "new").iterdir())


def test_mkdir_cpu_us_is_a_time_and_leaves_at_most_empty_directories(tmp_path: Path) -> None:
    assert 0 < directories.mkdir_cpu_us(tmp_path, "tried") < 1e6
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_directory_of_a_process_that_was_killed_goes_with_the_next_one(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    stored(tmp_path / f"kvfs-micro-{ended.pid}-abc")
    alive = tmp_path / "kvfs-micro-1-abc"
    other = tmp_path / f"kvfs-other-{ended.pid}-abc"
    for kept in (alive, other):
        stored(kept)
    with directories.own_directory(tmp_path) as session:
        assert sorted(tmp_path.iterdir()) == sorted([alive, other, session])
