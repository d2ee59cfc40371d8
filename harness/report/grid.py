"""A table, for a terminal, Markdown or a page, and how figures look in it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

Cells = Sequence[str]
NOTHING: Final = "-"


@dataclass(frozen=True)
class Grid:
    """A table, to be drawn on a terminal or written as Markdown.

    Attributes:
        title: Its heading.
        columns: Headings; the leading `labels` of them hold text, the others figures.
        rows: Cells.
        labels: How many columns hold text.
    """

    title: str
    columns: Cells
    rows: Sequence[Cells]
    labels: int

    def markdown(self) -> str:
        """Return it as a Markdown table."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.columns) - self.labels)
        lines = [" | ".join(map(in_markdown, cells)) for cells in (self.columns, rule, *self.rows)]
        return "\n".join(f"| {line} |" for line in lines)

    def print(self, console: Console) -> None:
        """Draw it, with a rule where the first column changes; cells break where the console is narrow."""
        table = Table(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for index, heading in enumerate(self.columns):
            table.add_column(heading, justify="left" if index < self.labels else "right", overflow="fold")
        for row, following in zip(self.rows, [*self.rows[1:], None], strict=True):
            ends = following is not None and following[0] != row[0]
            table.add_row(*row, end_section=ends)
        console.print(table)


def in_markdown(text: str) -> str:
    """Return text that stays in its cell and is no markup of HTML, whatever somebody called an arm."""
    return untagged(" ".join(text.splitlines()).replace("|", "\\|"))


def untagged(text: str) -> str:
    """Return Markdown in which no tag of HTML is left; comparisons stay as they are."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def significant(value: float | None) -> str:
    """Return a figure with three significant digits, whole from 100 on, "-" for none."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  three digits
