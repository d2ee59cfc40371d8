"""The tables and sentences about records of `bench`: for its own report.md, the terminal, and any report."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from rich.console import Console

from harness import checks, paired
from harness.arms import ARMS, BASELINE, TARGET
from harness.checks import Check
from harness.load import TASK as LOAD
from harness.plan import COLD, DAMAGED, HOST, WARM
from harness.records import Record
from harness.report.grid import Grid
from harness.report.model import Section

FILE_NAME: Final = "report.md"
SUITE: Final = "bench"
_PHASES: Final = (COLD, HOST, WARM)
_NOTHING: Final = "-"


def speed(records: Sequence[Record]) -> Grid:
    """Return requests/s, time to first token and output tokens/s for every arm, case and phase."""
    table = checks.Table(records)
    rows = []
    for arm, threads, streams in _cases(records):
        case: dict[str, object] = {"arm": arm, "threads": threads, "streams": streams, "task": LOAD}
        cold = _median(table.values("ttft_ms", phase=COLD, turn=1, **case))
        for phase in _phases(table, case):
            ttft = _median(table.values("ttft_ms", phase=phase, turn=1, **case))
            gain = f"{cold / ttft:.1f}x" if cold and ttft and phase != COLD else _NOTHING
            rows.append(
                [
                    arm,
                    str(threads or _NOTHING),
                    str(streams),
                    phase,
                    _number(_mean(table.values("requests_per_s", phase=phase, **case)), 2),
                    _number(ttft, 0),
                    gain,
                    _number(_median(table.values("ttft_ms", phase=phase, turn=2, **case)), 0),
                    _number(_mean(table.values("output_tokens_per_s", phase=phase, **case)), 1),
                ]
            )
    columns = ("arm", "threads", "streams", "phase", "req/s", "TTFT ms", "vs cold", "turn 2 ms", "out tok/s")
    return Grid("Speed (TTFT ms: median of first turns; turn 2 ms: of second turns)", columns, rows, 4)


def sources(records: Sequence[Record]) -> Grid:
    """Return where the prompt tokens of every load phase came from, and what it cost to ask."""
    table = checks.Table(records)
    metrics = ("computed_tokens", "host_hit_tokens", "tier_hit_tokens")
    rows = []
    for arm, threads, streams in _cases(records):
        case: dict[str, object] = {"arm": arm, "threads": threads, "streams": streams, "task": LOAD}
        for phase in _phases(table, case):
            counts = [table.values(metric, phase=phase, **case) for metric in metrics]
            if not any(counts):
                continue
            read = table.values("storage_read_bytes", phase=phase, **case)
            retries = table.values("tier_retried_lookups", phase=phase, **case)
            steps = table.values("engine_steps", phase=phase, **case)
            rows.append(
                [
                    arm,
                    str(threads or _NOTHING),
                    str(streams),
                    phase,
                    *(_number(_mean(count), 0) for count in counts),
                    _number(statistics.fmean(read) / 1e6 if read else None, 0),
                    _number(_mean(retries), 0),
                    _number(_mean(steps), 1),
                ]
            )
    labels = ("arm", "threads", "streams", "phase")
    columns = (*labels, "computed", "host", "disk", "MB read", "RETRYs", "steps")
    title = (
        "Where prompt tokens came from (vLLM's own counters; MB read: from storage; RETRYs: lookups that "
        "waited a step; steps: until a request had its chunks)"
    )
    return Grid(title, columns, rows, len(labels))


def accuracy(records: Sequence[Record]) -> Grid:
    """Return the accuracy of every arm and task, cold and warm."""
    table = checks.Table(records)
    found = table.select("accuracy")
    arms = _ordered({(record.arm, record.case.get("threads")) for record in found})
    rows = []
    for arm, threads in arms:
        for task in sorted({str(record.case["task"]) for record in found}):
            case: dict[str, object] = {"arm": arm, "threads": threads, "task": task}
            means = [_mean(table.values("accuracy", phase=phase, **case)) for phase in (COLD, WARM)]
            hits = table.values("tier_hit_tokens", phase=WARM, **case)
            documents = len(table.values("accuracy", phase=COLD, **case))
            cells = [_number(mean, 3) for mean in means]
            rows.append(
                [arm, str(threads or _NOTHING), task, str(documents), *cells, _number(_mean(hits), 0)]
            )
    columns = ("arm", "threads", "task", "documents", "cold", "warm", "warm tokens from disk")
    return Grid("Accuracy", columns, rows, 3)


def control(records: Sequence[Record]) -> Grid:
    """Return what became of answers whose chunks were damaged on disk."""
    table = checks.Table(records)
    found = table.select("control_accuracy")
    rows = []
    for arm, threads in _ordered({(record.arm, record.case.get("threads")) for record in found}):
        case: dict[str, object] = {"arm": arm, "threads": threads}
        cold, damaged = (table.values("control_accuracy", phase=phase, **case) for phase in (COLD, DAMAGED))
        counts = (
            table.values(f"control_{name}", phase=DAMAGED, **case)
            for name in ("damaged_files", "damaged_chunks", "tier_hit_tokens")
        )
        rows.append(
            [
                arm,
                str(threads),
                str(len(damaged)),
                _number(_mean(cold), 3),
                _number(_mean(damaged), 3),
                *(_number(_mean(count), 0) for count in counts),
            ]
        )
    columns = ("arm", "threads", "documents", "cold", "damaged", "files damaged", "found", "tokens from disk")
    return Grid("Accuracy after all chunks were damaged on disk", columns, rows, 2)


def section(records: Sequence[Record]) -> Section:
    """Return all tables of `bench`, with what a reader must know."""
    title = "Tables of bench"
    mine = [record for record in records if record.suite == SUITE]
    if not mine:
        return Section(title, missing="`nox -s bench` did not add to these records.")
    grids = [grid for grid in (make(mine) for make in (speed, accuracy, control, sources)) if grid.rows]
    return Section(title, list(explanations(mine)), grids=grids)


def print_result(console: Console, records: Sequence[Record], found: Sequence[Check]) -> None:
    """Draw the tables and the checks."""
    console.print()
    for grid in (speed(records), accuracy(records), control(records)):
        if grid.rows:
            grid.print(console)
    for check in found:
        style = "green" if check.passed else "bold red"
        console.print(f"[{style}]{_verdict(check)}[/]  ", end="")
        console.print(f"{check.name} ({check.detail})", markup=False, highlight=False, soft_wrap=True)
    console.print(conclusion(found), markup=False, highlight=False, style="bold")


def conclusion(found: Sequence[Check]) -> str:
    """Return the sentence that the exit status stands for."""
    failed = sum(not check.passed for check in found)
    if not found:
        return "No check applies: only a server that is restarted can prove that its disk was read."
    if failed:
        return f"FAILED: {failed} of {len(found)} checks did not pass."
    return f"All {len(found)} checks passed."


def markdown(records: Sequence[Record], found: Sequence[Check]) -> str:
    """Return the whole report.

    Args:
        records: At least one.
        found: The checks that were decided from them.
    """
    parts = ["# kvfs benchmark", conclusion(found), "## Results"]
    for grid in (speed(records), accuracy(records), control(records), sources(records)):
        if grid.rows:
            parts += [f"### {grid.title}", grid.markdown()]
    if found:
        parts += [
            "## Checks",
            "\n".join(f"- **{_verdict(check)}** {check.name}: {check.detail}" for check in found),
        ]
    parts += ["## How to read this", *explanations(records), "## Machine and software", _machine(records)]
    return "\n\n".join(parts) + "\n"


def explanations(records: Sequence[Record]) -> Iterable[str]:
    """Yield what a reader must know to read the tables; as Markdown."""
    env = records[0].env
    work = cast("Mapping[str, object]", env.get("workload", {}))
    arms = {record.arm for record in records}
    yield (
        "Absolute figures are those of one machine in one hour; what counts is how arms and phases compare. "
        "**cold**: every conversation is new to the server, its first prompt is computed. **host**: the same "
        "conversations again, answered from host memory. **warm**: the same after a restart, answered from "
        "disk. The device's own prefix cache is off."
    )
    if TARGET in arms:
        yield (
            "The arm `target` is a server that the user started. It was not restarted, so **host** only "
            "means that it was asked the same a second time, whichever of its caches answered, its device's "
            "included."
        )
    if work:
        shared = sum(checks.Table(records).values("shared_prefixes", phase=COLD))
        yield (
            f"Load: guidellm, {work.get('conversations')} conversations of {work.get('turns')} turns a "
            f"phase; each draws one of {work.get('prefix_count')} prefixes of {work.get('prefix_tokens')} "
            f"tokens and adds {work.get('prompt_tokens')} tokens a turn; {work.get('output_tokens')} tokens "
            "are answered, at temperature 0. What is shared: the second turn repeats the first, so that with "
            "a tier its prefix comes from host memory in every phase, the cold one included, and its TTFT is "
            f"shown apart; {shared:.0f} first prompts of the cold phases began with a prefix that an earlier "
            "one had had. Each number of streams has prompts of its own, each thread count a server and a "
            "directory of its own."
        )
    if checks.Table(records).select("tier_retried_lookups"):
        yield (
            "RETRYs: chunks about which the disk tier said RETRY when a request first asked, so that the "
            "request waited a step for the answer. steps: in how many steps the scheduler asked for a "
            "request's chunks, the mean; while they are on their way from disk it asks about once a "
            "millisecond, so that this also counts how long that took."
        )
    questions = cast("Sequence[Mapping[str, object]]", env.get("questions", ()))
    if questions:
        asked = "; ".join(
            f"{question['task']} {question['documents']} documents of {question['sequence_tokens']} tokens"
            for question in questions
        )
        documents = sum(cast("int", question["documents"]) for question in questions)
        yield (
            f"Accuracy: lm-eval, {asked}, the same for every arm; documents of a task share their "
            "beginnings, which come from host memory even when cold. Compared document by document with "
            f"the arm `{BASELINE}`. {paired.power(documents)}"
        )
    order = cast("Sequence[str]", env.get("order", ()))
    if order:
        yield f"Order of the servers, those side by side with phases that alternate: {'; '.join(order)}."
    drift = _drift(records)
    if drift:
        yield drift
    yield f"Page cache: {_distinct(records, 'page_cache')}. O_DIRECT: {_distinct(records, 'o_direct')}."


def _drift(records: Sequence[Record]) -> str:
    """Say how much the machine changed between the baseline's first and last run."""
    runs = checks.Table(records).select("requests_per_s", arm=BASELINE)
    by_streams: dict[object, list[float]] = {}
    for record in runs:
        by_streams.setdefault(record.case.get("streams"), []).extend(record.values)
    changes = [f"{values[-1] / values[0] - 1:+.0%}" for values in by_streams.values() if len(values) > 1]
    return (
        f"Drift: the baseline's requests/s, last run against first: {', '.join(changes)}." if changes else ""
    )


def _machine(records: Sequence[Record]) -> str:
    env = records[0].env
    versions = cast("Mapping[str, str]", env.get("versions", {}))
    memory_bytes = cast("int", env.get("memory_bytes", 0))
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    device = f"{env.get('device')} ({env.get('device_model')})"
    hardware = f"{env.get('cpu')}, {env.get('cpu_count')} CPUs, {memory_bytes / 1e9:.0f} GB"
    lines = [
        f"- {hardware}, Linux {env.get('kernel')}",
        f"- {env.get('filesystem')} on {device}, mounted {env.get('mount_options')}",
        f"- Python {env.get('python')}; {programs}; model computed in {env.get('dtype')}",
        f"- commit {env.get('commit')}{', with local changes' if env.get('dirty') else ''}",
    ]
    for arm in _ordered({(record.arm, None) for record in records}):
        engines = {str(record.env.get("engine")) for record in records if record.arm == arm[0]}
        lines.append(f"- arm `{arm[0]}`: engine {', '.join(sorted(engines))}")
    return "\n".join(lines)


def _distinct(records: Sequence[Record], key: str) -> str:
    seen = dict.fromkeys(
        f"{record.env[key]} ({record.arm})" if key == "o_direct" else str(record.env[key])
        for record in records
        if key in record.env and (record.arm != BASELINE or key != "o_direct")
    )
    return "; ".join(seen) or "unknown"


def _cases(records: Sequence[Record]) -> list[tuple[str, object, object]]:
    found = {
        (record.arm, record.case.get("threads"), record.case.get("streams"))
        for record in records
        if record.case.get("task") == LOAD
    }
    ordered = _ordered({(arm, threads) for arm, threads, _ in found})
    streams = sorted({case[2] for case in found}, key=lambda value: int(str(value)))
    return [(*pair, count) for pair in ordered for count in streams if (*pair, count) in found]


def _ordered(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    names = [*ARMS, TARGET]
    return sorted(pairs, key=lambda pair: (names.index(pair[0]), int(str(pair[1] or 0))))


def _phases(table: checks.Table, case: Mapping[str, object]) -> list[str]:
    return [phase for phase in _PHASES if table.select("requests_per_s", phase=phase, **case)]


def _verdict(check: Check) -> str:
    return "PASS" if check.passed else "FAIL"


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"
