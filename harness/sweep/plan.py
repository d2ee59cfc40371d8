"""What a sweep measures, in which order, and what it needs: decided before the first server starts."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness.arms import TOKENS_PER_CHUNK, Arm
from harness.load import Workload
from harness.plan import COLD, HOST, WARM
from harness.sweep.scenario import Scenario, Setup, Threads

STAGES: Final = (COLD, WARM)
_PHASES: Final = (COLD, HOST, WARM)
# Streams of different numbers share no prompt.
_SEED_DISTANCE: Final = 1000
# Prompts are now and then some tokens longer than they were asked to be, and a server is warmed up.
_MARGIN: Final = 1.25
# Host memory that does not hold two of the longest conversations cannot serve one.
_HOST_CONVERSATIONS_MIN: Final = 2
_GIB: Final = 1024**3

# Seconds on two cores, only to tell how much time is left; what is measured corrects them.
SECONDS_PREPARE: Final = 30.0
_SECONDS_START: Final = 60.0
_SECONDS_STOP: Final = 3.0
_SECONDS_RUN: Final = 3.0
_SECONDS_A_TOKEN: Final = 0.003
_SECONDS_AN_ANSWERED_TOKEN: Final = 0.09


@dataclass(frozen=True)
class Leg:
    """What one arm does with one number of threads: the unit that is measured whole or not at all.

    A leg with a disk tier runs two servers, before and after the restart; its directory is its own.

    Attributes:
        scenario: Name of the scenario.
        arm: Which way of serving.
        threads: Of its disk tier.
    """

    scenario: str
    arm: Arm
    threads: Threads

    @property
    def title(self) -> str:
        """What to call it on the terminal."""
        threads = f", {self.threads} threads" if self.threads.read else ""
        return f"{self.arm.name}{threads}"

    @property
    def name(self) -> str:
        """What to call its files."""
        threads = f"-t{self.threads.read}-{self.threads.write}" if self.threads.read else ""
        return f"{self.scenario}-{self.arm.name}{threads}"

    def phases(self, stage: str) -> tuple[str, ...]:
        """Return what is measured of it before ("cold") or after ("warm") the restart."""
        if stage == WARM:
            return (WARM,) if self.arm.offloads else ()
        return (COLD, HOST) if self.arm.host_only else (COLD,)


@dataclass(frozen=True)
class Step:
    """One measurement: a phase of a leg with a number of streams; phase "" warms its server up."""

    leg: Leg
    phase: str = ""
    streams: int = 0


@dataclass(frozen=True)
class Study:
    """A scenario at one size.

    Attributes:
        scenario: Which.
        setup: The size, and what is varied.
        seed: Decides the prompts.
    """

    scenario: Scenario
    setup: Setup
    seed: int

    @property
    def workload(self) -> Workload:
        """What a phase asks, but for the number of conversations."""
        return self.scenario.workload(self.setup)

    def workload_for(self, streams: int) -> Workload:
        """Return what a phase with so many streams asks; each stream has at least one conversation."""
        return dataclasses.replace(self.workload, conversations=max(self.setup.conversations, streams))

    def seed_for(self, streams: int) -> int:
        """Return the seed of a number of streams: the same for all arms, another for each number."""
        return self.seed + _SEED_DISTANCE * streams

    def legs(self) -> list[Leg]:
        """Return what is to be measured, in no order."""
        return [leg for group in self.groups(1) for leg in group]

    def groups(self, size: int) -> list[list[Leg]]:
        """Return the legs in the order of their measurement; those of a group run side by side.

        Arms that share a group are measured in turns, and the next number of threads begins with the arm that
        was the last. Arms without threads fill groups that have room, the others have groups in the middle.

        Args:
            size: How many servers run at a time.
        """
        name = self.scenario.name
        tiers = [arm for arm in self.setup.arms if arm.offloads]
        plain = [Leg(name, arm, Threads()) for arm in self.setup.arms if not arm.offloads]
        groups: list[list[Leg]] = []
        for index, threads in enumerate(self.setup.threads if tiers else ()):
            order = tiers if index % 2 == 0 else tiers[::-1]
            legs = [Leg(name, arm, threads) for arm in order]
            groups += [legs[start : start + size] for start in range(0, len(legs), size)]
        for group in groups:
            while plain and len(group) < size:
                group.append(plain.pop(0))
        middle = len(groups) // 2
        groups[middle:middle] = [plain[start : start + size] for start in range(0, len(plain), size)]
        return groups

    def stored_chunks(self) -> int:
        """Return about how many chunks the cold phases of a leg store at most."""
        work = self.workload
        prefix = math.ceil(work.prefix_tokens / TOKENS_PER_CHUNK)
        own = math.ceil(work.conversation_tokens / TOKENS_PER_CHUNK) - prefix
        total = 0
        for streams in self.setup.streams:
            conversations = self.workload_for(streams).conversations
            total += min(conversations, work.prefix_count) * prefix + conversations * own
        return math.ceil(total * _MARGIN)

    def host_bytes(self, chunk_size_bytes: int) -> int:
        """Return the size of host memory's tier."""
        if self.setup.host_gib is not None:
            return math.ceil(self.setup.host_gib * _GIB)
        longest = math.ceil(self.workload.conversation_tokens / TOKENS_PER_CHUNK)
        chunks = max(
            _HOST_CONVERSATIONS_MIN * longest, math.ceil(self.stored_chunks() * self.setup.host_share)
        )
        return chunks * chunk_size_bytes

    def disk_bytes(self, chunk_size_bytes: int, servers_at_once: int) -> int:
        """Return what is written at most at a time: the directories of one group."""
        tiers = max(
            (sum(leg.arm.offloads for leg in group) for group in self.groups(servers_at_once)), default=0
        )
        return tiers * self.stored_chunks() * chunk_size_bytes

    def options(self) -> dict[str, object]:
        """Return all that decides what is measured, in plain values: two studies alike have the same."""
        setup = self.setup
        return {
            "scale": setup.scale,
            "streams": list(setup.streams),
            "threads": [str(threads) for threads in setup.threads],
            "arms": [arm.name for arm in setup.arms],
            "workload": dataclasses.asdict(self.workload),
            "host_gib": setup.host_gib,
            "host_share": setup.host_share,
            "seed": self.seed,
            "source": self.scenario.source,
        }

    def steps(self, group: Sequence[Leg], stage: str) -> Iterator[Step]:
        """Yield what is measured while a group's servers of one stage run; the arms alternate."""
        order = [leg for leg in group if leg.phases(stage)]
        if stage == WARM:
            order.reverse()
        yield from (Step(leg) for leg in order)
        for phase in _PHASES:
            for streams in self.setup.streams:
                yield from (Step(leg, phase, streams) for leg in order if phase in leg.phases(stage))
                order.reverse()

    def seconds(self, group: Sequence[Leg]) -> Iterator[float]:
        """Yield about how long each step of a group takes, server start and stop included."""
        for stage in STAGES:
            steps = list(self.steps(group, stage))
            if not steps:
                continue
            yield _SECONDS_START
            yield from (self._step_seconds(step) for step in steps)
            yield _SECONDS_STOP

    def _step_seconds(self, step: Step) -> float:
        if not step.phase:
            return 2 * self.workload.prefix_tokens * _SECONDS_A_TOKEN
        work = self.workload_for(step.streams)
        if work.duration_s:
            return work.duration_s + _SECONDS_RUN
        begins = work.prefix_tokens + work.spread.get("first_prompt_tokens", work.prompt_tokens)
        turn = work.prompt_tokens + work.output_tokens
        # A turn whose earlier chunks are there computes what is left of the last one, and itself.
        least = work.turns * (TOKENS_PER_CHUNK / 2 + turn)
        has_tier = step.leg.arm.offloads or step.leg.arm.host_only
        if not has_tier:
            computed = work.turns * (begins + turn * (work.turns - 1) / 2)
        else:
            computed = least + (begins if step.phase == COLD else 0)
        answered = work.turns * work.output_tokens * _SECONDS_AN_ANSWERED_TOKEN / min(step.streams, 2)
        return _SECONDS_RUN + work.conversations * (computed * _SECONDS_A_TOKEN + answered)


def missing(groups: Sequence[Sequence[Leg]], done: Collection[Leg]) -> list[list[Leg]]:
    """Return the groups with what has been measured left out, and none that is empty."""
    left = [[leg for leg in group if leg not in done] for group in groups]
    return [group for group in left if group]
