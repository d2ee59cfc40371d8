"""Measure blocks of a comparison: both wheels in fresh processes, taking turns burst by burst."""

import dataclasses
import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import harness
from harness import environment, storage
from harness.errors import HarnessError
from harness.gate.cases import ARMS, BASE, CASES, CPU, HEAD, SUITE, WALL, Burst, Case
from harness.gate.wheels import Wheel
from harness.micro import directories
from harness.micro.worker_process import WorkerProcess
from harness.records import Record, Scalar, measured

_TIMEOUT_S: Final = 120.0
_MODULE: Final = "harness.gate.worker"
_ROOT: Final = Path(harness.__file__).resolve().parents[1]
# What an op takes is known from so many bursts, before one arm is slowed down.
_CALIBRATING_BURSTS: Final = 5
# Shares of the loaded files that lie in the page cache.
_EMPTY, _FULL = 0.05, 0.95


@dataclass(frozen=True)
class Plan:
    """What is to be compared, and how.

    Attributes:
        wheels: The wheel of each arm.
        pairs: Pairs of bursts of each case in a block, an even number.
        looks: After how many blocks a verdict is tried.
        slowdown: By how much head is slowed down, 0.1 for 10 %; None leaves both wheels alone.
        cases: The operations.
    """

    wheels: Mapping[str, Wheel]
    pairs: int
    looks: tuple[int, ...]
    slowdown: float | None = None
    cases: Sequence[Case] = CASES


class Blocks:
    """Measures block after block.

    Args:
        plan: What to compare.
        root: A directory on the file system to use; blocks have theirs in it.
        log_dir: Gets the logs of the processes.
    """

    def __init__(self, plan: Plan, root: Path, log_dir: Path) -> None:
        self._plan = plan
        self._root = root
        self._log_dir = log_dir
        self._machine = environment.machine(root)
        self._in_memory = storage.mount_of(root).filesystem in storage.MEMORY_FILESYSTEMS

    def measure(self, comparison: int, number: int) -> list[Record]:
        """Measure one block and return its records. Blocks.

        Raises:
            HarnessError: A wheel cannot be measured, or did something wrong.
        """
        # Who comes first changes from block to block.
        order = ARMS if number % 2 == 0 else ARMS[::-1]
        directory = self._root / f"comparison-{comparison}" / f"block-{number}"
        directory.mkdir(parents=True)
        found: list[Record] = []
        try:
            with ExitStack() as stack:
                workers = {arm: stack.enter_context(self._worker(arm, number, directory)) for arm in order}
                for case in self._plan.cases:
                    found += self._measure_case(case, workers, {"comparison": comparison, "block": number})
        finally:
            directories.retire(directory)
        return found

    @contextmanager
    def _worker(self, arm: str, number: int, directory: Path) -> Iterator[WorkerProcess]:
        """Start a process on a copy of the wheel: where its code comes to lie in memory changes, too."""
        wheel = self._plan.wheels[arm].directory
        copy = wheel.with_name(f"{arm}-{number}")
        try:
            shutil.copytree(wheel, copy, dirs_exist_ok=True)
            variables = {"PYTHONPATH": f"{copy}:{_ROOT}", "KVFS_DISABLE_EXT": ""}
            with WorkerProcess(arm, str(directory / arm), variables, self._log_dir, _MODULE) as worker:
                yield worker
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _measure_case(
        self, case: Case, workers: Mapping[str, WorkerProcess], numbers: Mapping[str, int]
    ) -> list[Record]:
        opened = {arm: _ask(worker, "open", case) for arm, worker in workers.items()}
        for arm, answer in opened.items():
            self._check(arm, numbers["block"], answer)
        delay_ns = self._slow_down(case, workers)
        bursts: dict[str, list[Burst]] = {arm: [] for arm in workers}
        for pair in range(self._plan.pairs):
            for arm in list(workers)[:: 1 if pair % 2 == 0 else -1]:
                bursts[arm].append(_burst(workers[arm], case))
        closed = {arm: _ask(worker, "close", case) for arm, worker in workers.items()}
        found = []
        for arm in ARMS:
            env = {
                **self._machine,
                "wheel": self._wheel(arm, opened[arm]),
                "looks": list(self._plan.looks),
                "slowdown": self._plan.slowdown,
                "delay_ns": delay_ns if arm == HEAD else 0,
                "first": next(iter(workers)),
                "io_engine": opened[arm]["io_engine"],
                "page_cache": self._page_cache(cast("float", closed[arm]["resident"])),
                "proof": {
                    name: sum(getattr(burst, name) for burst in bursts[arm])
                    for name in ("ops", "moved_bytes", "checked", "device_bytes")
                },
            }
            for metric, seconds in ((WALL, "wall_s"), (CPU, "cpu_s")):
                values = [getattr(burst, seconds) / case.ops * 1e6 for burst in bursts[arm]]
                key: dict[str, Scalar] = {
                    **numbers,
                    "op": case.op,
                    "chunk_bytes": case.chunk_bytes,
                    "ops": case.ops,
                }
                found.append(measured(SUITE, key, arm, metric, values, env))
        return found

    def _check(self, arm: str, block: int, opened: Mapping[str, object]) -> None:
        """Refuse to measure something else than the wheel.

        Raises:
            HarnessError: Another kvfs was imported, or not the extension that the wheel has.
        """
        wheel = self._plan.wheels[arm]
        copy = wheel.directory.with_name(f"{arm}-{block}")
        if opened["kvfs"] != str(copy):
            raise HarnessError(f"{arm}: kvfs was imported from {opened['kvfs']}, not from {copy}")
        if wheel.is_native and opened["backend"] != "extension":
            raise HarnessError(
                f"{arm}, {wheel.revision}: this Python does not load the wheel's extension "
                f"({opened['reason']}); build it for the Python that runs the gate"
            )

    def _wheel(self, arm: str, opened: Mapping[str, object]) -> dict[str, str]:
        wheel = self._plan.wheels[arm]
        return {"revision": wheel.revision, "sha256": wheel.sha256, "backend": str(opened["backend"])}

    def _page_cache(self, share: float) -> str:
        if self._in_memory:
            return "is the file system"
        return "empty" if share < _EMPTY else "full" if share > _FULL else "partly full"

    def _slow_down(self, case: Case, workers: Mapping[str, WorkerProcess]) -> int:
        """Make each op of head compute longer by a share of what it takes; return by how many nanoseconds."""
        if self._plan.slowdown is None:
            return 0
        # Both arms, since the switch itself takes a little.
        for worker in workers.values():
            _ask(worker, "slow", case, delay_ns=0)
        cpu_s = statistics.median(_burst(workers[BASE], case).cpu_s for _ in range(_CALIBRATING_BURSTS))
        delay_ns = round(cpu_s / case.ops * self._plan.slowdown * 1e9)
        _ask(workers[HEAD], "slow", case, delay_ns=delay_ns)
        return delay_ns


def _ask(worker: WorkerProcess, what: str, case: Case, **values: object) -> dict[str, object]:
    request = {"do": what, "case": dataclasses.asdict(case), **values}
    return worker.exchange(json.dumps(request).encode() + b"\n", _TIMEOUT_S)


def _burst(worker: WorkerProcess, case: Case) -> Burst:
    return Burst(**_ask(worker, "burst", case))  # type: ignore[arg-type]  # a worker's own line
