"""`kvfs.json` where it cannot be written, where several start at once, and after a start that was killed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from identity_parts import CHUNK_SIZE_BYTES, WEIGHTS, make_namespace, record_of, temporaries

from kvfs import ChunkEngine, Namespace, TierConfig, identity, small_files

if TYPE_CHECKING:
    from tests.unit.conftest import Mount

NOBODY = 65534
# Starts all at once when its input ends, and says what came of it.
STARTER = """
import sys
from kvfs import Namespace, identity

root, chunk_size_bytes, weights = sys.argv[1], int(sys.argv[2]), sys.argv[3]
traits = {"weights": weights} if weights else {}
namespace = Namespace(root, {"model_name": "org/model", "dtype": "bfloat16"}, traits=traits)
print("ready", flush=True)
sys.stdin.read()
try:
    namespace.write_config()
    identity.settle(namespace, chunk_size_bytes)
except ValueError as error:
    print("refused" if "holds other chunks" in str(error) else error)
else:
    print("started")
"""
KILLED = """
import os, signal, sys
from kvfs import Namespace, identity

namespace = Namespace(sys.argv[1], {"model_name": "org/model", "dtype": "bfloat16"})
namespace.write_config()
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
identity.settle(namespace, 4096)
"""


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def start_together(root: Path, starts: list[tuple[int, str]]) -> list[str]:
    """Start engines' identities in processes at once; return what each says."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(root), str(chunk_size_bytes), weights],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for chunk_size_bytes, weights in starts
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        return [process.communicate(timeout=60)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("attempt", range(3))
def test_engines_that_start_at_once_agree_on_one_chunk_size(tmp_path: Path, attempt: int) -> None:
    sizes = [4096, 8192] * 3
    said = start_together(tmp_path, [(size, "") for size in sizes])
    namespace = Namespace(str(tmp_path), {"model_name": "org/model", "dtype": "bfloat16"})
    settled = record_of(namespace)["chunk_size_bytes"]
    assert said == ["started" if size == settled else "refused" for size in sizes]
    assert temporaries(namespace) == []


@pytest.mark.parametrize("attempt", range(3))
def test_engines_that_know_what_nobody_knew_agree_on_one(tmp_path: Path, attempt: int) -> None:
    identity.settle(make_namespace(tmp_path), CHUNK_SIZE_BYTES)
    weights = ["commit:a", "commit:b"] * 3
    said = start_together(tmp_path, [(CHUNK_SIZE_BYTES, each) for each in weights])
    namespace = make_namespace(tmp_path)
    settled = record_of(namespace)["weights"]
    assert said == ["started" if each == settled else "refused" for each in weights]
    assert Counter(said) == {"started": 3, "refused": 3}
    assert temporaries(namespace) == []


def test_publish_leaves_what_came_first(tmp_path: Path) -> None:
    path = tmp_path / "kvfs.json"
    assert small_files.publish(str(path), b"first")
    assert not small_files.publish(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_publish_without_hard_links_writes_the_whole_file_and_leaves_what_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "kvfs.json"
    assert small_files.publish(str(path), b"first")
    assert not small_files.publish(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_start_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    namespace = Namespace(str(tmp_path), {"model_name": "org/model", "dtype": "bfloat16"})
    assert len(temporaries(namespace)) == 1
    bystander = Path(namespace.config_dir) / "mine.tmp"
    bystander.write_text("")
    assert not Path(namespace.identity_path).exists()
    namespace.write_config()
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert temporaries(namespace) == [bystander.name]
    assert record_of(namespace)["chunk_size_bytes"] == CHUNK_SIZE_BYTES


def test_namespace_whose_lock_somebody_keeps_gets_no_new_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = make_namespace(tmp_path)
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    knows = make_namespace(tmp_path, weights=WEIGHTS)
    monkeypatch.setattr(small_files, "_LOCK_TIMEOUT_S", 0.05)
    keeper = os.open(namespace.config_dir, os.O_RDONLY)
    try:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        assert identity.settle(knows, CHUNK_SIZE_BYTES)["weights"] == WEIGHTS
        assert record_of(namespace)["weights"] is None
        (warning,) = warnings_in(caplog)
        assert "does not say weights 'commit:0123', and kvfs cannot add it" in warning
        # A first start needs no lock.
        Path(namespace.identity_path).unlink()
        identity.settle(knows, CHUNK_SIZE_BYTES)
        assert record_of(namespace)["weights"] == WEIGHTS
    finally:
        os.close(keeper)


@pytest.fixture
def unprivileged() -> Iterator[Callable[[], None]]:
    """Yield a function that gives up root's rights until the test ends; nothing to do for other users."""
    if os.geteuid() != 0:
        yield lambda: None
        return
    yield lambda: os.seteuid(NOBODY)
    os.seteuid(0)


# A directory of the session's own that other users can enter: not below pytest's, which is closed to them.
@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_unwritable_namespace_is_one_warning_and_still_compared(
    storage: Path, unprivileged: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    namespace = make_namespace(storage, weights=WEIGHTS)
    storage.chmod(0o755)
    directory = Path(namespace.config_dir)
    Path(namespace.config_path).chmod(0o644)
    directory.chmod(0o555)
    unprivileged()
    record = identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert record["chunk_size_bytes"] == CHUNK_SIZE_BYTES
    assert [path.name for path in directory.iterdir()] == ["config.json"]
    (warning,) = warnings_in(caplog)
    assert warning.startswith(
        f"kvfs cannot write {namespace.identity_path} (Permission denied); chunks are loaded"
    )


@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_unreadable_file_is_an_os_error(storage: Path, unprivileged: Callable[[], None]) -> None:
    namespace = make_namespace(storage, weights=WEIGHTS)
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    for path in (storage, Path(namespace.config_dir)):
        path.chmod(0o755)
    Path(namespace.identity_path).chmod(0)
    unprivileged()
    with pytest.raises(PermissionError, match="cannot read what the kvfs namespace holds") as caught:
        identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert caught.value.errno == errno.EACCES


@pytest.mark.needs_root
def test_read_only_file_system_is_a_warning_loads_work_and_others_are_refused(
    mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    root = mount("tmpfs")
    namespace = make_namespace(root)
    memory = bytearray(b"x" * 2 * CHUNK_SIZE_BYTES)
    buffer = memoryview(memory).cast("B", (2, CHUNK_SIZE_BYTES))
    options = TierConfig(str(root), n_read_threads=1, n_write_threads=1)
    with ChunkEngine(namespace, buffer, options) as engine:
        engine.submit_store(1, [bytes(36)], [0])
        assert engine.drain(60)
    # As the stock tier would have left it.
    Path(namespace.identity_path).unlink()
    _remount_read_only(root)
    with ChunkEngine(namespace, buffer, options) as engine:
        memory[:] = bytes(len(memory))
        engine.submit_load(2, [bytes(36)], [1])
        assert engine.drain(60)
        assert [each.outcomes for each in engine.poll()] == [[0]]
    assert memory[CHUNK_SIZE_BYTES:] == b"x" * CHUNK_SIZE_BYTES
    written = [each for each in warnings_in(caplog) if "cannot write" in each]
    assert len(written) == 1
    assert "Read-only file system" in written[0]


@pytest.mark.needs_root
def test_read_only_file_system_with_other_chunks_is_refused(
    mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    root = mount("tmpfs")
    identity.settle(make_namespace(root), CHUNK_SIZE_BYTES)
    _remount_read_only(root)
    with pytest.raises(ValueError, match="chunk_size_bytes: 4096 there, 8192 here"):
        identity.settle(make_namespace(root), 8192)
    # What would be added is not, and nothing else happens.
    assert identity.settle(make_namespace(root, weights=WEIGHTS), CHUNK_SIZE_BYTES)["weights"] == WEIGHTS
    (warning,) = warnings_in(caplog)
    assert "Read-only file system" in warning


@pytest.mark.needs_root
def test_full_file_system_is_a_warning_and_leaves_no_temporary(
    mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    root = mount("tmpfs", options="size=64k")
    namespace = make_namespace(root)
    with pytest.raises(OSError, match="No space"):
        (root / "filler").write_bytes(bytes(1 << 20))
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    (warning,) = warnings_in(caplog)
    assert "No space left on device" in warning
    assert temporaries(namespace) == []
    assert not Path(namespace.identity_path).exists()
    (root / "filler").unlink()
    identity.settle(namespace, CHUNK_SIZE_BYTES)
    assert record_of(namespace)["chunk_size_bytes"] == CHUNK_SIZE_BYTES


def _remount_read_only(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
