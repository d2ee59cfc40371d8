"""Tests of runs of lookups in a real worker: vLLM's own tier and kvfs, with the extension and without."""

import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.micro.lookup_requests import (
    GAPS,
    INDEX,
    MEASURE,
    PREPARE,
    PREPARE_SCALE,
    PROBE,
    RESTART,
    START,
    LookupAnswer,
    LookupRequest,
    parse_answer,
    parse_request,
)
from harness.micro.requests import WorkerError
from harness.micro.worker_process import WorkerProcess

TIMEOUT_S = 60.0
FILES = 48
KEYS = 32
TIERS = {
    "fs": ("fs", "stock", "stock"),
    "owner": ("kvfs", "owner", "psync"),
    "shared": ("kvfs", "shared", "psync"),
    "fallback-owner": ("kvfs", "owner", "python"),
    "fallback-shared": ("kvfs", "shared", "python"),
}
KNOWS_ALL = [name for name in TIERS if name.endswith("owner")]


class Lookups:
    """The worker of the lookups, and a directory with files to be found."""

    def __init__(self, worker: WorkerProcess, root: Path) -> None:
        self._worker = worker
        self.root = root
        self._serial = 0

    def ask(self, request: LookupRequest) -> LookupAnswer:
        return parse_answer(self._worker.exchange(request.line(), TIMEOUT_S))

    def request(self, kind: str, name: str, **fields: object) -> LookupRequest:
        self._serial += 1
        tier, mode, io = TIERS[name]
        request = LookupRequest(kind, str(self.root), tier, mode, io, files=FILES, serial=self._serial)
        return replace(request, **fields)  # type: ignore[arg-type]  # its own fields

    def measure(self, name: str, present: int, **fields: object) -> LookupAnswer:
        fields = {"keys": KEYS, "present": present, "requests": 3, **fields}
        return self.ask(self.request(MEASURE, name, **fields))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """One worker for all tests: what it imports takes many seconds."""
    with WorkerProcess("lookup", "lookup", {}, tmp_path_factory.mktemp("log")) as process:
        yield process


@pytest.fixture(scope="module")
def lookups(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Lookups:
    made = Lookups(worker, tmp_path_factory.mktemp("root"))
    made.ask(made.request(PREPARE, "fs"))
    files = list(made.root.rglob("*.bin"))
    assert len(files) == FILES
    assert {path.stat().st_size for path in files} == {4096}
    return made


@pytest.mark.parametrize("present", [KEYS, KEYS // 2, 0], ids=["hit", "half", "miss"])
@pytest.mark.parametrize("name", TIERS)
def test_measure_gives_one_value_a_prompt(lookups: Lookups, name: str, present: int) -> None:
    answer = lookups.measure(name, present)
    cpu_ns, wall_ms = answer.metrics["scheduler_cpu_ns_per_key"], answer.metrics["verdict_wall_ms"]
    retries, own_ms = answer.metrics["retry_steps"], answer.metrics["verdict_own_ms"]
    assert len(cpu_ns) == len(wall_ms) == len(retries) == len(own_ms) == 3
    assert all(value > 0 for value in (*cpu_ns, *own_ms))
    # The model computes for 1 ms after each of them.
    assert all(wall >= own + steps for wall, own, steps in zip(wall_ms, own_ms, retries, strict=True))
    if name == "fs":
        assert min(retries) >= 1, "the stock tier never answers at once"
    elif name in KNOWS_ALL or present == KEYS:
        assert set(retries) == {0}
    else:
        assert min(retries) >= 1, "a shared tier has to ask for what it has not met"
    assert answer.facts["engine"] == ("fallback" if "fallback" in name else "extension")


@pytest.mark.parametrize("name", ["fs", "owner", "fallback-shared"])
def test_busy_run_has_jobs_in_flight_and_proves_what_they_loaded(lookups: Lookups, name: str) -> None:
    answer = lookups.measure(name, KEYS, chunks_per_job=16)
    left = answer.facts["jobs_left_at_verdict"]
    assert isinstance(left, int | float)
    assert 0 <= left <= 32
    assert "jobs_left_at_verdict" not in lookups.measure(name, KEYS).facts


def test_verdict_that_is_wrong_fails_the_run(lookups: Lookups) -> None:
    path = min(lookups.root.rglob("*.bin"))
    elsewhere = path.with_suffix(".gone")
    path.rename(elsewhere)
    try:
        with pytest.raises(
            WorkerError, match=r"48 of 48 keys are there, but the tier's verdict is \d+ in front"
        ):
            lookups.measure("fs", FILES, keys=FILES)
    finally:
        elsewhere.rename(path)
    assert lookups.measure("fs", FILES, keys=FILES).metrics, "the worker does not go on"


def test_load_of_wrong_bytes_beside_lookups_fails_the_run(lookups: Lookups) -> None:
    path = min(lookups.root.rglob("*.bin"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(WorkerError, match="chunks were loaded with wrong bytes"):
            lookups.measure("owner", KEYS, chunks_per_job=FILES)
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("name", TIERS)
def test_probe_says_what_a_tier_is(lookups: Lookups, name: str, tmp_path: Path) -> None:
    facts = lookups.ask(lookups.request(PROBE, name, root=str(tmp_path))).facts
    assert facts["engine"] == ("fallback" if "fallback" in name else "extension")
    assert facts.get("io_engine", "stock") == TIERS[name][2]


def test_mode_that_cannot_be_had_is_named(lookups: Lookups, tmp_path: Path) -> None:
    lookups.ask(lookups.request(PROBE, "owner", root=str(tmp_path)))
    (path,) = tmp_path.rglob("kvfs.lock")
    with path.open() as lock:
        # As another kvfs that shares the directory does.
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(WorkerError, match=r"\[Errno 16\]"):
            lookups.ask(lookups.request(PROBE, "owner", root=str(tmp_path)))


@pytest.fixture(scope="module")
def many(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Lookups:
    made = Lookups(worker, tmp_path_factory.mktemp("many"))
    made.ask(made.request(PREPARE_SCALE, "fs", files=300))
    assert len(list(made.root.rglob("*.bin"))) == 300
    return made


def test_start_knows_all_files_and_says_what_that_took(many: Lookups) -> None:
    answer = many.ask(many.request(START, "owner", files=300))
    assert set(answer.metrics) == {"startup_ms", "scan_files_per_s", "index_bytes_per_key"}
    assert all(value > 0 for values in answer.metrics.values() for value in values)


def test_start_over_other_files_than_were_made_fails(many: Lookups) -> None:
    with pytest.raises(WorkerError, match="301 files are there, 300 in the index"):
        many.ask(many.request(START, "owner", files=301))


def test_restart_takes_the_snapshot_of_the_start_before(many: Lookups) -> None:
    many.ask(many.request(START, "owner", files=300))
    answer = many.ask(many.request(RESTART, "owner", files=300))
    assert answer.metrics["restart_ms"][0] > 0
    assert answer.facts["snapshot_bytes"]
    (snapshot,) = many.root.rglob("kvfs.index")
    snapshot.unlink()
    with pytest.raises(WorkerError, match=r"the last run left no kvfs\.index"):
        many.ask(many.request(RESTART, "owner", files=300))


def test_gaps_are_those_while_the_scan_runs_and_those_at_rest(many: Lookups) -> None:
    answer = many.ask(many.request(GAPS, "owner", files=300, victim_s=0.05))
    # It asks to sleep 200 us.
    assert min(answer.metrics["victim_gap_idle_us"]) >= 200
    assert len(answer.metrics["victim_gap_us"]) >= 1


@pytest.mark.parametrize("keys", [1000, 250_000], ids=["part-of-a-block", "blocks"])
def test_index_finds_every_synthetic_key_and_no_other(lookups: Lookups, keys: int) -> None:
    metrics = lookups.ask(lookups.request(INDEX, "owner", root="", keys=keys)).metrics
    assert set(metrics) == {
        "insert_keys_per_s",
        "index_bytes_per_key",
        "index_bytes_per_key_max",
        "lookup_hit_ns",
        "lookup_miss_ns",
        "prefix_hit_ns_per_key",
        "prefix_miss_ns",
    }
    assert all(value > 0 for (value,) in metrics.values())
    assert metrics["index_bytes_per_key_max"] >= metrics["index_bytes_per_key"]


def test_request_survives_the_line_and_nonsense_is_named() -> None:
    request = LookupRequest(MEASURE, "/somewhere", "fs", "stock", "stock", keys=8)
    assert parse_request(request.line()) == request
    with pytest.raises(WorkerError, match="no request of the lookup benchmark"):
        parse_request(b'{"kind": "measure"}')
