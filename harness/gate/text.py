"""Say in a paragraph and a table what a comparison came to."""

import math
from collections.abc import Mapping, Sequence

from harness.gate import sample
from harness.gate.cases import BASE, HEAD
from harness.gate.judge import Effect, Rules, Verdict
from harness.records import Record
from harness.report import Grid
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

_SHA_DIGITS = 12


def paragraph(
    records: Sequence[Record], verdict: Verdict, rules: Rules, baseline: Sequence[Record] = ()
) -> str:
    """Return what was compared, how many runs, the effect with its interval, and what more would tell.

    Args:
        records: Of the comparison.
        verdict: On them.
        rules: By which it was judged.
        baseline: The records of the other run, where two were compared.
    """
    sentences = [f"{verdict.answer}."]
    if records:
        sentences += [_compared(records, baseline), _runs(records, verdict, bool(baseline))]
    if verdict.effects and verdict.answer != INVALID:
        sentences.append(_effects(verdict, rules))
    sentences.append(_because(verdict))
    return " ".join(sentences)


def _compared(records: Sequence[Record], baseline: Sequence[Record]) -> str:
    of_arm = {record.arm: record for record in records}
    if baseline:
        of_arm[BASE] = next((record for record in baseline if record.arm == HEAD), baseline[0])
    parts = []
    for arm in (BASE, HEAD):
        if arm in of_arm:
            wheel = sample.wheel(of_arm[arm])
            native = "" if wheel["backend"] == "extension" else f", {wheel['backend']}"
            parts.append(f"{arm} ({wheel['revision']}, wheel {wheel['sha256'][:_SHA_DIGITS]}{native})")
    slowdown = records[0].env.get("slowdown")
    slowed = (
        f", of which head was slowed down by {float(str(slowdown)):.0%} of its CPU time" if slowdown else ""
    )
    return f"Compared {' with '.join(parts)}{slowed}."


def _runs(records: Sequence[Record], verdict: Verdict, stored: bool) -> str:
    env = records[0].env
    operations = len({(record.case.get("op"), record.case.get("chunk_bytes")) for record in records})
    turns = "at different times" if stored else "in turns (ABBA)"
    cache = {
        "is the file system": "the file system is the page cache",
        "empty": "what is loaded is not in the page cache",
        "full": "what is loaded is in the page cache",
    }.get(str(env.get("page_cache")), f"page cache {env.get('page_cache')}")
    drift = " What changed in the machine between them is not in the interval." if stored else ""
    return (
        f"{verdict.blocks} blocks of two fresh processes, each with {len(records[0].values)} bursts of "
        f"{operations} operations, {turns}, on {env.get('cpu')} with {env.get('cpu_count')} CPUs, Linux "
        f"{env.get('kernel')}, {env.get('filesystem')} ({cache}).{drift}"
    )


def _effects(verdict: Verdict, rules: Rules) -> str:
    worst = max(
        verdict.effects, key=lambda effect: (effect.answer == REGRESSION, effect.high / effect.at_most)
    )
    interval = f"{rules.confidence:.0%} interval {_percent(worst.low)} to {_percent(worst.high)}"
    return (
        f"Head against base, the line nearest to its threshold or beyond it: {worst.line}, "
        f"{_percent(worst.ratio)} ({interval}), where {_percent(worst.at_most)} is allowed."
    )


def _because(verdict: Verdict) -> str:
    counts = {
        answer: [e for e in verdict.effects if e.answer == answer] for answer in (REGRESSION, INCONCLUSIVE)
    }
    if verdict.answer == INVALID:
        return f"No verdict can be drawn: {'; '.join(verdict.problems)}."
    if verdict.answer == PASS:
        return f"The intervals of all {len(verdict.effects)} lines lie inside their thresholds."
    if verdict.answer == REGRESSION:
        worse = counts[REGRESSION]
        p_value = max(effect.p_value for effect in worse)
        return (
            f"{len(worse)} of {len(verdict.effects)} lines got slower by more than is allowed, with p = "
            f"{p_value:.1g} at most after Holm's correction."
        )
    undecided = counts[INCONCLUSIVE]
    names = ", ".join(str(effect.line) for effect in undecided)
    return f"Undecided: {names}. {_more(undecided, verdict)}"


def _more(undecided: Sequence[Effect], verdict: Verdict) -> str:
    if any(effect.more_blocks is None for effect in undecided):
        near = next(effect for effect in undecided if effect.more_blocks is None)
        return (
            f"{near.line} lies so near to its threshold, for a spread of {math.expm1(near.spread):.1%} from "
            "block to block, that more blocks would not decide it; a quieter machine may."
        )
    more = max(effect.more_blocks or 0 for effect in undecided)
    return (
        f"With this effect and this spread about {more} more blocks would decide: run again with --blocks "
        f"{verdict.blocks + more}."
    )


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def grid(verdict: Verdict, rules: Rules) -> Grid:
    """Return the lines as a table."""
    rows = [
        [
            effect.line.operation,
            effect.line.kind,
            effect.answer,
            f"{effect.base_us:.2f}",
            _percent(effect.ratio),
            f"{_percent(effect.low)} to {_percent(effect.high)}",
            _percent(effect.at_most),
            f"{effect.p_value:.2g}",
            f"{math.expm1(effect.spread):.1%}",
        ]
        for effect in verdict.effects
    ]
    interval = f"{rules.confidence:.0%} interval"
    columns = ["operation", "time", "answer", "base us", "head", interval, "allowed", "p", "spread"]
    return Grid(f"Gate: {verdict.answer}", columns, rows, 3)


def tally(verdicts: Mapping[int, Verdict]) -> Grid:
    """Return the verdicts of a series: how many of each, and what was seen in them."""
    answers = (PASS, REGRESSION, INCONCLUSIVE, INVALID)
    rows = []
    for answer in answers:
        some = [number for number, verdict in verdicts.items() if verdict.answer == answer]
        share = f"{len(some) / len(verdicts):.0%}" if verdicts else "-"
        rows.append([answer, f"{len(some)} of {len(verdicts)}", share, ", ".join(map(str, some)) or "-"])
    return Grid("Series", ["answer", "comparisons", "share", "which"], rows, 1)
