"""Tests of the disk's limit: what fio's output means, and what is said where fio is not installed."""

import json
from pathlib import Path

import pytest

from harness.micro import fio

JOB = {
    "error": 0,
    "usr_cpu": 5.0,
    "sys_cpu": 15.0,
    "job_runtime": 1000,
    "read": {"io_bytes": 0, "runtime": 0},
    "write": {"io_bytes": 1 << 30, "runtime": 500},
}


def output(**changes: object) -> str:
    return "fio: a note before the output\n" + json.dumps({"jobs": [{**JOB, **changes}]})


def test_parse_output_reads_bytes_and_times() -> None:
    assert fio.parse_output(output(), "write") == fio.FioRun(wall_s=0.5, cpu_s=0.2, moved_bytes=1 << 30)


@pytest.mark.parametrize(
    ("text", "direction", "message"),
    [
        (output(), "read", "fio moved 0 bytes"),
        (output(error=28), "write", "error 28"),
        ("{}", "write", "not what version 3 writes"),
        ("no json", "write", "not what version 3 writes"),
    ],
    ids=["nothing-moved", "error", "other-json", "no-json"],
)
def test_parse_output_of_anything_else_is_an_error(text: str, direction: str, message: str) -> None:
    with pytest.raises(fio.FioError, match=message):
        fio.parse_output(text, direction)


def test_requests_are_chunks_of_at_most_one_mebibyte() -> None:
    assert [fio.block_bytes(size) for size in (64 << 10, 1 << 20, 8 << 20)] == [64 << 10, 1 << 20, 1 << 20]


def test_fio_that_is_not_installed_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fio.FioError, match="apt-get install fio"):
        fio.Fio(tmp_path, tmp_path, 1 << 20, 0)
