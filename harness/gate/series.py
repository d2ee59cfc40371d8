"""Run comparisons until each is decided, and go on where an interrupted run ended; records are all it has."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from harness import records
from harness.errors import UsageError
from harness.gate import sample
from harness.gate.comparison import Blocks, Plan
from harness.gate.judge import Rules, Verdict, judge
from harness.micro import directories
from harness.progress import Progress
from harness.records import Record, RecordLog
from harness.verdicts import INVALID

MEMORY: Final = Path("/dev/shm")  # noqa: S108  memory, where no disk's mood is measured
# Both arms, all cases of a block.
_NEEDED_BYTES: Final = 512 << 20
_BLOCK_S: Final = 4.0
_PREFIX: Final = "kvfs-gate"


class Series:
    """Comparisons of the same two wheels, in one records.jsonl.

    Args:
        plan: What to compare.
        rules: By which it is judged when it is decided.
        out: Gets the records and logs.
        console: Where progress is shown.

    Raises:
        UsageError: The records there are of something else.
    """

    def __init__(self, plan: Plan, rules: Rules, out: Path, console: Console) -> None:
        self._plan = plan
        self._rules = rules
        self._console = console
        self._log = RecordLog(out)
        self._logs = out / "logs"
        self._logs.mkdir(exist_ok=True)
        self.comparisons: dict[int, list[Record]] = {}
        if self._log.path.is_file():
            self.comparisons = sample.comparisons(records.read(self._log.path))

    def run_one(self, directory: Path) -> int:
        """Make a new comparison; return its number. Blocks."""
        number = max(self.comparisons, default=0) + 1
        self._run([number], directory)
        return number

    def run(self, count: int, directory: Path) -> None:
        """Make as many comparisons as are still missing. Blocks.

        Raises:
            UsageError: There are comparisons of something else.
        """
        for number, found in self.comparisons.items():
            self._require_same(number, found)
        self._run([number for number in range(1, count + 1) if not self.verdict(number).final], directory)

    def verdict(self, number: int) -> Verdict:
        """Return what a comparison comes to by now."""
        found = self.comparisons.get(number, [])
        if not found:
            return Verdict(INVALID, 0, (), ("nothing was measured",), final=False)
        return judge(found, self._rules)

    def verdicts(self) -> Mapping[int, Verdict]:
        """Return what each comes to."""
        return {number: self.verdict(number) for number in sorted(self.comparisons)}

    def _run(self, numbers: list[int], directory: Path) -> None:
        most = self._plan.looks[-1]
        left = {number: most - self._measured(number) for number in numbers}
        with (
            directories.own_directory(directory, _PREFIX) as root,
            Progress(self._console, [_BLOCK_S] * sum(left.values())) as progress,
        ):
            blocks = Blocks(self._plan, root, self._logs)
            for number in numbers:
                self._finish(number, left[number], blocks, progress)

    def _finish(self, number: int, left: int, blocks: Blocks, progress: Progress) -> None:
        """Measure blocks of one comparison until it is decided."""
        found = self.comparisons.setdefault(number, [])
        while not (verdict := self.verdict(number)).final and left:
            done = self._measured(number)
            with progress.step(f"comparison {number}, block {done + 1} of at most {self._plan.looks[-1]}"):
                measured = blocks.measure(number, done)
            self._log.extend(measured)
            found += measured
            left -= 1
        progress.skip(left)
        progress.note(f"comparison {number}: {verdict.answer} after {verdict.blocks} blocks")

    def _measured(self, number: int) -> int:
        """Return how many blocks of a comparison there are."""
        return len({record.case["block"] for record in self.comparisons.get(number, [])})

    def _require_same(self, number: int, found: list[Record]) -> None:
        wheels = {arm: wheel.sha256 for arm, wheel in self._plan.wheels.items()}
        for record in found:
            planned = (wheels.get(record.arm), list(self._plan.looks), self._plan.slowdown)
            seen = (sample.wheel(record)["sha256"], record.env.get("looks"), record.env.get("slowdown"))
            if planned != seen:
                raise UsageError(
                    f"{self._log.path}: comparison {number} is of other wheels or another plan; name another "
                    "directory with --out"
                )


def place(directory: Path | None) -> Path:
    """Return where chunks are stored: the user's choice, or memory where that is a file system.

    Raises:
        UsageError: It cannot be used, or has too little room.
    """
    usual = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    chosen = usual if directory is None else directory.resolve()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(chosen).free
    except OSError as error:
        raise UsageError(f"--dir {chosen}: {error.strerror}; name another directory") from error
    if free_bytes < _NEEDED_BYTES:
        raise UsageError(
            f"{chosen} has {free_bytes >> 20} MiB free, and it needs {_NEEDED_BYTES >> 20}; name another "
            "directory with --dir"
        )
    return chosen
