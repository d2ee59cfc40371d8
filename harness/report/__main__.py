"""`python -m harness.report --out DIR`: read DIR's records and write report.html and report.md there."""

import sys
from pathlib import Path
from typing import Final

import click

from harness import records
from harness.errors import EXIT_INTERRUPTED, EXIT_OK, HarnessError, UsageError
from harness.report import page

DEFAULT_OUT: Final = Path("bench-out")
_TITLE: Final = "kvfs: what was measured"


def write(directory: Path) -> list[Path]:
    """Write both files beside a directory's records and return them; none if one of them cannot be made.

    Raises:
        UsageError: There are no records, or the directory cannot be written.
        RecordError: A line is not a record; the message names it.
    """
    path = directory / records.FILE_NAME
    if not path.is_file():
        raise UsageError(f"--out {directory}: no {records.FILE_NAME} there; name the --out of a measurement")
    found = [page.readable(record) for record in records.read(path)]
    if not found:
        raise UsageError(f"{path}: no record in it; measure something first")
    parts = page.sections(found)
    texts = {
        directory / page.HTML_NAME: page.html(parts, _TITLE),
        directory / page.MARKDOWN_NAME: page.markdown(parts, _TITLE),
    }
    try:
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {directory}: cannot write there ({error.strerror})") from error
    return list(texts)


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_OUT,
    help="Where the records are.",
)
def main(out: Path) -> None:
    """Read OUT/records.jsonl, of whatever sessions, and write OUT/report.html and OUT/report.md."""
    try:
        for path in write(out):
            print(path)
        status = EXIT_OK
    except HarnessError as error:
        print(f"report: {error}", file=sys.stderr)
        status = error.exit_status
    except KeyboardInterrupt:
        print("report: interrupted", file=sys.stderr)
        status = EXIT_INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main(prog_name="python -m harness.report")
