"""Between vLLM's words and the engine's: namespaces from specs, results from completions."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult

from kvfs.jobs import SHED, SUCCESS, CompletionLike
from kvfs.paths import Namespace
from kvfs.vllm_adapter.traits import traits_of

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec

_logger = logging.getLogger("kvfs")


def namespace_of(root_dir: str, offloading_spec: OffloadingSpec) -> Namespace:
    """Return the namespace that vLLM's `fs` tier would use for this spec.

    The fields come from vLLM's own mapper, so that a release that adds one separates both tiers alike.
    Blocks: its traits are read from a local checkpoint.
    """
    mapper = FileMapper.from_offloading_spec(
        root_dir=root_dir,
        offloading_spec=offloading_spec,
        blocks_per_file=offloading_spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    return Namespace(root_dir, mapper.get_run_config(), mapper.rank, traits_of(offloading_spec))


def job_result(completion: CompletionLike, keys: Sequence[OffloadKey]) -> JobResult:
    """Return what vLLM wants to know of a finished store or load.

    Args:
        completion: The engine's account of the job.
        keys: The job's keys, in order.

    Returns:
        A result whose `successful_keys` are those loaded, whatever their place among the failed ones;
        None where there are none or the job is a store. A store of what was there already, or of what was
        shed, moved zero bytes, which vLLM's back-pressure detector leaves out.
    """
    success = all(code in (SUCCESS, SHED) for code in completion.outcomes)
    loaded: tuple[OffloadKey, ...] = ()
    if not success:
        if completion.kind == "load":
            loaded = tuple(
                key for key, code in zip(keys, completion.outcomes, strict=True) if code == SUCCESS
            )
        # What a shutdown cancelled is no trouble that anybody has to look into.
        level = logging.DEBUG if errno.ECANCELED in completion.outcomes else logging.WARNING
        _logger.log(level, "%s job %d: %s", completion.kind, completion.job_id, completion.detail)
    return JobResult(
        job_id=completion.job_id,
        success=success,
        successful_keys=loaded or None,
        transfer_time=completion.transfer_s,
        transfer_bytes=completion.bytes_moved,
    )
