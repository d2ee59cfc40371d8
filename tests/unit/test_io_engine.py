"""How chunks are loaded: what can be asked for, and what an engine says of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs import backend

if TYPE_CHECKING:
    from kvfs.jobs import IoBackend

CHUNK_SIZE_BYTES = 4096


def _buffer() -> memoryview:
    return memoryview(bytearray(2 * CHUNK_SIZE_BYTES)).cast("B", (2, CHUNK_SIZE_BYTES))


def test_unknown_io_engine_is_refused_by_name(io: IoBackend, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="io_engine must be 'auto', 'uring' or 'psync', got 'aio'"):
        io.Engine(str(tmp_path / "ns"), _buffer(), 1, 1, True, "aio")


def test_engine_says_which_way_it_loads_and_why(io: IoBackend, tmp_path: Path) -> None:
    engine = io.Engine(str(tmp_path / "ns"), _buffer(), 1, 1, True, "psync")
    expected = {
        "extension": ("psync", "io_engine is set to 'psync'"),
        "fallback": ("python", "the pure-Python engine has no other"),
    }
    assert (engine.io_engine, engine.io_engine_reason) == expected[backend.describe()[0]]
    engine.close()


def test_constructor_makes_the_directory_for_the_owner_alone(io: IoBackend, tmp_path: Path) -> None:
    base = tmp_path / "new" / "parents" / "ns"
    io.Engine(str(base), _buffer(), 1, 1, True).close()
    for directory in (base, base.parent, base.parent.parent):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in base.iterdir()] == ["kvfs.lock"]


@pytest.mark.parametrize("base", ["file/ns", "file", "link"], ids=["under-a-file", "file", "link-to-a-file"])
def test_directory_that_cannot_be_made_is_an_os_error(io: IoBackend, tmp_path: Path, base: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    threads_before = threading.active_count()
    with pytest.raises(NotADirectoryError):
        io.Engine(str(tmp_path / base), _buffer(), 1, 1, True)
    assert threading.active_count() == threads_before
    assert (tmp_path / "file").read_text() == ""


def test_link_to_a_directory_is_a_base_path(io: IoBackend, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    engine = io.Engine(str(tmp_path / "link"), _buffer(), 1, 1, True)
    engine.submit_store(1, bytes(36), 36, [0])
    assert engine.drain(30)
    engine.close()
    assert len(list((tmp_path / "real").rglob("*.bin"))) == 1


def test_uring_without_the_extension_is_refused_with_the_way_out(tmp_path: Path) -> None:
    program = f"""
from kvfs import backend
buffer = memoryview(bytearray(8192)).cast("B", (2, 4096))
try:
    backend.load().Engine({str(tmp_path / "ns")!r}, buffer, 1, 1, True, "uring")
except OSError as error:
    print(error)
"""
    environment = {**os.environ, "KVFS_DISABLE_EXT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "io_uring needs kvfs's native extension; use 'auto' or 'psync'" in done.stdout
