"""What a benchmark runs, in which order, and what it needs: decided before the first server starts."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness.accuracy.lm_eval import Questions
from harness.arms import TOKENS_PER_CHUNK, Arm
from harness.load import Workload

COLD: Final = "cold"
HOST: Final = "host"
WARM: Final = "warm"
# The control: what a server that is warm answers from files that were damaged under it.
DAMAGED: Final = "damaged"

# Benchmarks of such tiers use prefixes of 10,000 tokens, 5 turns and 200 prefixes; this is that, scaled down
# to what a model computes on two CPU cores. A conversation ends before its next whole chunk, so that later
# turns store nothing.
_DEFAULT_LOAD: Final = Workload(
    prefix_tokens=512, prefix_count=32, prompt_tokens=48, output_tokens=8, turns=2, conversations=6
)
_QUICK_LOAD: Final = dataclasses.replace(_DEFAULT_LOAD, prefix_tokens=384, conversations=4)
_DEFAULT_QUESTIONS: Final = (Questions("niah_single_1", 1024, 4), Questions("ruler_vt", 1024, 4))
TASKS: Final = tuple(asked.task for asked in _DEFAULT_QUESTIONS)
# One task: each call of lm-eval takes some seconds beside its documents, and ruler_vt cannot make short ones.
_QUICK_QUESTIONS: Final = (Questions("niah_single_1", 512, 2),)
# All of them damaged, so that few tell.
_CONTROL_DOCUMENTS: Final = 2
# With it, and one and four streams, the first ten conversations each draw a prefix that no other one has.
DEFAULT_SEED: Final = 919
_SEED_DISTANCE: Final = 1000
# Room for what the plan does not count: warm-up prompts, prompts that are a few tokens longer.
_MARGIN: Final = 1.5
_CPU_BYTES_MIN: Final = 512 * 1024**2

# Two servers that start at once use both cores, and phases that alternate see the same machine.
SERVERS_AT_ONCE: Final = 2
# A server takes 5 GB; what measures it takes 1.5.
TWO_SERVERS_BYTES: Final = 12_000_000_000

# Seconds on two cores, only to tell how much time is left; what is measured corrects them.
_SECONDS_START: Final = 60.0
_SECONDS_STOP: Final = 3.0
_SECONDS_RUN: Final = 3.0
_SECONDS_A_TOKEN: Final = 0.003
_SECONDS_AN_ANSWER: Final = 0.5


@dataclass(frozen=True)
class Block:
    """One server: what runs between its start and its end.

    Attributes:
        arm: Which way of serving.
        n_threads: Threads of the disk tier, 0 where there is none.
        stage: "cold" starts on an empty directory, "warm" on the one that the cold block left.
        again: Whether the same block ran before.
    """

    arm: Arm
    n_threads: int
    stage: str
    again: bool = False

    @property
    def title(self) -> str:
        """What to call it on the terminal."""
        threads = f", {self.n_threads} threads" if self.n_threads else ""
        return f"{self.arm.name}{threads}, {self.stage}{' again' if self.again else ''}"

    @property
    def name(self) -> str:
        """What to call its files."""
        return f"{self.arm.name}-t{self.n_threads}-{self.stage}{'-again' if self.again else ''}"

    @property
    def load_phases(self) -> tuple[str, ...]:
        """The phases of the load, in order; without offload all of them would be the same."""
        if self.stage == WARM:
            return (WARM,)
        return (COLD, HOST) if self.arm.offloads else (COLD,)


@dataclass(frozen=True)
class Step:
    """One measurement of one server.

    Attributes:
        block: Which server.
        phase: Which phase; "" only warms the server up.
        streams: Of a load phase.
        asked: Of an accuracy phase; None is a load phase.
    """

    block: Block
    phase: str = ""
    streams: int = 0
    asked: Questions | None = None


@dataclass(frozen=True)
class Plan:
    """All choices of one run.

    Attributes:
        arms: Which ways of serving.
        streams: Conversations at a time; each number is a case with prompts of its own.
        threads: Thread counts of the disk tier; each is a case with servers and directories of its own.
        workload: What each load phase asks.
        questions: What lm-eval asks.
        control: How many more documents of the first task are asked cold, and again when their chunks
            were damaged on disk.
        seed: Decides the prompts.
        servers_at_once: How many arms run side by side, their phases alternating.
        repeats_baseline: Whether the baseline runs again at the end, to show how far the machine drifted.
    """

    arms: tuple[Arm, ...]
    streams: tuple[int, ...]
    threads: tuple[int, ...]
    workload: Workload
    questions: tuple[Questions, ...]
    control: int
    seed: int
    servers_at_once: int
    repeats_baseline: bool

    def seed_for(self, streams: int) -> int:
        """Return the seed of a number of streams: the same for all arms, another for each number."""
        return self.seed + _SEED_DISTANCE * (self.streams.index(streams) + 1)

    def groups(self) -> list[list[Block]]:
        """Return the servers to start, in order; those of one group run side by side.

        Arms of a group run cold and right after that warm, the other way round, so that little time lies
        between what is compared; the next thread count begins at the other end. No arm is always the first,
        and a machine that slows down or speeds up does so for all of a group. The first arms share one: they
        are the ones that are compared most.
        """
        offloading = [arm for arm in self.arms if arm.offloads]
        baseline = [Block(arm, 0, COLD) for arm in self.arms if not arm.offloads]
        size = self.servers_at_once
        sets = [offloading[start : start + size] for start in range(0, len(offloading), size)]
        groups: list[list[Block]] = []
        for index, n_threads in enumerate(self.threads if offloading else ()):
            order = sets if index % 2 == 0 else [part[::-1] for part in reversed(sets)]
            for part in order:
                groups.append([Block(arm, n_threads, COLD) for arm in part])
                if index == 0 and part is order[-1]:
                    self._join(groups, baseline)
                groups.append([Block(arm, n_threads, WARM) for arm in part[::-1]])
        if not offloading:
            self._join(groups, baseline)
        elif self.repeats_baseline:
            self._join(groups, [dataclasses.replace(block, again=True) for block in baseline])
        return groups

    def _join(self, groups: list[list[Block]], blocks: list[Block]) -> None:
        """Put blocks into the last group, if it has room for them, or into one of their own."""
        if groups and len(groups[-1]) + len(blocks) <= self.servers_at_once:
            groups[-1] += blocks
        elif blocks:
            groups.append(list(blocks))

    def blocks(self) -> list[Block]:
        """Return all servers, in the order of their groups."""
        return [block for group in self.groups() for block in group]

    def load_chunks(self) -> int:
        """Return the chunks that the load stores in one directory."""
        a_conversation = math.ceil(self.workload.conversation_tokens / TOKENS_PER_CHUNK)
        return len(self.streams) * self.workload.conversations * a_conversation

    def cpu_bytes_to_use(self, chunk_size_bytes: int) -> int:
        """Return a size of the primary tier in which the phase `host` finds all that `cold` stored."""
        return max(_CPU_BYTES_MIN, math.ceil(self.load_chunks() * chunk_size_bytes * _MARGIN))

    def disk_bytes(self, chunk_size_bytes: int) -> int:
        """Return what the run writes at most at a time: the directories of one thread count."""
        chunks = self.load_chunks() + sum(
            (asked.documents + self.control) * math.ceil(asked.sequence_tokens / TOKENS_PER_CHUNK)
            for asked in self.questions
        )
        directories = sum(arm.offloads for arm in self.arms)
        return math.ceil(directories * chunks * chunk_size_bytes * _MARGIN)

    def load_seconds(self, phase: str, *, offloads: bool) -> float:
        """Return about how long one load phase takes."""
        work = self.workload
        computed = work.prompt_tokens * (1 + work.turns)
        if phase == COLD:
            computed += work.prefix_tokens * (1 if offloads else work.turns)
        each = computed * _SECONDS_A_TOKEN + work.turns * _SECONDS_AN_ANSWER
        return _SECONDS_RUN + work.conversations * each

    def accuracy_seconds(self, asked: Questions, stage: str) -> float:
        """Return about how long one task takes."""
        computed = asked.sequence_tokens if stage == COLD else TOKENS_PER_CHUNK
        return _SECONDS_RUN + asked.documents * (computed * _SECONDS_A_TOKEN + _SECONDS_AN_ANSWER)

    def group_seconds(self, group: Sequence[Block]) -> Iterator[float]:
        """Yield about how long each step of a group takes, in the order of `steps`."""
        yield _SECONDS_START
        for step in self.steps(group):
            offloads = step.block.arm.offloads
            if step.phase == "":
                yield self.workload.prefix_tokens * _SECONDS_A_TOKEN * (1 if offloads else 2)
            elif step.asked is None:
                yield self.load_seconds(step.phase, offloads=offloads)
            else:
                yield self.accuracy_seconds(step.asked, COLD if step.phase == DAMAGED else step.block.stage)
        yield _SECONDS_STOP

    def steps(self, group: Sequence[Block]) -> Iterator["Step"]:
        """Yield what is measured while a group's servers run; the arms alternate, each first in turn."""
        order = list(group)
        for block in order:
            yield Step(block)
        for phase in (COLD, HOST, WARM):
            for streams in self.streams:
                yield from (Step(block, phase, streams) for block in order if phase in block.load_phases)
                order.reverse()
        for number, asked in enumerate(self.questions):
            control = self.control if number == 0 else 0
            cold = dataclasses.replace(asked, documents=asked.documents + control)
            for block in order:
                is_cold = block.stage == COLD and block.arm.offloads
                yield Step(block, block.stage, asked=cold if is_cold else asked)
        if self.questions and self.control:
            asked = self.questions[0]
            damaged = dataclasses.replace(asked, first=asked.documents, documents=self.control)
            yield from (Step(block, DAMAGED, asked=damaged) for block in order if block.stage == WARM)

    def describe(self) -> dict[str, object]:
        """Return what a record's `env` says about the run."""
        return {
            "workload": dataclasses.asdict(self.workload),
            "questions": [dataclasses.asdict(asked) for asked in self.questions],
            "seed": self.seed,
            "order": [" beside ".join(block.title for block in group) for group in self.groups()],
        }


def make(  # noqa: PLR0913 - all but two have defaults
    arms: Sequence[Arm],
    *,
    quick: bool,
    tasks: Sequence[str],
    seed: int,
    streams: Sequence[int] = (1, 4),
    threads: Sequence[int] = (),
    conversations: int | None = None,
    documents: int | None = None,
    servers_at_once: int = SERVERS_AT_ONCE,
) -> Plan:
    """Return the plan of a run; what is not given is `--quick`'s or the default's.

    Args:
        arms: Which ways of serving.
        quick: One thread count, short prefixes, few conversations and documents.
        tasks: lm-eval's.
        seed: Decides the prompts.
        streams: Conversations at a time.
        threads: Thread counts of the disk tier.
        conversations: Conversations of each load phase.
        documents: Questions a task.
        servers_at_once: How many arms run side by side.
    """
    workload = _QUICK_LOAD if quick else _DEFAULT_LOAD
    questions = [
        asked for asked in (_QUICK_QUESTIONS if quick else _DEFAULT_QUESTIONS) if asked.task in tasks
    ]
    if documents is not None:
        questions = [dataclasses.replace(asked, documents=documents) for asked in questions]
    if conversations is not None:
        workload = dataclasses.replace(workload, conversations=conversations)
    return Plan(
        arms=tuple(arms),
        streams=tuple(streams),
        threads=tuple(threads) or ((4,) if quick else (4, 16)),
        workload=workload,
        questions=tuple(questions),
        control=_CONTROL_DOCUMENTS,
        seed=seed,
        servers_at_once=servers_at_once,
        repeats_baseline=not quick,
    )
