"""List the repository's own files: what git knows or would add, or everything where there is no git."""

import shutil
import subprocess
from pathlib import Path

# What a tree without git may hold beside its own files.
GENERATED_NAMES = frozenset({"build", "dist", "bench-out", "__pycache__"})


def own_files(root: Path) -> list[Path]:
    """Return the repository's files relative to `root`, sorted; ignored and deleted ones are left out."""
    if (root / ".git").exists() and shutil.which("git"):
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        paths = {Path(name) for name in listing.split("\0") if name}
    else:
        paths = {path.relative_to(root) for path in root.rglob("*") if not _generated(path.relative_to(root))}
    return sorted(path for path in paths if (root / path).is_file())


def _generated(relative: Path) -> bool:
    hidden_kept = {".ci", ".github", ".clang-format", ".gitignore"}
    parts = relative.parts
    return any(
        part in GENERATED_NAMES
        or part.endswith(".egg-info")
        or (part.startswith(".") and part not in hidden_kept)
        for part in parts
    )
