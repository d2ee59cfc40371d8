"""Tests of what is read from the machine: file systems, the page cache, the model's directory, engines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness import environment, model, storage
from harness.arms import ARMS
from harness.errors import UsageError

MIB = 1 << 20


def test_mount_of_a_directory_is_the_one_that_holds_it(tmp_path: Path) -> None:
    mount = storage.mount_of(tmp_path)
    assert mount.filesystem not in ("", "unknown")
    assert "rw" in mount.options.split(",")
    assert storage.mount_of(Path("/proc")).filesystem == "proc"


def test_evict_takes_files_out_of_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/1", "a/2", "empty"):
        (tmp_path / name).write_bytes(b"x" * (MIB if name != "empty" else 0))
    (tmp_path / "link").symlink_to(tmp_path / "a" / "1")
    descriptor = os.open(tmp_path / "a" / "1", os.O_RDONLY)
    try:
        assert storage._residency(descriptor) == (256, 256)
        assert storage.evict(tmp_path) == 0.0
        assert storage._residency(descriptor) == (256, 0)
    finally:
        os.close(descriptor)


def test_evict_of_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert storage.evict(tmp_path) == 0.0


def test_machine_names_all_that_a_record_must(tmp_path: Path) -> None:
    described = environment.machine(tmp_path)
    assert described["cpu_count"] == len(os.sched_getaffinity(0))
    for key in ("kernel", "filesystem", "mount_options", "device", "commit", "dirty", "versions", "cpu"):
        assert key in described
    json.dumps(described)


LOG = """(APIServer pid=1) INFO [backend.py:43] kvfs runs on its native extension, imported from x.so
(EngineCore pid=2) WARNING [backend.py:51] kvfs runs on its pure-Python engine, which is slower, because y
"""


@pytest.mark.parametrize(
    ("log", "engine"),
    [
        pytest.param(LOG, "fallback", id="the-last-one-counts"),
        pytest.param(LOG.splitlines()[0], "extension", id="extension"),
        pytest.param("nothing about it", "unknown", id="not-named"),
    ],
)
def test_engine_is_what_kvfs_named_in_the_log(log: str, engine: str) -> None:
    assert environment.engine_in(log) == engine


@pytest.mark.parametrize(
    ("line", "direct"),
    [
        ("(EngineCore pid=2) WARNING [engine.py:113] O_DIRECT was refused at /x", False),
        ("(EngineCore pid=2) INFO [x.py:1] nothing", True),
    ],
)
def test_a_warning_about_o_direct_means_that_it_was_left(tmp_path: Path, line: str, direct: bool) -> None:
    log = tmp_path / "log"
    log.write_text(line)
    assert environment.of_arm(ARMS["kvfs"], log)["o_direct"] is direct


def test_arm_without_a_tier_has_no_engine(tmp_path: Path) -> None:
    assert environment.of_arm(ARMS["none"], tmp_path)["engine"] == "none"


def test_model_shape_gives_bytes_of_a_chunk(tmp_path: Path) -> None:
    config = {"num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(config))
    # 2,949,120 bytes in bfloat16 is what vLLM says of this model.
    assert model.shape(tmp_path).kv_bytes_per_token("bfloat16") * 128 == 2_949_120
    assert model.shape(tmp_path).kv_bytes_per_token("float32") * 128 == 2 * 2_949_120


@pytest.mark.parametrize("content", ["{}", "[", '{"num_attention_heads": 0, "num_hidden_layers": 1}'])
def test_model_shape_of_another_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match="does not describe a decoder"):
        model.shape(tmp_path)


def test_model_is_complete_only_with_every_file_at_its_size(tmp_path: Path) -> None:
    assert not model.is_complete(tmp_path)
    (tmp_path / "weights").write_bytes(b"12345")
    (tmp_path / "kvfs-model.json").write_text('{"weights": 5}')
    assert model.is_complete(tmp_path)
    (tmp_path / "weights").write_bytes(b"1234")
    assert not model.is_complete(tmp_path)
    (tmp_path / "weights").unlink()
    assert not model.is_complete(tmp_path)
    (tmp_path / "kvfs-model.json").write_text("{}")
    assert not model.is_complete(tmp_path)


@pytest.mark.parametrize(
    ("log", "io_backend"),
    [
        ("INFO kvfs serves /kv/m_0_r0 through uring (io_uring works here) with 4 read threads", "uring"),
        ("INFO kvfs serves /kv/m_0_r0 through psync (io_engine is set to 'psync') with 4 read", "psync"),
        ("INFO nothing of that", environment.UNKNOWN),
    ],
)
def test_io_backend_is_what_kvfs_says_in_its_log(log: str, io_backend: str) -> None:
    assert environment.io_backend_in(log) == io_backend
