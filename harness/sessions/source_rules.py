"""Check the rules of the source tree that no linter knows: file length, and arrows that point down.

`python -m harness.sessions.source_rules` prints each breach and ends with status 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from harness.sessions.tree import own_files

LINES_MAX = 400
CODE_SUFFIXES = frozenset({".py", ".pyi", ".cpp", ".hpp", ".h"})

NATIVE_ROOT = PurePosixPath("src/kvfs_ext")
# A room may include itself and the rooms with a lower number.
ROOM_HEIGHTS = {"base": 0, "fs": 1, "index": 2, "layouts": 2, "testing": 2, "jobs": 3, "python": 4}
BINDING_ROOM = "python"
BINDING_HEADERS = re.compile(r"^(nanobind/.*|Python\.h|pybind11/.*)$")
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

# (package, what it never imports): ruff's import bans are per file and cannot say the second half.
PYTHON_BANS = {"kvfs": ("harness", "tests")}


def long_files(path: PurePosixPath, text: str) -> Iterator[str]:
    """Yield a breach if a source file is too long to be read at once."""
    count = len(text.splitlines())
    if path.suffix in CODE_SUFFIXES and count > LINES_MAX:
        yield f"{path}:{count}: {count} lines; split what has more than {LINES_MAX} by purpose"


def upward_includes(path: PurePosixPath, text: str) -> Iterator[str]:
    """Yield the includes of a native source that point up, sideways or to Python."""
    if not path.is_relative_to(NATIVE_ROOT) or path.suffix not in {".cpp", ".hpp", ".h"}:
        return
    room = path.relative_to(NATIVE_ROOT).parts[0]
    if room not in ROOM_HEIGHTS:
        yield f"{path}:1: unknown room {room!r}; give it a height in {Path(__file__).name}"
        return
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            continue
        quoted, angled = match.groups()
        header = quoted or angled
        if BINDING_HEADERS.match(header):
            if room != BINDING_ROOM:
                yield f"{path}:{number}: only {NATIVE_ROOT / BINDING_ROOM} may include {header}"
        elif quoted:
            yield from _room_breach(path, number, room, quoted)


def _room_breach(path: PurePosixPath, number: int, room: str, header: str) -> Iterator[str]:
    target = PurePosixPath(header).parts[0]
    if ".." in PurePosixPath(header).parts or target not in ROOM_HEIGHTS:
        yield f'{path}:{number}: write "{header}" as "room/file.hpp", from {NATIVE_ROOT}'
    elif target != room and ROOM_HEIGHTS[target] >= ROOM_HEIGHTS[room]:
        yield f"{path}:{number}: {room} may not include {header}: arrows point down only"


def banned_imports(path: PurePosixPath, text: str) -> Iterator[str]:
    """Yield the imports by which a Python package would see a room above it."""
    bans = PYTHON_BANS.get(path.parts[0], ())
    if path.suffix != ".py" or not bans:
        return
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in bans:
                yield f"{path}:{node.lineno}: {path.parts[0]} may not import {name}: arrows point down only"


RULES: tuple[Callable[[PurePosixPath, str], Iterator[str]], ...] = (
    long_files,
    upward_includes,
    banned_imports,
)


def breaches(root: Path) -> list[str]:
    """Return every breach in the tree at `root`, as "path:line: what is wrong"."""
    found: list[str] = []
    for relative in own_files(root):
        if relative.suffix not in CODE_SUFFIXES:
            continue
        text = (root / relative).read_text(encoding="utf-8")
        for rule in RULES:
            found += rule(PurePosixPath(relative.as_posix()), text)
    return found


def main() -> int:
    """Print the breaches in the current directory's tree; return the exit status."""
    root = Path.cwd()
    checked = [path for path in own_files(root) if path.suffix in CODE_SUFFIXES]
    if not checked:
        print(f"no source files under {root}: run this in the repository's root", file=sys.stderr)
        return 1
    found = breaches(root)
    print("\n".join([*found, f"source rules: {len(checked)} files, {len(found)} breaches"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
