"""One directory, two tiers: vLLM's own `fs` and kvfs read what the other wrote, and agree on paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm_parts import CHUNK_BYTES, WAIT_S, Tier, keys_of, make_spec, wait_for_scan

from kvfs.paths import Namespace
from kvfs.vllm_adapter import translate

MakeTier = Callable[..., Tier]


@pytest.mark.parametrize(("writer_type", "reader_type"), [("fs", "kvfs"), ("kvfs", "fs")])
def test_directory_of_one_tier_is_hit_by_the_other(
    make_tier: MakeTier, writer_type: str, reader_type: str
) -> None:
    writer, reader = make_tier(writer_type), make_tier(reader_type)
    writer.rows[:] = np.random.default_rng(7).integers(-128, 128, writer.rows.shape, dtype=np.int8)
    keys = keys_of(5)
    assert writer.store(keys, [0, 1, 2, 3, 4]).success
    deadline = time.monotonic() + WAIT_S
    while (verdicts := [reader.verdict(key) for key in keys]) != ["HIT"] * 5:
        # A kvfs that took itself for the only writer finds out by the first prompt of another one.
        assert reader_type == "kvfs"
        assert time.monotonic() < deadline, verdicts
        reader.step()
    assert reader.load(keys, [7, 6, 5, 4, 3]).success
    for source, target in enumerate([7, 6, 5, 4, 3]):
        assert np.array_equal(reader.rows[target], writer.rows[source])


def test_kvfs_that_is_told_of_other_writers_hits_their_first_prompt(
    make_tier: MakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    stock, told = make_tier("fs"), make_tier(index_mode="shared")
    keys = keys_of(5)
    assert stock.store(keys, [0, 1, 2, 3, 4]).success
    assert [told.verdict(key) for key in keys] == ["HIT"] * 5
    assert "has other writers" not in caplog.text


def test_kvfs_says_that_it_has_found_another_writer(
    make_tier: MakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    stock, ours = make_tier("fs"), make_tier()
    wait_for_scan(ours.manager)
    (key,) = keys_of(1)
    assert stock.store([key], [0]).success
    assert ours.verdict(key) == "MISS"
    ours.step()
    ours.manager.drain_jobs()
    assert ours.manager._engine.stats()["owner"] == 0
    assert ours.verdict(key) == "HIT"
    assert ours.load([key], [1]).success
    warnings = [record.message for record in caplog.records if "has other writers" in record.message]
    assert len(warnings) == 1
    assert "index_mode" in warnings[0]


@pytest.mark.parametrize(("first_type", "second_type"), [("fs", "kvfs"), ("kvfs", "fs")])
def test_store_of_the_other_tiers_chunk_leaves_its_file(
    make_tier: MakeTier, first_type: str, second_type: str
) -> None:
    first, second = make_tier(first_type), make_tier(second_type)
    (key,) = keys_of(1)
    first.store([key], [0])
    before = first.path(key).stat()
    assert second.store([key], [0]).success
    after = first.path(key).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_truncated_file_of_the_stock_tier_is_a_miss_and_is_healed(make_tier: MakeTier) -> None:
    stock, ours = make_tier("fs"), make_tier()
    # Or it would see the file while that is still whole.
    wait_for_scan(ours.manager)
    ours.rows[:] = 3
    (key,) = keys_of(1)
    stock.store([key], [0])
    stock.path(key).write_bytes(b"short")
    assert ours.verdict(key) == "MISS"
    assert ours.store([key], [1]).success
    assert stock.path(key).stat().st_size == CHUNK_BYTES
    assert stock.load([key], [2]).success
    assert np.array_equal(stock.rows[2], ours.rows[1])


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="plain"),
        pytest.param({"model": "a/b/c d_é"}, id="odd-model-name"),
        pytest.param({"blocks_per_chunk": 4}, id="blocks-per-chunk"),
        pytest.param({"tp_size": 4, "rank": 3, "parallelism_agnostic": False}, id="rank-3-of-4"),
        pytest.param({"tp_size": 2, "replicated_layout": True}, id="replicated"),
        pytest.param({"layers": ("layer.0", "layer.1")}, id="more-layers"),
    ],
)
@pytest.mark.parametrize("hash_bytes", [4, 8, 32, 64])
@pytest.mark.parametrize("group", [0, 1, 2**32 - 1])
def test_paths_equal_those_of_vllms_file_mapper(fields: dict[str, Any], hash_bytes: int, group: int) -> None:
    spec = make_spec(**fields)
    mapper = FileMapper.from_offloading_spec(
        root_dir="/kv/of/chunks",
        offloading_spec=spec,
        blocks_per_file=spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    namespace = translate.namespace_of("/kv/of/chunks", spec)
    assert namespace.config_path == mapper.get_config_file_path()
    for key in keys_of(20, hash_bytes=hash_bytes, group=group):
        assert namespace.chunk_path(key) == mapper.get_file_name(key)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"model": "org/other"}, id="model"),
        pytest.param({"blocks_per_chunk": 2}, id="blocks-per-chunk"),
        pytest.param({"layers": ("layer.0", "layer.1")}, id="layers"),
        pytest.param({"tp_size": 2, "parallelism_agnostic": False}, id="ranks"),
    ],
)
def test_another_configuration_is_another_namespace(tmp_path: Path, other: dict[str, Any]) -> None:
    one = translate.namespace_of(str(tmp_path), make_spec())
    same = translate.namespace_of(str(tmp_path), make_spec())
    different = translate.namespace_of(str(tmp_path), make_spec(**other))
    assert one.base_path == same.base_path
    assert one.base_path != different.base_path


def test_file_of_a_key_is_where_the_namespace_says(make_tier: MakeTier) -> None:
    tier = make_tier()
    namespace: Namespace = tier.manager._engine.namespace
    for key in keys_of(8):
        tier.store([key], [0])
        assert Path(namespace.chunk_path(key)).stat().st_size == CHUNK_BYTES
