"""What a worker is asked to do and what it answers: one JSON line each way."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from harness.errors import HarnessError
from harness.micro.cases import Case

PROBE: Final = "probe"
PREPARE: Final = "prepare"
MEASURE: Final = "measure"
REQUIRE: Final = "require"

# Two lines in the middle of a traced run: the tracer is attached after the first, detached after the second.
READY: Final = "ready"
DONE: Final = "done"
# File names that a traced run asks for, so that its own calls can be told from what lies around them.
BEGIN_MARK: Final = "/kvfs-micro-begin"
END_MARK: Final = "/kvfs-micro-end"


class WorkerError(HarnessError):
    """A worker could not do what it was asked."""


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        kind: "probe" (can this arm run here?), "prepare" (write the files that loads read) or "measure".
        io: The I/O path of the arm.
        root: Directory of the namespace.
        case: What to measure; to probe or prepare, its chunk size and threads.
        checksum: kvfs's option of that name; to prepare, "require" seals the files.
        beside: The same of a second engine that takes turns with the first, on the same buffer; "" for none.
        files: How many files lie there to be loaded, or are to be written.
        existing_leaves: Make the directories of stored chunks before the clock runs.
        traced: Stop before and after the measured part, for a tracer.
        quiet_disk: Have the file system write out what it holds back before each wave.
        victim_s: How long a victim ticks, idle and busy each.
        serial: The run's number in its session; no two runs store the same keys.
    """

    kind: str
    io: str
    root: str
    case: Case
    checksum: str = "auto"
    beside: str = ""
    files: int = 0
    existing_leaves: bool = False
    traced: bool = False
    quiet_disk: bool = True
    victim_s: float = 0.0
    serial: int = 0


@dataclass
class Answer:
    """What a run measured. Lists have one value a wave, except latencies: one a job.

    Attributes:
        wall_s: From the first submission until the last job is known to be done.
        cpu_s: The process's user and system time for that, and for its threads to come to rest.
        chunks: Chunks moved, all waves.
        latencies_s: Of the jobs; of the loads alone in a mixed run.
        idle_latencies_s: The same loads before there was a backlog.
        gaps_s: The victim's ticks while the engine was busy.
        idle_gaps_s: And before.
        page_cache: What the kernel counted: `resident_before_bytes`, `resident_after_bytes`,
            `storage_read_bytes`, `storage_write_bytes`, and the `moved_bytes` that should show there.
        facts: What the driver says about itself.
        mkdir_cpu_us: What making a directory took before the run; 0 where none is made.
        checked_chunks: Chunks whose every byte was compared: all that were loaded, unless a later load took
            their rows, and some of those that were stored.
        beside: The same of the second engine.
    """

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    chunks: int = 0
    latencies_s: list[float] = field(default_factory=list)
    idle_latencies_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    idle_gaps_s: list[float] = field(default_factory=list)
    page_cache: dict[str, int] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    mkdir_cpu_us: float = 0.0
    checked_chunks: int = 0
    beside: "Answer | None" = None


def request_line(request: Request) -> bytes:
    """Return the request as a worker reads it."""
    return json.dumps(dataclasses.asdict(request)).encode() + b"\n"


def parse_request(line: bytes) -> Request:
    """Return the request of a line.

    Raises:
        WorkerError: It is none.
    """
    try:
        values = json.loads(line)
        return Request(**{**values, "case": Case(**values["case"])})
    except (ValueError, TypeError, KeyError) as error:
        raise WorkerError(f"no request of the micro benchmark ({error!r}): {line!r}") from error


def answer_line(answer: Answer) -> bytes:
    """Return the answer as the session reads it."""
    return json.dumps(dataclasses.asdict(answer)).encode() + b"\n"


def parse_answer(fields: dict[str, object]) -> Answer:
    """Return the answer of a parsed line.

    Raises:
        WorkerError: The worker reported a failure, with its words.
    """
    if "error" in fields:
        raise WorkerError(str(fields["error"]))
    second = fields.get("beside")
    beside = parse_answer(cast("dict[str, object]", second)) if second else None
    return Answer(**cast("dict[str, Sequence[float]]", {**fields, "beside": beside}))  # type: ignore[arg-type]  # our own line
