"""Turn records into reports; nothing else is read. `python -m harness.report --help`."""

from harness.report.grid import Grid

__all__ = ["Grid"]
