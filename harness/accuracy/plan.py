"""What an accuracy run asks of which servers, decided before the first one starts."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness.accuracy.lm_eval import CONCURRENCY, GSM8K, RULER, Questions
from harness.arms import TOKENS_PER_CHUNK, Arm
from harness.plan import COLD, DAMAGED, WARM

TASKS: Final = (*RULER, GSM8K)
# Scored between 0 and 1; the others are right or wrong.
GRADED: Final = frozenset({"ruler_vt", "ruler_cwe", "ruler_fwe"})
ON: Final = "on"
OFF: Final = "off"

# As short as they may be for damage to one chunk in ten to hit many (power.py), and as few as can pass
# (gates.toml). ruler_vt and ruler_cwe cannot make shorter ones: below 880 tokens of this model's, the latter
# makes lists without a word. Answers have what their task needs.
_RULER: Final = (
    Questions("niah_single_1", 896, 20, answer_tokens=16, numbered=True),
    Questions("ruler_vt", 896, 6, answer_tokens=20, numbered=True),
    Questions("ruler_cwe", 896, 7, answer_tokens=24, numbered=True),
    Questions("ruler_fwe", 512, 7, answer_tokens=20, numbered=True),
)
# 25 examples and their question; a model has to take so many tokens.
_GSM8K: Final = Questions(GSM8K, 7168, 24, answer_tokens=256)
DEFAULT_TASKS: Final = RULER
QUICK_TASKS: Final = (RULER[0],)
DEFAULT_SEED: Final = 57912
_N_THREADS: Final = 4
_MODEL_LEN_MIN: Final = 4096
_HOST_BYTES_MIN: Final = 256 * 1024**2
# The directory of one arm, and what damage keeps; answers fill further chunks.
_DISK_MARGIN: Final = 1.5

# Seconds on two cores, only to tell how much time is left; what is measured corrects them.
_SECONDS_START: Final = 30.0
_SECONDS_STOP: Final = 3.0
_SECONDS_CALL: Final = 1.5
# RULER's documents are somewhat shorter than was asked for.
_SECONDS_COLD_TOKEN: Final = 0.0026
_SECONDS_WARM_TOKEN: Final = 0.0003
_SECONDS_ANSWER_TOKEN: Final = 0.012
_SECONDS_RESET: Final = 2.0


@dataclass(frozen=True)
class Pass:
    """All documents asked once.

    Attributes:
        phase: COLD, WARM or DAMAGED.
        repetition: The number of the pass among those of its kind.
    """

    phase: str
    repetition: int = 0


@dataclass(frozen=True)
class Stage:
    """One server: what it is asked between its start and its end.

    Attributes:
        arm: Which way of serving.
        checksums: ON where the tier verifies what it reads.
        passes: In order.
    """

    arm: Arm
    checksums: str
    passes: tuple[Pass, ...]

    @property
    def title(self) -> str:
        """What to call it on the terminal."""
        off = ", checksums off" if self.arm.engine and self.checksums == OFF else ""
        return f"{self.arm.name}{off}"

    @property
    def phases(self) -> str:
        """Which kinds of passes it has."""
        return ", ".join(dict.fromkeys(each.phase for each in self.passes))

    @property
    def name(self) -> str:
        """What to call its files."""
        return f"{self.arm.name}-checksums-{self.checksums}-{self.passes[0].phase}"


@dataclass(frozen=True)
class Plan:
    """All choices of one run.

    Attributes:
        arms: Which ways of serving; the first is the baseline.
        questions: What lm-eval asks.
        seed: Decides which chunks the control damages.
        repetitions: How often each warm pass and each control is made.
    """

    arms: tuple[Arm, ...]
    questions: tuple[Questions, ...]
    seed: int
    repetitions: int

    @property
    def n_threads(self) -> int:
        """Threads of the disk tier."""
        return _N_THREADS

    @property
    def max_model_len(self) -> int:
        """The most tokens that a prompt and its answer have."""
        return max(_MODEL_LEN_MIN, *(asked.max_tokens for asked in self.questions))

    @property
    def documents(self) -> int:
        """Documents of all tasks."""
        return sum(asked.documents for asked in self.questions)

    def stages(self) -> list[Stage]:
        """Return the servers in order; those of one arm share a directory.

        Warm passes of kvfs come after a restart. vLLM's own tier, whose restart is not ours to prove, has one
        server, which drops its host memory before each pass but the first: a start takes a minute. Damage is
        repaired after each pass, so that a server without checksums can read what one with them has stored.
        One tier without checksums is enough: it shows that the gate can fail, not what the tier does. vLLM's
        own has none, otherwise one of kvfs's engines is asked.
        """
        has_stock = any(arm.offloads and not arm.engine for arm in self.arms)
        first = None if has_stock else next((arm for arm in self.arms if arm.engine), None)
        stages = []
        for arm in self.arms:
            checksums = ON if arm.engine else OFF
            numbers = range(self.repetitions)
            warm = tuple(Pass(phase, number) for number in numbers for phase in (WARM, DAMAGED))
            if not arm.engine:
                stages.append(Stage(arm, checksums, (Pass(COLD), *(warm if arm.offloads else ()))))
                continue
            stages.append(Stage(arm, checksums, (Pass(COLD),)))
            stages.append(Stage(arm, checksums, warm))
            if arm == first:
                stages.append(Stage(arm, OFF, tuple(Pass(DAMAGED, number) for number in numbers)))
        return stages

    def host_bytes(self, chunk_size_bytes: int) -> int:
        """Return a size of the primary tier that holds what is under way at a time, twice."""
        chunks = math.ceil(max(asked.max_tokens for asked in self.questions) / TOKENS_PER_CHUNK)
        return max(_HOST_BYTES_MIN, 2 * CONCURRENCY * chunks * chunk_size_bytes)

    def disk_bytes(self, chunk_size_bytes: int) -> int:
        """Return what the run writes at most at a time: the directory of one arm."""
        chunks = sum(
            asked.documents * math.ceil(asked.max_tokens / TOKENS_PER_CHUNK) for asked in self.questions
        )
        return math.ceil(chunks * chunk_size_bytes * _DISK_MARGIN)

    def seconds(self) -> Iterator[float]:
        """Yield about how long each step takes: of each server the start, the passes and the end."""
        for stage in self.stages():
            yield _SECONDS_START
            yield from (self._pass_seconds(each.phase) for each in stage.passes)
            yield _SECONDS_STOP

    def _pass_seconds(self, phase: str) -> float:
        a_token = _SECONDS_COLD_TOKEN if phase == COLD else _SECONDS_WARM_TOKEN
        return _SECONDS_RESET + sum(
            _SECONDS_CALL
            + asked.documents
            * (asked.sequence_tokens * a_token + asked.answer_tokens * _SECONDS_ANSWER_TOKEN)
            for asked in self.questions
        )

    def describe(self) -> dict[str, object]:
        """Return what a record's `env` says about the run."""
        return {
            "questions": [dataclasses.asdict(asked) for asked in self.questions],
            "seed": self.seed,
            "repetitions": self.repetitions,
            "order": [f"{stage.title}: {stage.phases}" for stage in self.stages()],
        }


def make(
    arms: Sequence[Arm],
    tasks: Sequence[str],
    *,
    seed: int,
    documents: int | None = None,
    repetitions: int = 1,
    gsm8k_dir: str = "",
) -> Plan:
    """Return the plan of a run.

    Args:
        arms: Which ways of serving, the baseline among them.
        tasks: lm-eval's.
        seed: Decides which chunks the control damages.
        documents: Of each task; None is each task's own number.
        repetitions: How often each warm pass and each control is made.
        gsm8k_dir: Local copy of that task's data; "" asks the hub.
    """
    questions = [asked for asked in (*_RULER, _GSM8K) if asked.task in tasks]
    if documents is not None:
        questions = [dataclasses.replace(asked, documents=documents) for asked in questions]
    return Plan(
        arms=tuple(arms),
        questions=tuple(
            dataclasses.replace(asked, data_dir=gsm8k_dir) if asked.task == GSM8K else asked
            for asked in questions
        ),
        seed=seed,
        repetitions=repetitions,
    )
