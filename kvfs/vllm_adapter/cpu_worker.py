"""Transfers between the CPU platform's KV cache and the primary tier: copies within host memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from typing_extensions import override
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvfs import backend

if TYPE_CHECKING:
    from typing_extensions import Buffer
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


@dataclasses.dataclass(frozen=True, slots=True)
class _Pages:
    """One tensor of the KV cache and its place in each row of the primary tier.

    Attributes:
        device: The tensor's bytes, one page a block.
        page_size_bytes: Bytes of one block's page, padding included.
        row_offset_bytes: Where this tensor's pages start in a row.
    """

    device: Buffer
    page_size_bytes: int
    row_offset_bytes: int


class CpuPlatformWorker(OffloadingWorker):
    """Copies pages when asked, on the calling thread and without the GIL.

    On the CPU platform the "device" is host memory too, and the model has written a page by the time
    vLLM submits its transfer. A copy in place keeps that order for free; a thread of its own would have to
    wait for it and would compete with the model for the same cores.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        """Lay the tensors out in the region's rows, as vLLM's own worker does.

        Args:
            kv_caches: The KV cache; each tensor contiguous, its first dimension the block.
            blocks_per_chunk: Blocks in one chunk.
            region: The primary tier. Owned by the worker from here on.
        """
        self._blocks_per_chunk = blocks_per_chunk
        self._refs_by_group: Sequence[Sequence[CanonicalKVCacheRef]] = kv_caches.group_data_refs
        self._region: SharedOffloadRegion | None = region
        self._results: list[TransferResult] = []
        self._pages: list[_Pages] = []
        self._row_stride_bytes = 0
        for tensor in kv_caches.tensors:
            view = region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk)
            device = tensor.tensor.view(torch.int8).view(-1, tensor.page_size_bytes)
            self._pages.append(_Pages(device.numpy(), tensor.page_size_bytes, int(view.storage_offset())))
            self._row_stride_bytes = view.stride(0)
        whole = torch.as_strided(region.base_tensor, (region.total_size_bytes,), (1,), 0)
        self._primary: Buffer | None = whole.numpy()

    @override
    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        self._transfer(job_id, src_spec, dst_spec, store=True)
        return True

    @override
    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        # `expedited` (vLLM 0.33) asks not to queue behind other loads; nothing here queues.
        self._transfer(job_id, dst_spec, src_spec, store=False)
        return True

    @override
    def get_finished(self) -> list[TransferResult]:
        results, self._results = self._results, []
        return results

    @override
    def wait(self, job_ids: set[int]) -> None:
        """Return at once: a submitted transfer has already ended."""

    @override
    def shutdown(self) -> None:
        # The region warns when somebody still exports its memory.
        self._pages.clear()
        self._primary = None
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _transfer(
        self, job_id: int, device_spec: LoadStoreSpec, primary_spec: LoadStoreSpec, *, store: bool
    ) -> None:
        if not isinstance(device_spec, GPULoadStoreSpec) or not isinstance(
            primary_spec, BlockIDsLoadStoreSpec
        ):
            raise TypeError(
                "a transfer is between blocks of the KV cache and chunks of the primary tier, got "
                f"{type(device_spec).__name__} and {type(primary_spec).__name__}"
            )
        if self._primary is None:
            raise RuntimeError("the worker is shut down; transfers are no longer possible")
        started = time.monotonic()
        moved = 0
        for refs, blocks, places in self._groups(device_spec, primary_spec):
            for ref in refs:
                pages = self._pages[ref.tensor_idx]
                device_offsets = [block * pages.page_size_bytes for block in blocks]
                primary_offsets = [
                    chunk * self._row_stride_bytes + pages.row_offset_bytes + position * pages.page_size_bytes
                    for chunk, position in places
                ]
                ends = (pages.device, self._primary, device_offsets, primary_offsets)
                if not store:
                    ends = (self._primary, pages.device, primary_offsets, device_offsets)
                backend.load().copy_pages(*ends, ref.page_size_bytes)
                moved += len(blocks) * ref.page_size_bytes
        self._results.append(
            TransferResult(
                job_id=job_id, success=True, transfer_size=moved, transfer_time=time.monotonic() - started
            )
        )

    def _groups(
        self, device_spec: GPULoadStoreSpec, primary_spec: BlockIDsLoadStoreSpec
    ) -> Iterator[tuple[Sequence[CanonicalKVCacheRef], list[int], list[tuple[int, int]]]]:
        """Yield each KV cache group's refs, its blocks, and each block's (chunk, position in the chunk).

        A group's first block may lie in the middle of its first chunk: `block_indices` has its logical
        index in the request.
        """
        blocks = device_spec.block_ids.tolist()
        chunks = primary_spec.block_ids.tolist()
        block_start = chunk_start = 0
        for refs, size, first_index in zip(
            self._refs_by_group, device_spec.group_sizes, device_spec.block_indices, strict=True
        ):
            if size == 0:
                continue
            skipped = first_index % self._blocks_per_chunk
            logical = range(skipped, skipped + size)
            places = [
                (chunks[chunk_start + i // self._blocks_per_chunk], i % self._blocks_per_chunk)
                for i in logical
            ]
            yield refs, blocks[block_start : block_start + size], places
            block_start += size
            chunk_start += -(-(skipped + size) // self._blocks_per_chunk)
        if block_start != len(blocks) or chunk_start != len(chunks):
            raise ValueError(
                f"a transfer of {len(blocks)} blocks and {len(chunks)} chunks does not fit its groups, which "
                f"need {block_start} and {chunk_start}"
            )
