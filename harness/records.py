"""Append measurements to records.jsonl and read them back, checked; reports and gates read nothing else."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

from harness.errors import HarnessError

FILE_NAME: Final = "records.jsonl"
LOWER: Final = "lower"
HIGHER: Final = "higher"

_SCALAR_TYPES: Final = (str, int, float, bool, type(None))
Scalar = str | int | float | bool | None
Env = Mapping[str, object]

# What one number of each metric is, and which direction is good.
UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "requests_per_s": ("1/s", HIGHER),
    "ttft_ms": ("ms", LOWER),
    "output_tokens_per_s": ("tokens/s", HIGHER),
    "total_tokens_per_s": ("tokens/s", HIGHER),
    "request_latency_ms": ("ms", LOWER),
    "inter_token_latency_ms": ("ms", LOWER),
    "accuracy": ("score", HIGHER),
    "tier_hit_tokens": ("tokens", HIGHER),
    "host_hit_tokens": ("tokens", HIGHER),
    "computed_tokens": ("tokens", LOWER),
    "tier_read_bytes": ("bytes", HIGHER),
    "tier_write_bytes": ("bytes", HIGHER),
    "storage_read_bytes": ("bytes", HIGHER),
    "tier_failed_jobs": ("jobs", LOWER),
    "tier_retried_lookups": ("lookups", LOWER),
    "engine_steps": ("steps", LOWER),
    "shared_prefixes": ("prompts", LOWER),
    # That the tier found damaged though nobody had damaged them.
    "damaged_chunks": ("chunks", LOWER),
    # Of chunks that were damaged on disk on purpose.
    "control_accuracy": ("score", HIGHER),
    "control_damaged_files": ("files", HIGHER),
    "control_damaged_chunks": ("chunks", HIGHER),
    "control_tier_hit_tokens": ("tokens", LOWER),
    "control_failed_jobs": ("jobs", LOWER),
    # Of the gate of revisions: one value a burst.
    "wall_us_per_op": ("us", LOWER),
    "cpu_us_per_op": ("us", LOWER),
    # Samples taken while a phase ran, `interval_s` of the case apart; the device is the whole machine's.
    "disk_read_mb_per_s": ("MB/s", HIGHER),
    "disk_write_mb_per_s": ("MB/s", HIGHER),
    "disk_busy_percent": ("%", HIGHER),
    "disk_used_bytes": ("bytes", LOWER),
    "cpu_percent": ("%", LOWER),
    # 1 where a greedy answer is the same text as the baseline's, 0 where it is not.
    "answers_identical": ("answers", HIGHER),
    "control_answers_identical": ("answers", HIGHER),
    # How likely it is that damage of so many chunks fails the gate, by the power calculation.
    "control_power": ("probability", HIGHER),
}


class RecordError(HarnessError):
    """A line of records.jsonl that is not a record."""


@dataclass(frozen=True)
class Record:
    """One metric of one case of one arm, with its raw values.

    Attributes:
        suite: The session that measured, such as "bench".
        case: What was measured, without the arm; equal cases can be compared.
        arm: Which way of serving.
        metric: What the values are.
        unit: Theirs.
        better: "lower" or "higher".
        values: Raw, never only a mean: one a request, one a document, one a run.
        env: The machine and the software, see `environment.py`.
    """

    suite: str
    case: Mapping[str, Scalar]
    arm: str
    metric: str
    unit: str
    better: str
    values: Sequence[float]
    env: Env

    def __post_init__(self) -> None:
        """Refuse what a reader could not use.

        Raises:
            RecordError: Says which field and what is wrong with it.
        """
        for name in ("suite", "arm", "metric", "unit"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text:
                raise RecordError(f"{name!r} must be a string that is not empty, got {text!r}")
        if self.better not in {LOWER, HIGHER}:
            raise RecordError(f"'better' must be {LOWER!r} or {HIGHER!r}, got {self.better!r}")
        for name in ("case", "env"):
            if not isinstance(getattr(self, name), Mapping):
                raise RecordError(f"{name!r} must be an object, got {getattr(self, name)!r}")
        for key, scalar in self.case.items():
            if not isinstance(scalar, _SCALAR_TYPES):
                raise RecordError(f"'case' holds plain values only, got {scalar!r} for {key!r}")
        _check_values(self.values)

    @property
    def phase(self) -> str:
        """The case's phase, "" if it has none."""
        return str(self.case.get("phase", ""))


def _check_values(values: object) -> None:
    if not isinstance(values, list | tuple) or not values:
        raise RecordError(f"'values' must be a list with at least one number, got {values!r}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RecordError(f"'values' must hold finite numbers, got {value!r}")


def measured(
    suite: str, case: Mapping[str, Scalar], arm: str, metric: str, values: Iterable[float], env: Env
) -> Record:
    """Return a record of one of the known metrics, with its unit and direction."""
    unit, better = UNITS[metric]
    return Record(suite, dict(case), arm, metric, unit, better, list(values), env)


class RecordLog:
    """The records of one session, kept on disk as they come, so that an interrupted run keeps its part."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.records: list[Record] = []

    def append(self, record: Record) -> None:
        """Write one line; a reader never sees half of it unless the machine stops."""
        self.extend([record])

    def extend(self, records: Sequence[Record]) -> None:
        """Write lines that belong together in one call: an interrupted run has all or none of them."""
        lines = "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in records)
        with self.path.open("ab", buffering=0) as file:
            file.write(lines.encode())
        self.records += records


def read(path: Path) -> list[Record]:
    """Return the records of a file.

    Raises:
        RecordError: The file cannot be read, or a line is not a record; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read records from {path}: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(_parse(line))
        except RecordError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error
    return records


def _parse(line: str) -> Record:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise RecordError(f"must be an object, got {type(fields).__name__}")
    expected = set(Record.__dataclass_fields__)
    if missing := sorted(expected - fields.keys()):
        raise RecordError(f"lacks {', '.join(missing)}")
    if unknown := sorted(fields.keys() - expected):
        raise RecordError(f"has unknown fields: {', '.join(unknown)}")
    return Record(**cast("dict[str, object]", fields))  # type: ignore[arg-type]  # __post_init__ checks them
