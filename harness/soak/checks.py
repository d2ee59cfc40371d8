"""What a soak has seen, and the sentences that say what must not have been."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

# The first quarter warms up: caches fill, threads make their rings. What grows after that stays within these.
RSS_GROWTH_MAX_BYTES: Final = 16 << 20
RSS_GROWTH_MAX_SHARE: Final = 0.05
DESCRIPTORS_GROWTH_MAX: Final = 8
THREADS_GROWTH_MAX: Final = 2
# What is still loaded and stored towards the end, of what was: room that is lost, say, ends it all.
WORK_LEFT_MIN_SHARE: Final = 0.1
# A few seconds without work are the machine's; so many samples are half a minute.
WORK_SAMPLES_MIN: Final = 32
# Of what lay on disk; the rest was promised to nobody who is there.
ROOM_LEFT_MIN_SHARE: Final = 0.5
SAMPLES_MIN: Final = 8
# Of so many damaged files that a worker was told to load at once, one at least is still there when it does.
DAMAGES_FOR_A_FIND: Final = 5


@dataclass(frozen=True)
class Sample:
    """One look at the soak.

    Attributes:
        at_s: When, since the start.
        rss_bytes: Memory of the process that lives from the start to the end.
        descriptors: What it has open.
        threads: Its threads.
        physical_bytes: What lies on disk of all that the capacity bounds, while nobody moved.
        loads_per_s: Chunks loaded by all processes since the look before.
        stores_per_s: Chunks stored.
        load_p50_ms: Time of a load's job from its submission on, since the look before.
        load_p99_ms: The longest but one in a hundred.
        store_p50_ms: The same for stores.
        store_p99_ms: The same for stores.
        damaged: Damaged files that loads have found until now.
    """

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    physical_bytes: int
    loads_per_s: float
    stores_per_s: float
    load_p50_ms: float
    load_p99_ms: float
    store_p50_ms: float
    store_p99_ms: float
    damaged: int


@dataclass
class Seen:
    """A whole soak.

    Attributes:
        capacity_bytes: The promise.
        samples: In order.
        counts: Sums over all processes, see `worker.py`; of the last starts with "final" before.
        damages: Times that a file was damaged.
        damaged: Files that were, as "namespace/key".
        found: Files that loads have failed of as damaged, named alike. Two loads can find the same one.
        kills: Processes that were killed and started again.
        restarts: Those that were closed and started again.
        left_temporaries: Files of dead writers after the last start.
        deaths: Processes that ended by themselves, a sentence each.
    """

    capacity_bytes: int
    samples: list[Sample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    damages: int = 0
    damaged: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    kills: int = 0
    restarts: int = 0
    left_temporaries: int = 0
    deaths: list[str] = field(default_factory=list)


def failures(seen: Seen) -> list[str]:
    """Return a sentence on each thing that must not have been; none if all is well."""
    found = list(seen.deaths)
    wrong = seen.counts["wrong"] + seen.counts["final wrong"]
    if wrong:
        found.append(f"{wrong} chunks were served with wrong bytes")
    if errors := seen.counts["errors"] + seen.counts["final errors"]:
        found.append(
            f"{errors} loads or stores failed for a reason that is none; the workers' logs have them"
        )
    if seen.left_temporaries:
        found.append(f"{seen.left_temporaries} temporaries of dead writers were left after the last start")
    over = [sample for sample in seen.samples if sample.physical_bytes > seen.capacity_bytes]
    if over:
        worst = max(over, key=lambda sample: sample.physical_bytes)
        found.append(
            f"the capacity of {seen.capacity_bytes} bytes was exceeded in {len(over)} of {len(seen.samples)} "
            f"samples; the worst had {worst.physical_bytes} at {worst.at_s:.0f} s"
        )
    if unharmed := sorted(seen.found - seen.damaged):
        found.append(
            f"loads of {len(unharmed)} chunks failed as damaged whose files nobody damaged; "
            f"the first is {unharmed[0]}"
        )
    if seen.damages >= DAMAGES_FOR_A_FIND and not seen.found:
        found.append(f"none of {seen.damages} damaged files was found")
    if seen.samples and not (seen.counts["loads"] and seen.counts["stores"]):
        found.append("nothing was stored and loaded")
    return found + _growth(seen.samples)


def _growth(samples: Sequence[Sample]) -> list[str]:
    if len(samples) < SAMPLES_MIN:
        return [f"{len(samples)} samples say nothing about growth; {SAMPLES_MIN} are the least: run longer"]
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def medians(value: Callable[[Sample], float]) -> tuple[float, float]:
        return statistics.median(map(value, early)), statistics.median(map(value, late))

    found = []
    before, after = medians(lambda sample: sample.rss_bytes)
    bound = before * (1 + RSS_GROWTH_MAX_SHARE) + RSS_GROWTH_MAX_BYTES
    if after > bound:
        found.append(
            f"memory grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB, more than "
            f"{RSS_GROWTH_MAX_SHARE:.0%} and {RSS_GROWTH_MAX_BYTES >> 20} MiB"
        )
    for name, limit, value in (
        ("open descriptors", DESCRIPTORS_GROWTH_MAX, lambda sample: sample.descriptors),
        ("threads", THREADS_GROWTH_MAX, lambda sample: sample.threads),
    ):
        before, after = medians(value)
        if after > before + limit:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}, more than {limit}")
    for name, rate in (
        ("loads", lambda sample: sample.loads_per_s),
        ("stores", lambda sample: sample.stores_per_s),
    ):
        before, after = medians(rate)
        if len(samples) >= WORK_SAMPLES_MIN and after < before * WORK_LEFT_MIN_SHARE:
            found.append(
                f"{name} went from {before:.1f} to {after:.1f} a second, less than {WORK_LEFT_MIN_SHARE:.0%}"
            )
    before, after = medians(lambda sample: sample.physical_bytes)
    if len(samples) >= WORK_SAMPLES_MIN and after < before * ROOM_LEFT_MIN_SHARE:
        found.append(
            f"what lies on disk went from {before / 1e6:.1f} to {after / 1e6:.1f} MB, less than "
            f"{ROOM_LEFT_MIN_SHARE:.0%}: room gets lost"
        )
    return found
