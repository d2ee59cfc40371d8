"""The micro benchmark's options: how they are written on the command line, and the plan that they mean."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from harness.errors import UsageError
from harness.micro import arms, cases, lookup_cases
from harness.micro.cases import LOOKUP, Limits, Shape
from harness.micro.lookup_cases import INDEX, START, LookupPlan, ScaleCase
from harness.micro.session import Plan, backlog_room_bytes

_SMOKE_BYTES: Final = 1 << 20
_SMOKE_VICTIM_S: Final = 0.02
_BACKLOG_BYTES: Final = 4 << 30
# Small chunks would make directories for minutes; so many take long enough to load behind them.
_BACKLOG_CHUNKS_MAX: Final = 4096
_NO_MAX: Final = 1 << 62
_THREADS_MAX: Final = 1024
_OPS: Final = (*cases.OPS, LOOKUP)
# As short as still has a first half.
_SMOKE_KEYS: Final = 64
_SCALE_FILES: Final = 200_000
_SCALE_KEYS: Final = 10_000_000


@dataclass(frozen=True)
class Options:
    """What the command line says, parsed; `micro --help` explains each."""

    op: list[str]
    chunk: list[int]
    threads: list[int]
    shape: list[Shape]
    runs: int
    arms: list[str]
    io: list[str]
    directory: Path | None
    out: Path
    max_bytes: int
    backlog: int | None
    keys: list[int]
    step_ms: float
    scale: int | None
    scale_keys: int | None
    victim: bool
    syscalls: bool
    leaves: str
    gate: bool
    smoke: bool

    def plan(self) -> Plan:
        """Return what is to be done.

        Raises:
            UsageError: There is nothing to do, or the data is too much for one run.
        """
        ops = [op for op in self.op if op != LOOKUP]
        if ops and max(self.chunk) > self.max_bytes and not self.smoke:
            raise UsageError(
                f"a chunk of {cases.size_text(max(self.chunk))} is more than a run may move: raise "
                f"--max-bytes from {cases.size_text(self.max_bytes)}"
            )
        limits = self._limits()
        planned = cases.plan(ops, self.chunk, self.threads, self.shape, limits, victim=self.victim)
        return Plan(
            planned,
            arms.choose(self.arms, self.io),
            1 if self.smoke else self.runs,
            limits,
            existing_leaves=self.leaves == "existing",
            count_syscalls=self.syscalls,
        )

    def lookup_plan(self) -> LookupPlan:
        """Return which lookups are to be done; no cases where they are not among the operations.

        Raises:
            UsageError: There is nobody to do them.
        """
        if LOOKUP not in self.op:
            return LookupPlan((), (), 0)
        taking_part = lookup_cases.contenders([arm.name for arm in arms.choose(self.arms, self.io)], self.io)
        scale = []
        for op, given, default in ((START, self.scale, _SCALE_FILES), (INDEX, self.scale_keys, _SCALE_KEYS)):
            count = (0 if self.smoke else default) if given is None else given
            if count and "kvfs" in self.arms:
                scale.append(ScaleCase(op, count))
        return LookupPlan(
            lookup_cases.plan([_SMOKE_KEYS] if self.smoke else self.keys),
            taking_part,
            1 if self.smoke else self.runs,
            scale,
            self.step_ms / 1e3,
            _SMOKE_VICTIM_S if self.smoke else Limits.victim_s,
            smoke=self.smoke,
        )

    def _limits(self) -> Limits:
        if self.smoke:
            return Limits(_SMOKE_BYTES, _SMOKE_BYTES, _NO_MAX, _SMOKE_VICTIM_S, smoke=True)
        if self.backlog is not None:
            return Limits(self.max_bytes, self.backlog, _NO_MAX)
        # A disk without that much room has less of a backlog, which the records state.
        room = backlog_room_bytes(self.directory or self.out, self.max_bytes)
        return Limits(self.max_bytes, min(_BACKLOG_BYTES, room), _BACKLOG_CHUNKS_MAX)


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A value that a function reads; what it refuses is a usage error of the command line."""

    name = "value"

    def __init__(self, read: Callable[[str], object]) -> None:
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Return what the text means."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _list_of(read: Callable[[str], object]) -> _Parsed:
    def read_all(text: str) -> list[object]:
        parts = [read(part.strip()) for part in text.split(",") if part.strip()]
        if not parts:
            raise UsageError(f"{text!r} names nothing")
        return list(dict.fromkeys(parts))

    return _Parsed(read_all)


def _read_op(text: str) -> str:
    if text not in _OPS:
        raise UsageError(f"{text!r} is no operation; choose from {','.join(_OPS)}")
    return text


def _read_threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _THREADS_MAX:
        raise UsageError(f"{text!r} is no number of threads from 1 to {_THREADS_MAX}")
    return int(text)


def _list(name: str, default: str, read: Callable[[str], object], text: str) -> click.Option:
    shown = {"show_default": True, "metavar": "LIST"}
    return click.Option([name], default=default, type=_list_of(read), help=text, **shown)  # type: ignore[arg-type]


def _size(name: str, default: str | None, text: str) -> click.Option:
    return click.Option(
        [name],
        default=default,
        type=_Parsed(cases.parse_size),
        help=text,
        show_default=default is not None,
        metavar="SIZE",
    )


def _count(name: str, default: int, text: str) -> click.Option:
    """Return an option whose default is nothing in a smoke run."""
    help_text = f"{text} [default: {default}, with --smoke 0]"
    return click.Option([name], type=click.IntRange(0, 100_000_000), metavar="COUNT", help=help_text)


_PATH: Final = click.Path(path_type=Path, file_okay=False)
DECLARED: Final = (
    _list("--op", ",".join(_OPS), _read_op, "What to measure."),
    _list("--chunk", "64KiB,512KiB,1MiB,3MiB,8MiB", cases.parse_chunk, "Sizes of a chunk."),
    _list("--threads", "1,4,16", _read_threads, "Read threads, and as many write threads."),
    _list("--shape", "16x16,1x64", cases.parse_shape, "JOBSxCHUNKS: jobs at once, and chunks of each."),
    click.Option(["--runs"], default=7, type=click.IntRange(1), show_default=True, help="Runs of each arm."),
    _list("--arms", ",".join(arms.NAMES), str, "fs runs twice in a round, the second time as fs-aa."),
    _list("--io", ",".join(arms.IO_CHOICES), str, "I/O back ends of kvfs."),
    click.Option(
        ["--dir", "directory"], type=_PATH, help="A directory on the disk to measure [default: OUT]."
    ),
    click.Option(
        ["--out"], default=Path("bench-out/micro"), type=_PATH, show_default=True, help="For results."
    ),
    _size("--max-bytes", "768MiB", "Most data that a run moves."),
    _size("--backlog", None, "Stores ahead of mixed loads [default: 4GiB, 4096 chunks, or what fits]."),
    _list("--keys", "512,3600,16000", lookup_cases.parse_keys, "Keys of the prompts that are looked up."),
    click.Option(
        ["--step-ms"],
        default=5.0,
        type=click.FloatRange(0.0, 10_000.0),
        show_default=True,
        help="How long the model computes between two lookups of a prompt without a verdict.",
    ),
    _count("--scale", _SCALE_FILES, "Files over which kvfs is started; 0 for none."),
    _count("--scale-keys", _SCALE_KEYS, "Synthetic keys of kvfs's index alone; 0 for none."),
    click.Option(["--victim/--no-victim"], default=True, help="Whether to measure a ticking Python thread."),
    click.Option(["--syscalls/--no-syscalls"], default=True, help="Whether to count system calls."),
    click.Option(
        ["--leaves"],
        type=click.Choice(["new", "existing"]),
        default="new",
        show_default=True,
        help="Whether stores find the directories of their chunks.",
    ),
    click.Option(["--gate"], is_flag=True, help="Fail unless every gate of harness/gates.toml passes."),
    click.Option(["--smoke"], is_flag=True, help="Run everything once, with 1 MiB: does it work?"),
)
