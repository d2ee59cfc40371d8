"""What a user can get wrong in a tier's configuration, and what kvfs says to it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm_parts import CHUNK_BYTES, Tier, make_spec

MakeTier = Callable[..., Tier]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param(
            {"n_read_threads": 0},
            ValueError,
            "'n_read_threads' must be between 1 and 1024, got 0",
            id="zero-threads",
        ),
        pytest.param(
            {"n_write_threads": -3},
            ValueError,
            "'n_write_threads' must be between 1 and 1024, got -3",
            id="negative-threads",
        ),
        pytest.param(
            {"n_read_threads": 10_000}, ValueError, "between 1 and 1024, got 10000", id="too-many-threads"
        ),
        pytest.param(
            {"n_read_threads": "4"},
            TypeError,
            "'n_read_threads' must be an integer, got '4'",
            id="threads-as-text",
        ),
        pytest.param(
            {"n_read_threads": True}, TypeError, "must be an integer, got True", id="threads-as-bool"
        ),
        pytest.param(
            {"locality": "NEAR"}, ValueError, "Locality.*LOCAL, REMOTE.*got 'NEAR'", id="bad-locality"
        ),
        pytest.param({"locality": 3}, TypeError, "'locality' must be a string", id="locality-as-number"),
        pytest.param(
            {"root_dir": ""}, ValueError, "'root_dir' must be the path of a directory", id="empty-root"
        ),
        pytest.param({"root_dir": "a\0b"}, ValueError, "'root_dir'.*without null", id="null-in-root"),
        pytest.param({"root_dir": 5}, TypeError, "'root_dir' must be a path, got 5", id="root-as-number"),
        pytest.param(
            {"n_reed_threads": 4},
            ValueError,
            "no option 'n_reed_threads'; did you mean 'n_read_threads'",
            id="typo",
        ),
        pytest.param(
            {"colour": "red"},
            ValueError,
            "no option 'colour'; known options: root_dir, n_read_threads",
            id="unknown",
        ),
        pytest.param(
            {"enable_kv_events": "yes"},
            TypeError,
            "'enable_kv_events' must be true or false",
            id="events-as-text",
        ),
        pytest.param(
            {"io_engine": "aio"}, ValueError, "'io_engine' must be one of auto, uring, psync", id="io-engine"
        ),
        pytest.param(
            {"index_mode": "alone"},
            ValueError,
            "'index_mode' must be one of auto, owner, shared, got 'alone'",
            id="index-mode",
        ),
        pytest.param(
            {"negative_ttl_s": -1}, ValueError, "'negative_ttl_s' must be a finite.*got -1", id="negative-ttl"
        ),
        pytest.param(
            {"negative_ttl_s": float("nan")}, ValueError, "'negative_ttl_s'.*got nan", id="ttl-not-a-number"
        ),
        pytest.param(
            {"negative_ttl_s": "1s"}, TypeError, "'negative_ttl_s' must be a number", id="ttl-as-text"
        ),
        pytest.param(
            {"negative_ttl_s": True}, TypeError, "'negative_ttl_s' must be a number", id="ttl-as-bool"
        ),
        pytest.param(
            {"max_inflight_read_bytes": 0},
            ValueError,
            "'max_inflight_read_bytes' must be at least 1, got 0",
            id="no-reads-in-flight",
        ),
        pytest.param(
            {"max_inflight_write_bytes": -1},
            ValueError,
            "'max_inflight_write_bytes' must be at least 1, got -1",
            id="negative-writes-in-flight",
        ),
        pytest.param(
            {"max_queued_store_bytes": 0},
            ValueError,
            "'max_queued_store_bytes' must be at least 1, got 0",
            id="no-queued-stores",
        ),
        pytest.param(
            {"max_inflight_read_bytes": "64M"},
            TypeError,
            "'max_inflight_read_bytes' must be a number of bytes, got '64M'",
            id="limit-as-text",
        ),
        pytest.param(
            {"max_inflight_write_bytes": 1e6},
            TypeError,
            "a number of bytes, got 1000000.0",
            id="limit-as-float",
        ),
        pytest.param(
            {"max_queued_store_bytes": True}, TypeError, "a number of bytes, got True", id="limit-as-bool"
        ),
        pytest.param(
            {"max_inflight_read_bytes": None}, TypeError, "a number of bytes, got None", id="no-read-limit"
        ),
        pytest.param(
            {"use_o_direct": 1}, TypeError, "'use_o_direct' must be true or false", id="direct-as-number"
        ),
    ],
)
def test_wrong_option_is_refused_with_its_name_and_value(
    make_tier: MakeTier, tmp_path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_tier(**options)
    assert not (tmp_path / "root").exists()


def test_missing_root_dir_is_named() -> None:
    view = np.zeros((2, CHUNK_BYTES), dtype=np.int8).data
    with pytest.raises(ValueError, match="needs the option 'root_dir'"):
        SecondaryTierFactory.create_secondary_tier({"type": "kvfs"}, view, make_spec())


def test_root_under_a_file_is_an_os_error_that_says_what_to_do(make_tier: MakeTier, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"cannot prepare the kvfs namespace .*set root_dir to a directory"
    ) as caught:
        make_tier(root=tmp_path / "file" / "root")
    assert caught.value.filename.endswith("/config.json")


def test_config_file_that_cannot_be_written_is_an_os_error(make_tier: MakeTier, tmp_path: Path) -> None:
    tier = make_tier()
    config = Path(str(tier.base).removesuffix("_r0")) / "config.json"
    config.unlink()
    config.mkdir()
    with pytest.raises(OSError, match="cannot prepare the kvfs namespace"):
        make_tier()


def test_half_written_config_file_is_written_again(
    make_tier: MakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier()
    config = Path(str(tier.base).removesuffix("_r0")) / "config.json"
    whole = config.read_text()
    config.write_text(whole[: len(whole) // 2])
    with caplog.at_level("WARNING", "kvfs"):
        make_tier()
    assert config.read_text() == whole
    assert "writing it again" in caplog.text


def test_config_file_of_another_configuration_is_refused_with_the_field(make_tier: MakeTier) -> None:
    tier = make_tier()
    config = Path(str(tier.base).removesuffix("_r0")) / "config.json"
    config.write_text(config.read_text().replace("bfloat16", "float32"))
    with pytest.raises(ValueError, match="dtype: 'float32' there, 'bfloat16' here"):
        make_tier()


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(memoryview(bytes(2 * CHUNK_BYTES)).cast("B", (2, CHUNK_BYTES)), id="read-only"),
        pytest.param(np.zeros((2, CHUNK_BYTES), dtype=np.int16).data, id="two-bytes-an-element"),
        pytest.param(np.zeros(CHUNK_BYTES, dtype=np.int8).data, id="one-dimension"),
        pytest.param(np.zeros((4, CHUNK_BYTES), dtype=np.int8)[::2].data, id="not-contiguous"),
    ],
)
def test_wrong_primary_buffer_is_refused_by_name(tmp_path: Path, view: memoryview) -> None:
    with pytest.raises(ValueError, match="buffer must"):
        SecondaryTierFactory.create_secondary_tier(
            {"type": "kvfs", "root_dir": str(tmp_path)}, view, make_spec()
        )


def test_config_json_is_what_the_stock_tier_writes(make_tier: MakeTier, tmp_path: Path) -> None:
    ours = make_tier(root=tmp_path / "ours")
    stock = make_tier("fs", root=tmp_path / "stock")
    name = ours.base.name.removesuffix("_r0") + "/config.json"
    assert (tmp_path / "ours" / name).read_text() == (tmp_path / "stock" / name).read_text()
    assert stock.base.name == ours.base.name


def test_second_owner_is_refused_and_leaves_the_first_alone(make_tier: MakeTier) -> None:
    first = make_tier(index_mode="owner", negative_ttl_s=3)
    with pytest.raises(OSError, match=r"another kvfs uses this namespace.*'auto' or 'shared'") as caught:
        make_tier(index_mode="owner")
    assert caught.value.errno == errno.EBUSY
    assert first.manager._engine.stats()["owner"] == 1
