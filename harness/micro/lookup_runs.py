"""Runs of lookups, each in a process of its own: make the tier, warm it up, ask, prove the answers right."""

import gc
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from harness.micro import chunks, pagecache, scale_runs
from harness.micro.drivers import DriverError
from harness.micro.lookup_cases import BUSY_JOBS, CHUNK_BYTES
from harness.micro.lookup_driver import Asked, Backlog, Tier, ask, base_path_of, import_kvfs
from harness.micro.lookup_requests import (
    GAPS,
    INDEX,
    MEASURE,
    PREPARE,
    PREPARE_SCALE,
    PROBE,
    RESTART,
    START,
    LookupAnswer,
    LookupRequest,
    parse_request,
)

_FILE_SEED: Final = 1
_CONTENT_SEED: Final = 2
# Keys of nothing: each run has its own, counted from here, so that no answer of an earlier one is known.
_ABSENT_SEEDS: Final = 1_000_000
_WARM_UP_REQUESTS: Final = 2


def answer_line(line: bytes) -> bytes:
    """Do what a request's line asks and return the answer's.

    Raises:
        HarnessError: It cannot be done, or an answer of the tier is wrong.
        OSError: The file system or the engine refused.
    """
    request = parse_request(line)
    if request.tier == "kvfs":
        import_kvfs(request.io)
    return _KINDS[request.kind](request).line()


def _probe(request: LookupRequest) -> LookupAnswer:
    """Make the tier and ask once: does it work here, and in the mode that is wanted?"""
    buffer = _buffer(1)
    tier = Tier(request.root, buffer.view, request.tier, request.mode, request.io)
    try:
        tier.await_scan()
        asked = ask(tier.manager, [chunks.key_of(_ABSENT_SEEDS, 0)], "probe")
        if asked.missing is None:
            raise DriverError(f"{request.tier}: a chunk that was never stored is said to be there")
        return LookupAnswer(facts=tier.facts())
    finally:
        tier.close()


def _prepare(request: LookupRequest) -> LookupAnswer:
    """Write the chunks that are to be found, the same way for all tiers."""
    content = chunks.Content(CHUNK_BYTES, _CONTENT_SEED)
    keys = [chunks.key_of(_FILE_SEED, number) for number in range(request.files)]
    pagecache.drop(chunks.write_files(base_path_of(request.root), content, CHUNK_BYTES, keys))
    return LookupAnswer()


def _buffer(rows: int) -> chunks.PrimaryBuffer:
    return chunks.PrimaryBuffer(rows, chunks.Content(CHUNK_BYTES, _CONTENT_SEED), CHUNK_BYTES)


class _Run:
    """A tier, the chunks beside which it is asked, and the prompts of one run."""

    def __init__(self, request: LookupRequest) -> None:
        self._request = request
        self._files = [chunks.key_of(_FILE_SEED, number) for number in range(request.files)]
        self._seed = _ABSENT_SEEDS + request.serial
        # A job never has a chunk twice.
        self._chunks_per_job = min(request.chunks_per_job, request.files)
        self._buffer = _buffer(max(1, BUSY_JOBS * self._chunks_per_job))
        self._buffer.reset(self._buffer.rows)
        self._tier = Tier(request.root, self._buffer.view, request.tier, request.mode, request.io)
        self._left: list[int] = []
        self._backlog: Backlog | None = None

    def close(self) -> None:
        self._tier.close()

    def measure(self) -> LookupAnswer:
        self._tier.await_scan()
        if self._chunks_per_job:
            self._backlog = Backlog(self._tier.manager, self._files, self._chunks_per_job)
        prompts = [self._prompt(number) for number in range(_WARM_UP_REQUESTS + self._request.requests)]
        for number, prompt in enumerate(prompts[:_WARM_UP_REQUESTS]):
            self._ask(prompt, f"warm-up-{number}")
        self._left.clear()
        # As vLLM does before it serves.
        gc.collect()
        gc.freeze()
        asked = [
            self._ask(prompt, f"request-{number}")
            for number, prompt in enumerate(prompts[_WARM_UP_REQUESTS:])
        ]
        facts = self._tier.facts() | {"step_ms": self._request.step_s * 1e3, "requests_per_run": len(asked)}
        if self._backlog is not None:
            self._backlog.drain()
            self._check_loads(self._backlog)
            facts["jobs_left_at_verdict"] = statistics.median(self._left)
        return LookupAnswer(
            {
                "scheduler_cpu_ns_per_key": [round(each.cpu_ns / self._request.keys, 4) for each in asked],
                "verdict_wall_ms": [round(each.wall_s * 1e3, 6) for each in asked],
                "verdict_own_ms": [round(each.own_s * 1e3, 6) for each in asked],
                "retry_steps": [each.retry_steps for each in asked],
            },
            facts,
        )

    def _prompt(self, number: int) -> list[bytes]:
        """Return a prompt's keys: new objects, as each request of vLLM has its own."""
        present, keys = self._request.present, self._request.keys
        absent = range(number * keys, number * keys + keys - present)
        # Keys of chunks are kept, those of nothing are needed once.
        make = chunks.key_of.__wrapped__
        return [bytes(bytearray(key)) for key in self._files[:present]] + [
            make(self._seed, each) for each in absent
        ]

    def _ask(self, prompt: list[bytes], request_id: str) -> Asked:
        """Ask for one prompt; return what that took, if the verdict is right."""
        if self._backlog is not None:
            self._backlog.top_up()
        asked = ask(self._tier.manager, prompt, request_id, self._request.step_s)
        if self._backlog is not None:
            self._left.append(self._backlog.take(asked.finished))
        present = self._request.present
        expected = prompt[present] if present < len(prompt) else None
        if asked.missing is not expected:
            found = "all" if asked.missing is None else prompt.index(asked.missing)
            raise DriverError(
                f"{present} of {len(prompt)} keys are there, but the tier's verdict is {found} in front"
            )
        return asked

    def _check_loads(self, backlog: Backlog) -> None:
        """Prove that the jobs beside the lookups were real.

        Raises:
            DriverError: A row holds something else than the chunk that was loaded into it.
        """
        loaded = [pair for pairs in backlog.loaded.values() for pair in pairs]
        wrong = self._buffer.wrong_rows(loaded)
        if wrong:
            raise DriverError(f"{len(wrong)} of {len(loaded)} chunks were loaded with wrong bytes")


def _measure(request: LookupRequest) -> LookupAnswer:
    run = _Run(request)
    try:
        return run.measure()
    finally:
        run.close()


def _prepare_scale(request: LookupRequest) -> LookupAnswer:
    scale_runs.make_files(Path(base_path_of(request.root)), request.files)
    return LookupAnswer()


_KINDS: Final[Mapping[str, Callable[[LookupRequest], LookupAnswer]]] = {
    PROBE: _probe,
    PREPARE: _prepare,
    PREPARE_SCALE: _prepare_scale,
    MEASURE: _measure,
    START: scale_runs.start,
    GAPS: scale_runs.gaps,
    RESTART: scale_runs.restart,
    INDEX: scale_runs.index,
}
