"""The claims that a benchmark must prove, each decided from its records alone; they fail closed."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import paired
from harness.arms import ARMS, BASELINE, STOCK, TARGET
from harness.load import TASK as LOAD
from harness.plan import COLD, DAMAGED, HOST, WARM
from harness.records import Record


@dataclass(frozen=True)
class Check:
    """One claim.

    Attributes:
        name: What is claimed.
        passed: Whether the records prove it.
        detail: The figures, or what is missing.
    """

    name: str
    passed: bool
    detail: str


class Table:
    """Records by metric and case; several records of one case are runs of it."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def select(self, metric: str, **case: object) -> list[Record]:
        """Return the records of a metric whose case, and arm, agree with what is given."""
        return [
            record
            for record in self._records
            if record.metric == metric and all(_field(record, key) == want for key, want in case.items())
        ]

    def values(self, metric: str, **case: object) -> list[float]:
        """Return their values."""
        return [value for record in self.select(metric, **case) for value in record.values]


def _field(record: Record, key: str) -> object:
    return record.arm if key == "arm" else record.case.get(key)


def evaluate(records: Sequence[Record]) -> list[Check]:
    """Return every check that the records call for, in the order of a report.

    A server that the user started is not restarted, so nothing can be proved about its disk; its records
    call for no check.
    """
    if {record.arm for record in records} == {TARGET}:
        return []
    table = Table(records)
    offloading = sorted(
        {(record.arm, record.case.get("threads")) for record in records if record.arm != BASELINE},
        key=lambda pair: (list(ARMS).index(pair[0]) if pair[0] in ARMS else len(ARMS), str(pair[1])),
    )
    checks = [_same_inputs(records)]
    for arm, threads in offloading:
        where = f"{arm}, {threads} threads"
        case = {"arm": arm, "threads": threads}
        checks += [
            _engine(table, arm, where, case),
            _read_from_disk(table, where, case),
            _cold_is_cold(table, where, case),
            _jobs_succeeded(table, where, case),
            *_faster(table, where, case),
            *_accurate(table, where, case),
            *_waits_less(table, where, case, offloading),
            *_controlled(table, arm, where, case),
        ]
    if not offloading:
        checks += _baseline_measured(table)
    return checks


def _same_inputs(records: Sequence[Record]) -> Check:
    """All arms and phases must have been asked the same."""
    inputs: dict[tuple[object, object], set[object]] = {}
    for record in records:
        if "inputs" in record.case:
            key = (record.case.get("task"), record.case.get("streams"))
            inputs.setdefault(key, set()).add(record.case["inputs"])
    name = "every arm and phase was asked the same"
    differing = [f"{task}, {_streams(streams)}" for (task, streams), seen in inputs.items() if len(seen) > 1]
    if differing:
        return Check(name, False, f"prompts or documents differ: {'; '.join(differing)}")
    return Check(name, bool(inputs), f"{len(inputs)} sets of prompts or documents")


def _engine(table: Table, arm: str, where: str, case: Mapping[str, object]) -> Check:
    """An arm must have run on what its name says."""
    expected = ARMS[arm].engine or "extension"
    engines = {str(record.env.get("engine")) for record in table.select("requests_per_s", **case)}
    return Check(
        f"{where}: runs on its {expected}", engines == {expected}, f"engine: {', '.join(sorted(engines))}"
    )


def _read_from_disk(table: Table, where: str, case: Mapping[str, object]) -> Check:
    """Each warm case must have had tokens from the disk tier, by vLLM's own count."""
    name = f"{where}: warm tokens came from the disk tier"
    found = table.select("tier_hit_tokens", phase=WARM, **case)
    if not found:
        return Check(name, False, "no warm phase was measured")
    without = [_case_name(record) for record in found if sum(record.values) <= 0]
    if without:
        return Check(name, False, f"no token came from disk in {'; '.join(without)}")
    return Check(name, True, f"{sum(sum(record.values) for record in found):,.0f} tokens")


def _cold_is_cold(table: Table, where: str, case: Mapping[str, object]) -> Check:
    """Before the restart nothing may come from disk, or cold and warm are the same thing."""
    name = f"{where}: nothing came from disk before the restart"
    found = [
        record
        for phase in (COLD, HOST)
        for record in table.select("tier_hit_tokens", phase=phase, task=LOAD, **case)
    ]
    if {record.phase for record in found} != {COLD, HOST}:
        return Check(name, False, "no cold or no host phase was measured")
    tokens = sum(sum(record.values) for record in found)
    return Check(name, tokens == 0, f"{tokens:,.0f} tokens")


def _jobs_succeeded(table: Table, where: str, case: Mapping[str, object]) -> Check:
    name = f"{where}: no promotion and no cascade failed"
    counts = table.values("tier_failed_jobs", **case)
    return Check(name, bool(counts) and sum(counts) == 0, f"{sum(counts):.0f} failed")


def _faster(table: Table, where: str, case: Mapping[str, object]) -> Iterator[Check]:
    """The first token of a new conversation must come sooner from disk than computed."""
    streams_seen = sorted({int(str(r.case["streams"])) for r in table.select("ttft_ms", **case)})
    if not streams_seen:
        yield Check(f"{where}: warm is faster than cold", False, "no time to first token was measured")
    for streams in streams_seen:
        name = f"{where}, {_streams(streams)}: warm TTFT is lower than cold"
        cold = table.values("ttft_ms", phase=COLD, streams=streams, turn=1, **case)
        warm = table.values("ttft_ms", phase=WARM, streams=streams, turn=1, **case)
        if not cold or not warm:
            yield Check(name, False, f"{len(cold)} cold and {len(warm)} warm requests")
            continue
        before, after = statistics.median(cold), statistics.median(warm)
        yield Check(name, after < before, f"median {before:,.0f} ms cold, {after:,.0f} ms warm")


def _accurate(table: Table, where: str, case: Mapping[str, object]) -> Iterator[Check]:
    """Answers from disk, and those given while storing, must be as right as the baseline's."""
    tasks = sorted({str(record.case["task"]) for record in table.select("accuracy")})
    for phase in (COLD, WARM):
        name = f"{where}: {phase} answers are as right as the baseline's"
        before: list[float] = []
        after: list[float] = []
        problems = []
        sentences = []
        for task in tasks:
            baseline = _first(table.select("accuracy", task=task, phase=COLD, arm=BASELINE)) or _first(
                table.select("accuracy", task=task, phase=COLD, **case)
            )
            scores = _first(table.select("accuracy", task=task, phase=phase, **case))
            if baseline is None or scores is None or len(baseline.values) != len(scores.values):
                problems.append(f"{task}: no scores to compare")
                continue
            comparison = paired.compare(baseline.values, scores.values)
            sentences.append(f"{task}: {comparison.sentence()}")
            if not comparison.holds:
                problems.append(f"{task}: worse than chance explains")
            before += baseline.values
            after += scores.values
        if after and len(tasks) > 1 and not paired.compare(before, after).holds:
            problems.append("all tasks together: worse than chance explains")
        if tasks:
            yield Check(name, not problems, "; ".join([*problems, *sentences]))


def _controlled(table: Table, arm: str, where: str, case: Mapping[str, object]) -> Iterator[Check]:
    """Damaged chunks must make the stock tier's answers wrong, or nothing is controlled; kvfs's never."""
    if not table.select("control_accuracy"):
        return
    cold = _first(table.select("control_accuracy", phase=COLD, **case))
    damaged = _first(table.select("control_accuracy", phase=DAMAGED, **case))
    verifies = bool(ARMS[arm].engine)
    name = f"{where}: " + (
        "damaged chunks are found, and change no answer"
        if verifies
        else "damaged chunks make answers wrong (the control)"
    )
    if cold is None or damaged is None or len(cold.values) != len(damaged.values):
        yield Check(name, False, "no answers from damaged chunks to compare")
        return
    comparison = paired.compare(cold.values, damaged.values)
    found = sum(table.values("control_damaged_chunks", phase=DAMAGED, **case))
    files = sum(table.values("control_damaged_files", phase=DAMAGED, **case))
    served = sum(table.values("control_tier_hit_tokens", phase=DAMAGED, **case))
    if verifies:
        passed = comparison.worse + comparison.better == 0 and found > 0
        detail = f"{comparison.sentence()}; {found:.0f} chunks found damaged, of {files:.0f} files"
    else:
        passed = not comparison.holds and served > 0
        detail = f"{comparison.sentence()}; {served:.0f} tokens served from {files:.0f} damaged files"
    yield Check(name, passed, detail)


def _waits_less(
    table: Table, where: str, case: Mapping[str, object], offloading: Sequence[tuple[str, object]]
) -> Iterator[Check]:
    """Fewer lookups of kvfs than of vLLM's own tier may end in RETRY, which costs the request a step."""
    if not ARMS[str(case["arm"])].engine:
        return
    is_compared = (STOCK, case["threads"]) in offloading
    name = f"{where}: " + (
        f"fewer warm lookups wait than with {STOCK}" if is_compared else "no warm lookup waits"
    )
    ours = _retried(table, case)
    theirs = _retried(table, {**case, "arm": STOCK})
    retries, stock_retries = sum(ours.values()), sum(theirs.values())
    if not ours or (is_compared and ours.keys() != theirs.keys()):
        yield Check(name, False, f"RETRYs counted in {len(ours)} warm cases, with {STOCK} in {len(theirs)}")
    elif not is_compared:
        yield Check(name, retries == 0, f"{retries:,.0f} RETRYs")
    else:
        # Where even the stock tier had to wait for nothing, nothing was looked up, or nothing counted.
        passed = retries < stock_retries
        yield Check(name, passed, f"{retries:,.0f} RETRYs, {stock_retries:,.0f} with {STOCK}")


def _retried(table: Table, case: Mapping[str, object]) -> dict[str, float]:
    """Return by case how many warm lookups ended in RETRY."""
    found = table.select("tier_retried_lookups", phase=WARM, **case)
    return {_case_name(record): sum(record.values) for record in found}


def _baseline_measured(table: Table) -> list[Check]:
    found = table.values("requests_per_s", arm=BASELINE)
    return [Check("the baseline was measured", bool(found), f"{len(found)} runs")]


def _first(records: Sequence[Record]) -> Record | None:
    return records[0] if records else None


def _case_name(record: Record) -> str:
    return f"{record.case.get('task')}, {_streams(record.case.get('streams'))}"


def _streams(count: object) -> str:
    return f"{count} stream{'' if count == 1 else 's'}"
