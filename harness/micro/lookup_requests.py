"""What the worker of the lookups is asked to do and what it answers: one JSON line each way."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Final, cast

from harness.micro.requests import WorkerError

PROBE: Final = "probe"
PREPARE: Final = "prepare"
PREPARE_SCALE: Final = "prepare scale"
MEASURE: Final = "measure"
# The parts of the case "start", a process each: what one does would show in the others.
START: Final = "start"
GAPS: Final = "gaps"
RESTART: Final = "restart"
INDEX: Final = "index"


@dataclass(frozen=True)
class LookupRequest:
    """One run.

    Attributes:
        kind: "probe" (can this tier be made here?), "prepare" (write the files that are to be found),
            "prepare scale" (make many files without content), "measure", or a part of a question of scale:
            "start", "gaps", "restart", "index".
        root: The tier's `root_dir`; empty for "index".
        tier: vLLM's name of it.
        mode: "owner", "shared" or "stock".
        io: The I/O back end to ask for.
        files: How many files lie there, or are to be written.
        keys: Length of a prompt, or keys of the index.
        present: How many of a prompt's keys are there, counted from the first.
        requests: Prompts of this run.
        step_s: How long the model computes between two steps.
        chunks_per_job: Chunks of each of the jobs that are kept in flight; 0 for none.
        victim_s: How long a victim ticks beside an idle tier.
        serial: The run's number in its session; no two runs ask for the same absent keys.
    """

    kind: str
    root: str
    tier: str
    mode: str
    io: str
    files: int = 0
    keys: int = 0
    present: int = 0
    requests: int = 0
    step_s: float = 0.001
    chunks_per_job: int = 0
    victim_s: float = 0.0
    serial: int = 0

    def line(self) -> bytes:
        """Return the request as the worker reads it."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


@dataclass
class LookupAnswer:
    """What a run measured.

    Attributes:
        metrics: Values by metric: one a prompt, or one a run.
        facts: What the tier and the run say about themselves.
    """

    metrics: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the answer as the session reads it."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"


def parse_request(line: bytes) -> LookupRequest:
    """Return the request of a line.

    Raises:
        WorkerError: It is none.
    """
    try:
        return LookupRequest(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise WorkerError(f"no request of the lookup benchmark ({error!r}): {line!r}") from error


def parse_answer(fields: dict[str, object]) -> LookupAnswer:
    """Return the answer of a parsed line."""
    return LookupAnswer(
        cast("dict[str, list[float]]", fields["metrics"]), cast("dict[str, object]", fields["facts"])
    )
