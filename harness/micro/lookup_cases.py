"""What is asked of each tier: prompts of which all keys are there, half of them, or none, idle or busy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.errors import UsageError
from harness.micro.arms import FALLBACK, STOCK, STOCK_AGAIN
from harness.micro.cases import LOOKUP
from harness.micro.drivers import IO_PSYNC, IO_PYTHON, IO_STOCK, IO_URING
from harness.records import HIGHER, LOWER, Scalar

START: Final = "start"
INDEX: Final = "index"

HIT: Final = "hit"
HALF: Final = "half"
MISS: Final = "miss"
PATTERNS: Final = (HIT, HALF, MISS)

OWNER: Final = "owner"
SHARED: Final = "shared"
# The stock tier has but one way to answer.
STOCK_MODE: Final = "stock"

# The smallest chunk: what is looked up is whether a file is there, not what is in it.
CHUNK_BYTES: Final = 4096
# Jobs that are kept in flight beside a busy case's lookups.
BUSY_JOBS: Final = 32

# What one number of each metric is, and which direction is good.
UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "scheduler_cpu_ns_per_key": ("ns", LOWER),
    "verdict_wall_ms": ("ms", LOWER),
    "verdict_own_ms": ("ms", LOWER),
    "retry_steps": ("steps", LOWER),
    "startup_ms": ("ms", LOWER),
    "scan_files_per_s": ("1/s", HIGHER),
    "restart_ms": ("ms", LOWER),
    "victim_gap_us": ("us", LOWER),
    "victim_gap_idle_us": ("us", LOWER),
    "index_bytes_per_key": ("bytes", LOWER),
    "index_bytes_per_key_max": ("bytes", LOWER),
    "insert_keys_per_s": ("1/s", HIGHER),
    "lookup_hit_ns": ("ns", LOWER),
    "lookup_miss_ns": ("ns", LOWER),
    "prefix_hit_ns_per_key": ("ns", LOWER),
    "prefix_miss_ns": ("ns", LOWER),
}

_REQUESTS_MIN: Final = 5
_REQUESTS_MAX: Final = 40
_KEYS_PER_RUN: Final = 40_000
_BUSY_CHUNKS_MIN: Final = 64
_BUSY_CHUNKS_MAX: Final = 512
_KEYS_PER_BUSY_CHUNK: Final = 14
# One key has no first half.
_KEYS_MIN: Final = 2
_KEYS_MAX: Final = 1_000_000


@dataclass(frozen=True)
class Contender:
    """One way to look keys up.

    Attributes:
        arm: As in records.
        tier: vLLM's name of the tier.
        mode: "owner" or "shared", how kvfs shares its directory; "stock" for vLLM's own tier.
        io: The I/O back end to ask for; "auto" is io_uring where that works.
    """

    arm: str
    tier: str
    mode: str
    io: str

    @property
    def label(self) -> str:
        """The contender as people read it, and as `summary.lines_of` names it."""
        return label_of(self.arm, self.mode)


def label_of(arm: str, mode: str) -> str:
    """Return an arm with its mode, where it has one."""
    return arm if mode in (STOCK_MODE, "") else f"{arm} {mode}"


def contenders(names: Sequence[str], io: Sequence[str]) -> list[Contender]:
    """Return the contenders of a round, `fs` at both ends; fio looks nothing up."""
    chosen = []
    if STOCK.name in names:
        chosen.append(Contender(STOCK.name, "fs", STOCK_MODE, IO_STOCK))
    if "kvfs" in names:
        engine = "auto" if IO_URING in io else IO_PSYNC
        chosen += [Contender("kvfs", "kvfs", mode, engine) for mode in (OWNER, SHARED)]
    if FALLBACK.name in names:
        chosen += [Contender(FALLBACK.name, "kvfs", mode, IO_PYTHON) for mode in (OWNER, SHARED)]
    if STOCK.name in names:
        chosen.append(Contender(STOCK_AGAIN.name, "fs", STOCK_MODE, IO_STOCK))
    return chosen


@dataclass(frozen=True)
class LookupCase:
    """One kind of prompt.

    Attributes:
        keys: Its length.
        pattern: Which of them are there: "hit" all, "half" the first half, "miss" none.
        busy: Whether 32 jobs are in flight through the same tier.
    """

    keys: int
    pattern: str
    busy: bool

    def key(self, contender: Contender, io: str, dir_fs: str) -> dict[str, Scalar]:
        """Return the case as it stands in records.

        Args:
            contender: Who looked up.
            io: The I/O back end that it really had.
            dir_fs: Type of the file system.
        """
        return {
            "op": LOOKUP,
            "layout": "files",
            "io": io,
            "dir_fs": dir_fs,
            "keys": self.keys,
            "mode": contender.mode,
            "pattern": self.pattern,
            "busy": self.busy,
        }

    @property
    def present(self) -> int:
        """How many of the keys are there, counted from the first."""
        return {HIT: self.keys, HALF: self.keys // 2, MISS: 0}[self.pattern]

    @property
    def requests(self) -> int:
        """Prompts of a run: many, where they are short."""
        return max(_REQUESTS_MIN, min(_REQUESTS_MAX, _KEYS_PER_RUN // self.keys))

    @property
    def chunks_per_job(self) -> int:
        """Chunks of each job beside: as many as keep the disk busy until the stock tier has its verdict."""
        if not self.busy:
            return 0
        return max(_BUSY_CHUNKS_MIN, min(_BUSY_CHUNKS_MAX, self.keys // _KEYS_PER_BUSY_CHUNK))

    def __str__(self) -> str:
        return f"{LOOKUP} {text_of(LOOKUP, self.keys, self.pattern, busy=self.busy)}"


@dataclass(frozen=True)
class ScaleCase:
    """One question of scale, asked of kvfs's extension alone.

    Attributes:
        op: "start": a directory of real files at start; "index": the index alone, with synthetic keys.
        keys: How many.
    """

    op: str
    keys: int

    def key(self, mode: str, io: str, dir_fs: str) -> dict[str, Scalar]:
        """Return the case as it stands in records; the index alone has no mode, I/O or file system."""
        return {
            "op": self.op,
            "layout": "files",
            "io": io,
            "dir_fs": dir_fs,
            "keys": self.keys,
            "mode": mode,
        }

    def __str__(self) -> str:
        return f"{self.op} {text_of(self.op, self.keys)}"


def text_of(op: str, keys: int, pattern: str = "", *, busy: bool = False) -> str:
    """Return a case as people read it."""
    what = "files" if op == START else "keys"
    return ", ".join([f"{keys} {what}", *([pattern] if pattern else []), *(["busy"] if busy else [])])


def plan(keys: Sequence[int]) -> list[LookupCase]:
    """Return the cases in the order in which they run."""
    return [
        LookupCase(count, pattern, busy) for count in keys for busy in (False, True) for pattern in PATTERNS
    ]


def parse_keys(text: str) -> int:
    """Return the length of a prompt.

    Raises:
        UsageError: It is none, or too many.
    """
    if not re.fullmatch(r"\d+", text) or not _KEYS_MIN <= int(text) <= _KEYS_MAX:
        raise UsageError(f"--keys {text}: a prompt has {_KEYS_MIN} to {_KEYS_MAX} keys")
    return int(text)


@dataclass(frozen=True)
class LookupPlan:
    """What a session of lookups does.

    Attributes:
        cases: In order.
        contenders: In the order of a round; the next round goes backwards.
        runs: How many rounds each case has, and how often each question of scale is asked.
        scale: The questions of scale.
        step_s: How long the model computes between two steps of a prompt that has no verdict yet.
        victim_s: How long the victim ticks beside an idle tier.
        smoke: Everything once, as short as can be.
    """

    cases: Sequence[LookupCase]
    contenders: Sequence[Contender]
    runs: int
    scale: Sequence[ScaleCase] = ()
    step_s: float = 0.001
    victim_s: float = 0.6
    smoke: bool = False

    @property
    def files(self) -> int:
        """How many files lie there to be found."""
        return max((case.keys for case in self.cases), default=0)
