"""vLLM's `TieringOffloadingSpec` with a worker for the CPU platform, which vLLM itself refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvfs.vllm_adapter.cpu_worker import CpuPlatformWorker

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker


class KvfsOffloadingSpec(TieringOffloadingSpec):
    """The same as vLLM's on every platform but the CPU, where it adds the transfer to host memory.

    It lets the whole path, model to disk and back, run on a machine without an accelerator; any secondary
    tier works under it.
    """

    _worker: OffloadingWorker | None

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            self._worker = self._create_cpu_worker(kv_caches)
        return self._worker

    def _create_cpu_worker(self, kv_caches: CanonicalKVCaches) -> CpuPlatformWorker:
        if self.config.canonical_layout:
            raise ValueError(
                "canonical_layout is not supported on the CPU platform; "
                "remove it from kv_connector_extra_config"
            )
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            return CpuPlatformWorker(kv_caches, self.blocks_per_chunk, region)
        except Exception:
            region.cleanup()
            raise
