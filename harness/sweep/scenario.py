"""Read the named workloads of `harness/scenarios/*.toml`, check them, and scale them."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, cast

from harness import arms
from harness.arms import TOKENS_PER_CHUNK, Arm
from harness.errors import UsageError
from harness.load import Workload

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "scenarios"
# What a sweep can measure: the arms of the benchmark, and host memory alone.
ARMS: Final = {**arms.ARMS, arms.DRAM.name: arms.DRAM}
FULL: Final = "full"
SCALED: Final = "scaled"
QUICK: Final = "quick"
SETUPS: Final = (FULL, SCALED, QUICK)
_THREADS_MAX: Final = 1024
# guidellm marks each prompt with what makes it unlike all others, which takes so many tokens.
_PROMPT_TOKENS_MIN: Final = 8
# Two, so that there is a time between tokens.
_OUTPUT_TOKENS_MIN: Final = 2
_LENGTHS: Final = ("first_prompt_tokens", "prompt_tokens", "output_tokens")
_REQUIRED: Final = ("turns", "prefix_tokens", "prefix_count", "prompt_tokens", "output_tokens")
_KNOWN: Final = {*_REQUIRED, "first_prompt_tokens"} | {
    f"{length}_{bound}" for length in _LENGTHS for bound in ("stdev", "min", "max")
}


@dataclass(frozen=True)
class Threads:
    """Threads of a disk tier; none where there is no tier."""

    read: int = 0
    write: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `16`, or `32/16` for 32 read and 16 write threads.

        Raises:
            UsageError: It is neither.
        """
        parts = text.strip().split("/")
        if len(parts) > 2 or not all(  # noqa: PLR2004 - read and write
            part.isdecimal() and 1 <= int(part) <= _THREADS_MAX for part in parts
        ):
            raise UsageError(
                f"{text!r} is no number of threads: give one from 1 to {_THREADS_MAX}, or two as READ/WRITE"
            )
        return cls(int(parts[0]), int(parts[-1]))

    def __str__(self) -> str:
        return str(self.read) if self.read == self.write else f"{self.read}/{self.write}"


@dataclass(frozen=True)
class Setup:
    """One size of a scenario and what is varied at it.

    Attributes:
        scale: What lengths and numbers of prefixes are divided by.
        streams: Conversations at a time.
        threads: Of the disk tier.
        arms: Ways of serving.
        conversations: That a phase holds; one a stream where that is more.
        duration_s: After which a phase ends even so; 0 is never.
        host_gib: Size of host memory's tier; None takes `host_share`.
        host_share: The same, as a share of what the cold phases store.
    """

    scale: float
    streams: tuple[int, ...]
    threads: tuple[Threads, ...]
    arms: tuple[Arm, ...]
    conversations: int
    duration_s: float = 0.0
    host_gib: float | None = None
    host_share: float = 1.0


@dataclass(frozen=True)
class Scenario:
    """A workload as its source ran it, and the sizes that a sweep runs it at.

    Attributes:
        name: Of its file.
        source: Who ran it, with what.
        seed: Decides the prompts.
        lengths: Of prompts, answers and prefixes at full size, under guidellm's names.
        setups: By name: "full", "scaled" and "quick".
    """

    name: str
    source: str
    seed: int
    lengths: Mapping[str, int]
    setups: Mapping[str, Setup]

    def workload(self, setup: Setup) -> Workload:
        """Return the load of a phase.

        Prefixes become whole chunks, at least one: less is not stored.
        """
        full = dict(self.lengths)
        chunks = max(1, round(full.pop("prefix_tokens") / setup.scale / TOKENS_PER_CHUNK))
        is_full = setup.scale == 1
        prefix_tokens = self.lengths["prefix_tokens"] if is_full else chunks * TOKENS_PER_CHUNK
        turns, prefix_count = full.pop("turns"), full.pop("prefix_count")
        scaled = {name: _scaled(name, tokens, setup.scale) for name, tokens in full.items()}
        return Workload(
            prefix_tokens=prefix_tokens,
            prefix_count=max(1, round(prefix_count / setup.scale)),
            prompt_tokens=scaled.pop("prompt_tokens"),
            output_tokens=scaled.pop("output_tokens"),
            turns=turns,
            conversations=setup.conversations,
            spread=scaled,
            duration_s=setup.duration_s,
        )


def _scaled(name: str, tokens: int, scale: float) -> int:
    if name.endswith("_stdev"):
        return max(1, round(tokens / scale))
    least = _OUTPUT_TOKENS_MIN if name.startswith("output") else _PROMPT_TOKENS_MIN
    return max(min(least, tokens), math.floor(tokens / scale + 0.5))


def names() -> list[str]:
    """Return the names of all scenarios."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load(name: str, directory: Path = DIRECTORY) -> Scenario:
    """Read a scenario.

    Raises:
        UsageError: There is none of that name, or its file is not as it must be; says what to change.
    """
    path = directory / f"{name}.toml"
    if not path.is_file():
        raise UsageError(f"--scenario {name!r}: there is none; choose from {','.join(names())}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML ({error})") from error
    try:
        return _scenario(name, table)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _scenario(name: str, table: Mapping[str, object]) -> Scenario:
    _only(table, {"source", "seed", "load", *SETUPS}, "the file")
    lengths = _table(table, "load")
    _only(lengths, _KNOWN, "[load]")
    for key in _REQUIRED:
        if key not in lengths:
            raise UsageError(f"[load] lacks {key}")
    return Scenario(
        name=name,
        source=_text(table, "source"),
        seed=_whole(table, "seed", "the file"),
        lengths={key: _whole(lengths, key, "[load]") for key in lengths},
        setups={setup: _setup(_table(table, setup), f"[{setup}]") for setup in SETUPS},
    )


def _setup(table: Mapping[str, object], where: str) -> Setup:
    fields = {field.name for field in dataclasses.fields(Setup)}
    _only(table, fields, where)
    if ("host_gib" in table) == ("host_share" in table):
        raise UsageError(f"{where} needs host_gib or host_share, one of them")
    host_gib = _number(table, "host_gib", where) if "host_gib" in table else None
    return Setup(
        scale=_number(table, "scale", where),
        streams=tuple(
            _whole({"streams": value}, "streams", where) for value in _list(table, "streams", where)
        ),
        threads=tuple(Threads.parse(str(value)) for value in _list(table, "threads", where)),
        arms=tuple(arms.parse_arms(",".join(map(str, _list(table, "arms", where))), ARMS)),
        conversations=_whole(table, "conversations", where),
        duration_s=_number(table, "duration_s", where) if "duration_s" in table else 0.0,
        host_gib=host_gib,
        host_share=_number(table, "host_share", where) if host_gib is None else 1.0,
    )


def _only(table: Mapping[str, object], known: set[str], where: str) -> None:
    if unknown := sorted(table.keys() - known):
        raise UsageError(
            f"{where} has unknown keys: {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )


def _table(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = table.get(key)
    if not isinstance(found, dict):
        raise UsageError(f"needs a table [{key}], got {found!r}")
    return cast("dict[str, object]", found)


def _text(table: Mapping[str, object], key: str) -> str:
    found = table.get(key)
    if not isinstance(found, str) or not found:
        raise UsageError(f"{key} must be a string that is not empty, got {found!r}")
    return found


def _list(table: Mapping[str, object], key: str, where: str) -> Sequence[object]:
    found = table.get(key)
    if not isinstance(found, list) or not found:
        raise UsageError(f"{where} {key} must be a list that is not empty, got {found!r}")
    return found


def _whole(table: Mapping[str, object], key: str, where: str) -> int:
    found = table.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise UsageError(f"{where} {key} must be a whole number from 1 on, got {found!r}")
    return found


def _number(table: Mapping[str, object], key: str, where: str) -> float:
    found = table.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise UsageError(f"{where} {key} must be a number above 0, got {found!r}")
    return float(found)
