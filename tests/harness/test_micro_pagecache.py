"""Tests of how the micro benchmark keeps the page cache out, against the kernel's own counters."""

import os
from pathlib import Path

import pytest

from harness.micro import pagecache
from harness.micro.cases import LOAD, MIXED, STORE
from harness.micro.collect import page_cache_facts
from harness.micro.requests import Answer

SIZE_BYTES = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE_BYTES))
    return path


def test_resident_bytes_sees_what_was_just_written(file: Path) -> None:
    assert pagecache.resident_bytes([file]) == SIZE_BYTES


def test_drop_takes_files_out_of_the_page_cache(file: Path) -> None:
    pagecache.drop([file])
    assert pagecache.resident_bytes([file]) == 0


def test_resident_bytes_of_an_empty_file_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert pagecache.resident_bytes([tmp_path / "empty"]) == 0


def test_storage_bytes_grow_by_what_the_device_gave(file: Path) -> None:
    pagecache.drop([file])
    before = pagecache.storage_bytes()
    file.read_bytes()
    cold = pagecache.storage_bytes()
    file.read_bytes()
    assert cold.read - before.read >= SIZE_BYTES
    assert pagecache.storage_bytes().read - cold.read < SIZE_BYTES, "a cached read is none of the device's"


def test_sync_file_system_of_no_directory_says_which(tmp_path: Path) -> None:
    pagecache.sync_file_system(tmp_path)
    with pytest.raises(FileNotFoundError, match="missing"):
        pagecache.sync_file_system(tmp_path / "missing")


def run(read: int = 0, written: int = 0, before: int = 0, moved: int = SIZE_BYTES) -> Answer:
    counts = {
        "storage_read_bytes": read,
        "storage_write_bytes": written,
        "resident_before_bytes": before,
        "resident_after_bytes": 0,
        "moved_bytes": moved,
    }
    return Answer(page_cache=counts)


@pytest.mark.parametrize(
    ("op", "runs", "proven"),
    [
        (LOAD, [run(read=SIZE_BYTES)], True),
        (LOAD, [run(read=SIZE_BYTES), run(read=SIZE_BYTES // 2)], False),
        (LOAD, [run(written=SIZE_BYTES)], False),
        (LOAD, [run(read=SIZE_BYTES, before=4096)], False),
        (STORE, [run(written=SIZE_BYTES + 4096)], True),
        (STORE, [run(written=0)], False),
        (MIXED, [run(read=SIZE_BYTES // 2, written=SIZE_BYTES // 2)], True),
    ],
    ids=["read", "one-run-cached", "not-read", "cached-before", "written", "not-written", "both"],
)
def test_page_cache_facts_prove_only_what_passed_the_device(
    op: str, runs: list[Answer], proven: bool
) -> None:
    assert page_cache_facts(op, runs).proven is proven
