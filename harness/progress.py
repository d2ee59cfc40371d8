"""Show where a run is and how long it will take: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

# Until so much has been measured the estimates are taken as they are.
_TRUST_AFTER_S: Final = 60.0
# Leaves room for the bar and the times in 100 columns.
_TITLE_WIDTH: Final = 60


class Progress:
    """The steps of a run, with the time left.

    Args:
        console: Where to write.
        estimates_s: About how long each step takes, in order; what they take corrects the rest.
    """

    def __init__(self, console: Console, estimates_s: Sequence[float]) -> None:
        self._console = console
        self._estimates_s = list(estimates_s)
        self._done = 0
        self._started = time.monotonic()
        self._step_started = self._started
        self._live: RichProgress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), _TimeColumn(self))
            self._live = RichProgress(*columns, console=console, transient=True, refresh_per_second=2)
            self._task = self._live.add_task("", total=sum(self._estimates_s))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Do the next step of the list.

        Args:
            title: What it is.
        """
        self._step_started = time.monotonic()
        number = f"[{self._done + 1:>3}/{len(self._estimates_s)}]"
        if self._live is not None:
            line = f"{number} {title}"[:_TITLE_WIDTH].ljust(_TITLE_WIDTH)
            self._live.update(self._task, description=escape(line), refresh=True)
        else:
            self._console.print(
                f"{number} {self.times()}  {title}", markup=False, highlight=False, soft_wrap=True
            )
        yield
        self._done += 1
        if self._live is not None:
            self._live.update(self._task, completed=sum(self._estimates_s[: self._done]))

    def skip(self, count: int) -> None:
        """Take the next steps off the list: they are not needed."""
        del self._estimates_s[self._done : self._done + count]
        if self._live is not None:
            self._live.update(self._task, total=sum(self._estimates_s))

    def note(self, text: str) -> None:
        """Print a line above the live one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started

    def left_s(self) -> float:
        """Return about how many seconds are left."""
        done = sum(self._estimates_s[: self._done])
        spent = self._step_started - self._started
        rate = spent / done if done and spent > _TRUST_AFTER_S else 1.0
        in_step = time.monotonic() - self._step_started
        ahead = self._estimates_s[self._done :]
        return max(sum(ahead) * rate - in_step, sum(ahead[1:]) * rate)

    def times(self) -> str:
        """Return how long it has taken and how long it will."""
        return f"{_clock(self.elapsed_s())} passed, about {_clock(self.left_s())} left"


class _TimeColumn(ProgressColumn):
    """The time passed and left, as the whole run knows it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:  # noqa: ARG002 - the run knows more than its bar
        return Text(self._progress.times())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:d}:{rest:02d}"
