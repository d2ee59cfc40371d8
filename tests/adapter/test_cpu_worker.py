"""The CPU platform's transfers: every byte where vLLM's own worker would put it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvfs.vllm_adapter.cpu_worker import CpuPlatformWorker

BLOCKS = 24
CHUNKS = 12
# Two layers in one tensor, one in another whose pages are padded.
PAGE_BYTES = (64, 96)
USED_BYTES = (64, 80)

_ids = itertools.count()


class Setup:
    """A KV cache of two tensors and a worker over a real shared region."""

    def __init__(self, blocks_per_chunk: int, groups: int) -> None:
        generator = torch.Generator().manual_seed(889)
        self.tensors = [
            torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator)
            for page in PAGE_BYTES
        ]
        caches = CanonicalKVCaches(
            tensors=[
                CanonicalKVCacheTensor(tensor=tensor.view(torch.bfloat16), page_size_bytes=page)
                for tensor, page in zip(self.tensors, PAGE_BYTES, strict=True)
            ],
            group_data_refs=[
                [CanonicalKVCacheRef(tensor_idx=i, page_size_bytes=used) for i, used in enumerate(USED_BYTES)]
                for _ in range(groups)
            ],
        )
        row = sum(PAGE_BYTES) * blocks_per_chunk
        self.region = SharedOffloadRegion(
            engine_id=f"kvfs-worker-test-{next(_ids)}",
            num_chunks=CHUNKS,
            rank=0,
            kv_bytes_per_chunk=-(-row // 4096) * 4096,
            cpu_page_size=row,
        )
        self.path = Path(self.region.mmap_path)
        self.rows = self.region.base_tensor.view(CHUNKS, -1)
        self.worker = CpuPlatformWorker(caches, blocks_per_chunk, self.region)

    def close(self) -> None:
        del self.rows
        self.worker.shutdown()


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}-blocks-a-chunk")
def blocks_per_chunk(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def setup(blocks_per_chunk: int) -> Iterator[Setup]:
    setup = Setup(blocks_per_chunk, groups=2)
    yield setup
    setup.close()


@pytest.mark.parametrize("first_index", [0, 1, 2, 5], ids=lambda n: f"from-block-{n}")
def test_store_then_load_moves_each_page_and_nothing_else(
    setup: Setup, blocks_per_chunk: int, first_index: int
) -> None:
    # Group 0: five blocks that may start inside a chunk; group 1: three that start a chunk.
    sizes, indices = (5, 3), (first_index, 0)
    chunks_0 = -(-(first_index % blocks_per_chunk + 5) // blocks_per_chunk)
    chunks_1 = -(-3 // blocks_per_chunk)
    chunk_ids = list(range(CHUNKS))[: chunks_0 + chunks_1]
    source = GPULoadStoreSpec([9, 3, 17, 0, 5, 20, 21, 22], sizes, indices)
    assert setup.worker.submit_store(1, source, CPULoadStoreSpec(chunk_ids))
    (result,) = setup.worker.get_finished()
    assert (result.job_id, result.success, result.transfer_size) == (1, True, 8 * sum(USED_BYTES))
    assert setup.worker.get_finished() == []

    places = [
        (chunk_ids[i // blocks_per_chunk], i % blocks_per_chunk)
        for i in _span(first_index, 5, blocks_per_chunk)
    ]
    places += [(chunk_ids[chunks_0 + i // blocks_per_chunk], i % blocks_per_chunk) for i in range(3)]
    for block, (chunk, position) in zip(source.block_ids.tolist(), places, strict=True):
        offset = 0
        for tensor, page, used in zip(setup.tensors, PAGE_BYTES, USED_BYTES, strict=True):
            start = offset + position * page
            assert torch.equal(setup.rows[chunk, start : start + used], tensor[block, :used])
            offset += page * blocks_per_chunk

    before = [tensor.clone() for tensor in setup.tensors]
    targets = [1, 2, 4, 6, 7, 10, 11, 12]
    setup.worker.submit_load(2, CPULoadStoreSpec(chunk_ids), GPULoadStoreSpec(targets, sizes, indices))
    for tensor, old, used in zip(setup.tensors, before, USED_BYTES, strict=True):
        expected = old.clone()
        for source_block, target in zip(source.block_ids.tolist(), targets, strict=True):
            expected[target, :used] = old[source_block, :used]
        assert torch.equal(tensor, expected)


def test_transfer_whose_groups_do_not_add_up_is_refused(setup: Setup) -> None:
    with pytest.raises(ValueError, match="does not fit its groups"):
        setup.worker.submit_store(1, GPULoadStoreSpec([1, 2], (1, 1), (0, 0)), CPULoadStoreSpec([0, 1, 2]))


def test_block_outside_the_cache_is_refused_before_a_byte_moves(setup: Setup) -> None:
    before = setup.rows.clone()
    with pytest.raises(ValueError, match=r"src_offsets\[0\].*outside a buffer"):
        setup.worker.submit_store(1, GPULoadStoreSpec([BLOCKS], (1, 0), (0, 0)), CPULoadStoreSpec([0]))
    assert torch.equal(setup.rows, before)


def test_shutdown_removes_the_region_and_refuses_transfers() -> None:
    setup = Setup(2, groups=1)
    assert setup.path.exists()
    setup.close()
    assert not setup.path.exists()
    with pytest.raises(RuntimeError, match="shut down"):
        setup.worker.submit_store(1, GPULoadStoreSpec([0], (1,), (0,)), CPULoadStoreSpec([0]))
    setup.worker.shutdown()


def _span(first_index: int, count: int, blocks_per_chunk: int) -> range:
    skipped = first_index % blocks_per_chunk
    return range(skipped, skipped + count)
