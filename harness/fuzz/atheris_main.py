"""Run one Python target under atheris: `python -m harness.fuzz.atheris_main TARGET [ARGUMENT ...]`.

The arguments are libFuzzer's.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvfs"]):
    from harness.fuzz.python_targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    _, test = TARGETS[sys.argv[1]]
    # A warning for each damaged file is what kvfs should say, some 10,000 times a second.
    logging.disable()
    # Below $TMPDIR, which whoever started this removes: Fuzz() ends the process.
    scratch = Path(tempfile.mkdtemp(prefix="kvfs-fuzz-"))

    def run(data: bytes) -> None:
        test(data, scratch)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
