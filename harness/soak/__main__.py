"""`python -m harness.soak --minutes N`: mixed load on real files, and whether anything went wrong."""

import tempfile
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from harness import environment
from harness.command_line import run_session
from harness.errors import EXIT_FAILED, EXIT_OK
from harness.progress import Progress
from harness.records import RecordLog, Scalar
from harness.soak import report
from harness.soak.checks import Seen, failures
from harness.soak.session import Plan, Session

# A line of progress each; the end, with its last starts, is one more.
_STEPS: Final = 20
_VERIFY_S: Final = 5.0
_CHUNKS_MIN: Final = 64
_HELP: Final = """Soak kvfs: processes that store, load and evict on one root are killed and started again.

Files are damaged on disk meanwhile. It fails when a wrong byte is served, the capacity is exceeded, damage
is not found, a temporary is left, or memory, descriptors or threads grow. OUT gets records.jsonl with all
samples, soak.md with the table, and soak.png.
"""


@click.command(
    "soak", help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="How long.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("soak-results"),
    show_default=True,
    help="Gets the results.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the chunks lie; a directory of its own is made there and removed.  [default: OUT]",
)
@click.option(
    "--processes",
    type=click.IntRange(2, 16),
    default=3,
    show_default=True,
    help="How many at once; the third has a namespace of its own.",
)
@click.option(
    "--capacity-mib",
    type=click.IntRange(8, 1 << 20),
    default=64,
    show_default=True,
    help="The capacity that they share.",
)
@click.option(
    "--chunk-kib", type=click.IntRange(1, 1 << 15), default=64, show_default=True, help="Size of a chunk."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is drawn.")
def main(
    minutes: float,
    out: Path,
    directory: Path | None,
    processes: int,
    capacity_mib: int,
    chunk_kib: int,
    seed: int,
) -> None:
    """Soak, and end with the status of how it went."""
    if capacity_mib << 10 < chunk_kib * _CHUNKS_MIN:
        raise click.UsageError(
            f"--capacity-mib {capacity_mib} has room for less than {_CHUNKS_MIN} chunks of {chunk_kib} KiB: "
            "raise it, or lower --chunk-kib"
        )
    plan = Plan(minutes * 60, processes, capacity_mib << 20, chunk_kib << 10, seed)
    places = out.resolve(), (directory or out).resolve()
    run_session("soak", lambda console: _run(console, plan, *places), "nothing that it stored is left")


def _run(console: Console, plan: Plan, out: Path, directory: Path) -> int:
    log_dir = out / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="kvfs-soak-", dir=directory))
    machine = environment.machine(directory)
    progress = _Steps(console, plan.duration_s)
    seen = progress.run(Session(plan, root, log_dir, progress.on_sample))
    case: dict[str, Scalar] = {
        "minutes": plan.duration_s / 60,
        "processes": plan.processes,
        "capacity_bytes": plan.capacity_bytes,
        "chunk_bytes": plan.chunk_size_bytes,
        "dir_fs": str(machine["filesystem"]),
    }
    report.write_records(RecordLog(out), seen, case, {**machine, "seed": plan.seed})
    table = report.grid(seen)
    table.print(console)
    found = failures(seen)
    verdict = [f"FAILED: {text}" for text in found] or ["nothing was wrong, and nothing grew"]
    title = (
        f"{plan.processes} processes, chunks of {plan.chunk_size_bytes >> 10} KiB, {machine['filesystem']}, "
        f"{seen.kills} kills"
    )
    lines = [f"# Soak, {plan.duration_s / 60:.1f} minutes: {title}", table.markdown(), *verdict]
    (out / "soak.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    if seen.samples:
        report.draw(seen, out / "soak.png", title)
    for name in ("records.jsonl", "soak.md", "soak.png"):
        console.print(str(out / name), markup=False, highlight=False, soft_wrap=True)
    for text in verdict:
        console.print(text, style="red" if found else "", markup=False, highlight=False, soft_wrap=True)
    return EXIT_FAILED if found else EXIT_OK


class _Steps:
    """Shows how far a soak is: one step for each twentieth of its time."""

    def __init__(self, console: Console, duration_s: float) -> None:
        self._step_s = duration_s / _STEPS
        self._progress = Progress(console, [*[self._step_s] * _STEPS, _VERIFY_S])
        self._shown = 0
        self._step = self._progress.step("starting")

    def run(self, session: Session) -> Seen:
        """Run it, and return what it has seen."""
        with self._progress:
            self._step.__enter__()
            seen = session.run()
            self._step.__exit__(None, None, None)
        return seen

    def on_sample(self, seen: Seen) -> None:
        """Go a step further when it is time, with what there is by now."""
        while self._shown < _STEPS and seen.samples[-1].at_s >= (self._shown + 1) * self._step_s:
            self._shown += 1
            self._step.__exit__(None, None, None)
            counts = seen.counts
            done = f"{counts['loads']:,} loads, {counts['stores']:,} stores, {seen.kills} kills"
            self._step = self._progress.step(f"{done}, {counts['wrong']} wrong")
            self._step.__enter__()


if __name__ == "__main__":
    main(prog_name="python -m harness.soak")
