"""Modes of what is made, whatever the umask is, and roots that others can write."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.jobs import IoBackend
from kvfs.paths import Namespace

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

UMASKS = pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777], ids=oct)


@contextlib.contextmanager
def umask_of(umask: int) -> Iterator[None]:
    previous = os.umask(umask)
    try:
        yield
    finally:
        os.umask(previous)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@UMASKS
@pytest.mark.parametrize(
    ("io_engine", "chunk_size_bytes"), [("auto", 4096), ("auto", 262_144), ("psync", 4096)]
)
@pytest.mark.parametrize(
    ("file_mode", "dir_mode"), [(0o640, 0o750), (0o666, 0o777), (0o777, 0o701)], ids=["group", "all", "odd"]
)
def test_store_makes_exactly_these_modes(
    start_rig: StartRig,
    storage: Path,
    umask: int,
    io_engine: str,
    file_mode: int,
    dir_mode: int,
    chunk_size_bytes: int,
) -> None:
    base = storage / "parent" / "ns"
    with umask_of(umask):
        rig = start_rig(
            base,
            io_engine=io_engine,
            file_mode=file_mode,
            dir_mode=dir_mode,
            chunk_size_bytes=chunk_size_bytes,
        )
        keys = [rig.key(1), rig.key(2)]
        assert rig.store(keys, [0, 1]).outcomes == [0, 0]
    assert [_mode(path) for path in (base.parent, base)] == [dir_mode] * 2
    for key in keys:
        path = rig.path(key)
        assert [_mode(path.parent.parent), _mode(path.parent), _mode(path)] == [dir_mode, dir_mode, file_mode]
    assert rig.load(keys, [2, 3]).outcomes == [0, 0]
    # Attributes need a mode that lets them be written, at the probe and at each store.
    assert rig.engine.stats()["seals"] == 1
    assert rig.engine.stats()["verified_loads"] == 2


@UMASKS
def test_store_without_options_is_for_the_owner_alone(start_rig: StartRig, storage: Path, umask: int) -> None:
    with umask_of(umask):
        rig = start_rig(storage / "ns")
        assert rig.store([rig.key(1)], [0]).outcomes == [0]
    path = rig.path(rig.key(1))
    assert [_mode(path), _mode(path.parent), _mode(storage / "ns")] == [0o600, 0o700, 0o700]
    assert _mode(storage / "ns" / "kvfs.lock") == 0o600


def test_healed_file_gets_the_mode(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, file_mode=0o640)
    path = rig.place(rig.key(1))
    path.write_bytes(b"short")
    path.chmod(0o666)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert _mode(path) == 0o640


def test_what_is_there_keeps_its_mode(start_rig: StartRig, storage: Path) -> None:
    base = storage / "ns"
    base.mkdir()
    base.chmod(0o755)
    rig = start_rig(base, file_mode=0o640, dir_mode=0o750)
    first = rig.path(rig.key(1)).parent.parent
    first.mkdir()
    first.chmod(0o711)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert [_mode(base), _mode(first), _mode(first / rig.path(rig.key(1)).parent.name)] == [
        0o755,
        0o711,
        0o750,
    ]


@pytest.mark.parametrize("umask", [0, 0o077], ids=oct)
def test_directories_below_a_setgid_one_pass_its_group_on(
    start_rig: StartRig, storage: Path, umask: int
) -> None:
    base = storage / "ns"
    base.mkdir()
    base.chmod(0o2770)
    with umask_of(umask):
        rig = start_rig(base, file_mode=0o660, dir_mode=0o770)
        assert rig.store([rig.key(1)], [0]).outcomes == [0]
    path = rig.path(rig.key(1))
    assert [_mode(path.parent.parent), _mode(path.parent), _mode(path)] == [0o2770, 0o2770, 0o660]


def test_base_path_made_again_has_the_mode(start_rig: StartRig, storage: Path) -> None:
    base = storage / "ns"
    rig = start_rig(base, dir_mode=0o755)
    (base / "kvfs.lock").unlink()
    base.rmdir()
    with umask_of(0o077):
        assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert _mode(base) == 0o755


BAD_MODES = [
    pytest.param("file_mode", 0o400, ValueError, id="file-without-write"),
    pytest.param("file_mode", 0o266, ValueError, id="file-without-read"),
    pytest.param("file_mode", 0, ValueError, id="file-0"),
    pytest.param("file_mode", 0o1600, ValueError, id="file-sticky"),
    pytest.param("file_mode", 0o4600, ValueError, id="file-setuid"),
    pytest.param("file_mode", 640, ValueError, id="file-decimal"),
    pytest.param("file_mode", -1, ValueError, id="file-negative"),
    pytest.param("file_mode", 2**70, (TypeError, ValueError), id="file-beyond-64-bits"),
    pytest.param("file_mode", "0600", TypeError, id="file-str"),
    pytest.param("file_mode", None, TypeError, id="file-none"),
    pytest.param("file_mode", 384.0, TypeError, id="file-float"),
    pytest.param("dir_mode", 0o600, ValueError, id="dir-without-search"),
    pytest.param("dir_mode", 0o500, ValueError, id="dir-without-write"),
    pytest.param("dir_mode", 0o377, ValueError, id="dir-without-read"),
    pytest.param("dir_mode", 0o1700, ValueError, id="dir-sticky"),
    pytest.param("dir_mode", 0o2770, ValueError, id="dir-setgid"),
    pytest.param("dir_mode", -0o700, ValueError, id="dir-negative"),
    pytest.param("dir_mode", "0700", TypeError, id="dir-str"),
    pytest.param("dir_mode", None, TypeError, id="dir-none"),
]


@pytest.mark.parametrize(("name", "mode", "error"), BAD_MODES)
def test_start_with_a_bad_mode_raises_and_makes_nothing(
    io: IoBackend, tmp_path: Path, name: str, mode: object, error: type[Exception]
) -> None:
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    with pytest.raises(error) as caught:
        io.Engine(str(tmp_path / "ns"), buffer, 1, 1, **{name: mode})  # type: ignore[arg-type]
    if error is ValueError:
        assert caught.match(f"^{name} must be .*, got ")
    assert not (tmp_path / "ns").exists()
    buffer.release()
    memory.extend(b"would raise BufferError")


def test_start_with_numpy_modes_works(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, file_mode=np.int64(0o640), dir_mode=np.uint16(0o750))
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert [_mode(rig.path(rig.key(1))), _mode(rig.path(rig.key(1)).parent)] == [0o640, 0o750]


def _start_warnings(root: Path, caplog: pytest.LogCaptureFixture, **options: object) -> list[str]:
    """Start and end an engine as vLLM's adapter does, and return its warnings."""
    namespace = Namespace(str(root), {"model_name": "model"})
    buffer = memoryview(bytearray(8192)).cast("B", (2, 4096))
    caplog.clear()
    with caplog.at_level("WARNING", "kvfs"):
        config = TierConfig.from_options({"root_dir": str(root), **options})
        with ChunkEngine(namespace, buffer, config):
            pass
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@UMASKS
def test_chunk_engine_makes_all_with_the_modes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, umask: int
) -> None:
    root = tmp_path / "root"
    with umask_of(umask):
        assert _start_warnings(root, caplog, file_mode="0644", dir_mode="0755") == []
    namespace = Namespace(str(root), {"model_name": "model"})
    assert _mode(Path(namespace.config_path)) == 0o644
    assert [_mode(path) for path in (root, Path(namespace.config_dir), Path(namespace.base_path))] == [
        0o755
    ] * 3


@pytest.mark.parametrize("which", ["root", "base"])
@pytest.mark.parametrize(
    ("mode", "warned"),
    [(0o777, True), (0o770, True), (0o702, True), (0o755, False), (0o1777, False), (0o1770, False)],
    ids=oct,
)
def test_chunk_engine_warns_once_of_a_place_that_others_can_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str, mode: int, warned: bool
) -> None:
    root = tmp_path / "root"
    base = Path(Namespace(str(root), {"model_name": "model"}).base_path)
    base.mkdir(parents=True)
    for path in (root, base):
        path.chmod(0o700)
    place = root if which == "root" else base
    place.chmod(mode)
    warnings = _start_warnings(root, caplog)
    assert len(warnings) == int(warned)
    if warned:
        assert str(place) in warnings[0]
        assert "written by others" in warnings[0]
    # It is the operator's to change.
    assert _mode(place) == mode


def test_chunk_engine_warns_once_of_two_such_places(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    base = Path(Namespace(str(root), {"model_name": "model"}).base_path)
    base.mkdir(parents=True)
    for path in (root, base):
        path.chmod(0o777)
    # Above the root is not ours to judge.
    tmp_path.chmod(0o777)
    assert len(_start_warnings(root, caplog)) == 1
    root.chmod(0o755)
    base.chmod(0o755)
    assert _start_warnings(root, caplog) == []
