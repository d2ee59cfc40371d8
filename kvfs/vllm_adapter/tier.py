"""The secondary tier that vLLM calls: start here and follow a key down to `pread`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobId, JobResult, SecondaryTierManager, TransferJob

from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.jobs import SUCCESS, CompletionLike
from kvfs.notices import warn_without_limit
from kvfs.vllm_adapter import metrics, translate

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata, OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

_logger = logging.getLogger("kvfs")
# Whoever stops a server does not wait longer for a disk that hangs.
_SHUTDOWN_TIMEOUT_S: Final = 30.0


class KvfsSecondaryTierManager(SecondaryTierManager):
    """vLLM's `fs` tier on kvfs's engine: same options, same directory, same files.

    vLLM calls all methods under its manager's lock, not always from one thread. None of them but
    `drain_jobs` and `shutdown` waits for the disk.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **options: object,
    ) -> None:
        """Check the options, make the namespace, start the engine.

        Args:
            offloading_spec: vLLM's normalized configuration.
            primary_kv_view: The primary tier, int8, shape (num_chunks, row_stride_bytes). Pinned until
                `shutdown()`.
            tier_type: The name in the configuration.
            backpressure_detector: vLLM's, or None.
            **options: The fields of `TierConfig`.

        Raises:
            ValueError: A wrong option, or a namespace of another configuration.
            TypeError: An option of the wrong type.
            OSError: The namespace cannot be written.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config = TierConfig.from_options(options)
        self.locality = _locality(config.locality)
        self._emits_events = config.enable_kv_events and _events_enabled(offloading_spec, tier_type)
        self._events: list[OffloadingEvent] = []
        self._keys_by_job: dict[JobId, Sequence[OffloadKey]] = {}
        # Of the loads under way whose request lives.
        self._request_by_load: dict[JobId, str] = {}
        namespace = translate.namespace_of(config.root_dir, offloading_spec)
        self._engine = ChunkEngine(namespace, primary_kv_view, config)
        warn_without_limit(namespace, config)
        self._lookup = self._engine.tier_lookup(LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY)
        self._meter = metrics.Meter(tier_type)

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    # vLLM asks key by key: after the first it finds the engine's own function in this place, and a hit then
    # runs no Python code of ours.
    @functools.cached_property
    @override
    def lookup(self) -> Callable[[OffloadKey, ReqContext], LookupResult]:
        """Answer from memory; only a key of which nothing is known costs a step. See docs/lookup.md."""
        return self._lookup.ask

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._engine.touch(keys)

    # Each step, and found in the same way.
    @functools.cached_property
    @override
    def on_schedule_end(self) -> Callable[[ScheduleEndContext], None]:
        """Send the step's questions to the disk; the answers come while the model runs."""
        return self._lookup.end_step

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        request_id = req_context.req_id
        self._lookup.forget(request_id)
        if not self._request_by_load:
            return
        for job_id in [job_id for job_id, owner in self._request_by_load.items() if owner == request_id]:
            del self._request_by_load[job_id]

    @override
    def submit_store(self, job_metadata: TransferJob) -> None:
        keys = self._remember(job_metadata)
        self._engine.submit_store(job_metadata.job_id, keys, job_metadata.chunk_ids.tolist())

    @override
    def submit_load(self, job_metadata: TransferJob) -> None:
        keys = self._remember(job_metadata)
        self._request_by_load[job_metadata.job_id] = job_metadata.req_context.req_id
        self._engine.submit_load(job_metadata.job_id, keys, job_metadata.chunk_ids.tolist())

    @override
    def get_finished_jobs(self) -> Iterable[JobResult]:
        return [self._conclude(completion) for completion in self._engine.poll()]

    @override
    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        # Last: what was stored before it was evicted is gone.
        if self._emits_events and (evicted := self._engine.take_evicted()):
            events.append(self._event([OffloadKey(key) for key in evicted], removed=True))
        return events

    @classmethod
    @override
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        return metrics.definitions()

    @override
    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._meter.read(self._engine.stats())

    @override
    def drain_jobs(self) -> None:
        self._engine.drain()

    @override
    def shutdown(self) -> None:
        """End the threads without running what is queued, and let go of the primary tier.

        Returns after 30 seconds at the latest. What hangs in the file system then is left behind.
        """
        if unfinished := self._engine.close(_SHUTDOWN_TIMEOUT_S):
            _logger.error(
                "%s has not answered for %d seconds: kvfs leaves %d unfinished jobs behind, and the primary "
                "tier's memory stays pinned until they end or this process does. Look for a disk or a mount "
                "that hangs.",
                self._engine.namespace.base_path,
                _SHUTDOWN_TIMEOUT_S,
                unfinished,
            )

    def _remember(self, job: TransferJob) -> Sequence[OffloadKey]:
        keys = list(job.keys)
        self._keys_by_job[job.job_id] = keys
        return keys

    def _conclude(self, completion: CompletionLike) -> JobResult:
        """Return the result of a job that has ended, and note what follows from it."""
        keys = self._keys_by_job.pop(completion.job_id)
        request_id = self._request_by_load.pop(completion.job_id, None)
        result = translate.job_result(completion, keys)
        done = [key for key, code in zip(keys, completion.outcomes, strict=True) if code == SUCCESS]
        if completion.kind == "load":
            if not result.success and request_id is not None:
                self._lookup.deny(set(keys) - set(done), request_id)
        elif result.success and self._emits_events and done:
            # What was shed is not there.
            self._events.append(self._event(done, removed=False))
        return result

    def _event(self, keys: list[OffloadKey], *, removed: bool) -> OffloadingEvent:
        return OffloadingEvent(keys=keys, medium=self.medium, removed=removed, locality=self.locality)


def _locality(name: str | None) -> Locality | None:
    if name is None:
        return None
    try:
        return Locality(name)
    except ValueError:
        known = ", ".join(locality.value for locality in Locality)
        raise ValueError(
            f"kvfs option 'locality' must be a Locality of vLLM ({known}), got {name!r}"
        ) from None


def _events_enabled(offloading_spec: OffloadingSpec, tier_type: str) -> bool:
    if offloading_spec.kv_events_config.enable_kv_cache_events:
        return True
    _logger.warning(
        "enable_kv_events is set on the secondary tier %r, but vLLM's KV cache events are off; the tier "
        "emits none. Set enable_kv_cache_events in vLLM's kv_events_config.",
        tier_type,
    )
    return False
