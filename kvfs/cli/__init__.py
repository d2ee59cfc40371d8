"""The `kvfs` command; what it needs is the extra `kvfs[cli]`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which extra it lacks."""
    try:
        from kvfs.cli import commands  # noqa: PLC0415 - what it imports may be missing
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the kvfs command needs {error.name}; install it with: pip install 'kvfs[cli]'")
    commands.kvfs()
