"""Run a soak: keep processes at work, look at them, kill some, damage files, and verify what is left."""

import contextlib
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.micro.summary import percentile
from harness.soak.checks import SAMPLES_MIN, Sample, Seen
from harness.soak.chunks import bounded_bytes, entries, key_of, nameless_bytes, path_of
from harness.soak.processes import Worker
from harness.soak.worker import Job

# Looks are at least so many and not much more: a look stops the processes for some milliseconds.
_SAMPLES: Final = 240
_SAMPLE_PERIOD_MIN_S: Final = 1.0
# The first process lives from the start to the end; so often another one ends, and a new one starts.
_ENDS: Final = 24
_END_PERIOD_MIN_S: Final = 4.0
# Of those that end; the others close.
_KILLED_SHARE: Final = 0.7
_DAMAGES: Final = 200
_DAMAGE_PERIOD_MIN_S: Final = 0.25
_NAMESPACE: Final = "space"
_OTHER: Final = "other"
_OTHERS_PLACE: Final = 2
# Different keys, as multiples of what the capacity holds.
_KEYS_A_ROOM: Final = 3


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        duration_s: How long.
        processes: How many at once, the third of them in another namespace of the same root; two at least.
        capacity_bytes: What they share.
        chunk_size_bytes: Size of a chunk.
        seed: Of what is drawn.
    """

    duration_s: float
    processes: int
    capacity_bytes: int
    chunk_size_bytes: int
    seed: int

    def period_s(self, times: int, least_s: float) -> float:
        """Return how often something comes that is to come so many times, if that is not too often."""
        return max(least_s, self.duration_s / times)


class Session:
    """One soak.

    Args:
        plan: What is to be done.
        root: An empty directory for the chunks, which is removed at the end.
        log_dir: Gets the workers' logs.
        on_sample: Called after each look.
    """

    def __init__(self, plan: Plan, root: Path, log_dir: Path, on_sample: Callable[[Seen], None]) -> None:
        self._plan = plan
        self._root = root
        self._log_dir = log_dir
        self._on_sample = on_sample
        self._random = random.Random(plan.seed)
        self._workers: list[Worker] = []
        self._started = 0
        # Of those that have ended.
        self._ended: Counter[str] = Counter()
        self.seen = Seen(plan.capacity_bytes)

    def run(self) -> Seen:
        """Do it, and return what was seen.

        Raises:
            HarnessError: A process does not start, stop or end.
        """
        try:
            for place in range(self._plan.processes):
                self._workers.append(self._start(place))
            self._work()
            for worker in self._workers:
                worker.close()
                self._bury(worker)
            self._workers.clear()
            self._verify()
        finally:
            for worker in self._workers:
                worker.go_on()
                worker.end()
            shutil.rmtree(self._root, ignore_errors=True)
        return self.seen

    def _work(self) -> None:
        begun_s = time.monotonic()
        periods_s = {
            self._sample: self._plan.period_s(_SAMPLES, _SAMPLE_PERIOD_MIN_S),
            self._damage: self._plan.period_s(_DAMAGES, _DAMAGE_PERIOD_MIN_S),
            self._end_one: self._plan.period_s(_ENDS, _END_PERIOD_MIN_S),
        }
        due_s = {action: begun_s + period_s for action, period_s in periods_s.items()}
        self._begun_s = self._sampled_s = begun_s
        self._counted: Counter[str] = Counter()
        end_s = begun_s + self._plan.duration_s
        while not self.seen.deaths:
            action = min(due_s, key=lambda each: due_s[each])
            # Where starts of processes take their time, a short soak is longer than asked for.
            if due_s[action] > end_s and len(self.seen.samples) >= SAMPLES_MIN:
                break
            time.sleep(max(0.0, due_s[action] - time.monotonic()))
            self.seen.deaths += filter(None, (worker.death() for worker in self._workers))
            if not self.seen.deaths:
                action()
            # What was late is not done twice in a row.
            due_s[action] = max(due_s[action], time.monotonic() - periods_s[action] / 2) + periods_s[action]

    def _start(self, place: int) -> Worker:
        self._started += 1
        name = f"soak-{place}-{self._started}"
        return Worker(
            name,
            self._job(_OTHER if place == _OTHERS_PLACE else _NAMESPACE, seed=self._started),
            self._log_dir,
        )

    def _job(self, namespace: str, seed: int, *, verify: bool = False) -> Job:
        plan = self._plan
        return Job(
            str(self._root / namespace),
            str(self._root),
            plan.capacity_bytes,
            plan.chunk_size_bytes,
            _KEYS_A_ROOM * plan.capacity_bytes // plan.chunk_size_bytes,
            plan.seed + seed,
            verify,
        )

    def _sample(self) -> None:
        for worker in self._workers:
            worker.stop()
        device = self._root.stat().st_dev
        physical = bounded_bytes(self._root) + sum(
            nameless_bytes(worker.pid, device) for worker in self._workers
        )
        rss_bytes, descriptors, threads = self._workers[0].resources()
        for worker in self._workers:
            worker.go_on()
            worker.listen()
        now_s = time.monotonic()
        counts = self._sum()
        took_s, self._sampled_s = now_s - self._sampled_s, now_s
        rates = {name: max(0, counts[name] - self._counted[name]) / took_s for name in ("loads", "stores")}
        self._counted = counts
        times = {
            kind: [ms for worker in self._workers for ms in worker.take_latencies(kind)]
            for kind in ("load", "store")
        }
        p50, p99 = (
            {kind: percentile(values, percent) if values else 0.0 for kind, values in times.items()}
            for percent in (50.0, 99.0)
        )
        self.seen.counts = counts
        self.seen.samples.append(
            Sample(
                round(now_s - self._begun_s, 3),
                rss_bytes,
                descriptors,
                threads,
                physical,
                round(rates["loads"], 1),
                round(rates["stores"], 1),
                round(p50["load"], 3),
                round(p99["load"], 3),
                round(p50["store"], 3),
                round(p99["store"], 3),
                counts["damaged"],
            )
        )
        self._on_sample(self.seen)

    def _sum(self) -> Counter[str]:
        total = Counter(self._ended)
        for worker in self._workers:
            total += worker.counts
        return total

    def _damage(self) -> None:
        """Damage the file of a chunk, and have it loaded by a process that may know it."""
        worker = self._random.choice(self._workers)
        key = key_of(int(self._random.random() ** 2 * worker.job.keys))
        path = Path(worker.job.base) / path_of(key)
        name = f"{Path(worker.job.base).name}/{key.hex()}"
        # It may be evicted at any instant, or not be there.
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            self.seen.damaged.add(name)
            if self._random.random() < 0.25:  # noqa: PLR2004 - a quarter
                os.ftruncate(file.fileno(), self._plan.chunk_size_bytes // 2)
            else:
                place = self._random.randrange(self._plan.chunk_size_bytes)
                (byte,) = os.pread(file.fileno(), 1, place) or b"\0"
                os.pwrite(file.fileno(), bytes([byte ^ 1 << self._random.randrange(8)]), place)
            os.fsync(file.fileno())
            self.seen.damages += 1
            worker.load(key)

    def _end_one(self) -> None:
        """Kill a process, or have it close, and start another one in its place."""
        place = self._random.randrange(1, len(self._workers))
        worker = self._workers[place]
        # Of a few ends on a slow machine one at least is a kill.
        if not self.seen.kills or self._random.random() < _KILLED_SHARE:
            worker.kill()
            self.seen.kills += 1
        else:
            if status := worker.close():
                self.seen.deaths.append(f"{worker.name} closed with status {status}")
            self.seen.restarts += 1
        self._bury(worker)
        self._workers[place] = self._start(place)

    def _bury(self, worker: Worker) -> None:
        """Keep what one that has ended had counted."""
        self._ended += worker.counts
        self._keep_found(worker)

    def _keep_found(self, worker: Worker) -> None:
        self.seen.found |= {f"{Path(worker.job.base).name}/{key}" for key in worker.damaged}

    def _verify(self) -> None:
        """Load what is left, by processes that start alone one after the other, and look for leftovers."""
        final: Counter[str] = Counter()
        for namespace in (_NAMESPACE, _OTHER):
            if (self._root / namespace).is_dir():
                worker = Worker(
                    f"soak-verify-{namespace}", self._job(namespace, seed=0, verify=True), self._log_dir
                )
                if status := worker.await_end():
                    self.seen.deaths.append(f"{worker.name} ended with status {status}")
                final += worker.counts
                self._keep_found(worker)
        self.seen.counts = self._ended + Counter({f"final {name}": count for name, count in final.items()})
        self.seen.left_temporaries = sum(entry.name.endswith(".tmp") for entry in entries(self._root))
