"""Remember what an environment or a build was made from, so that an unchanged one is not made again."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest_of_strings(strings: Iterable[str]) -> str:
    """Return a digest of the strings, their order and their bounds."""
    digest = hashlib.sha256()
    for string in strings:
        encoded = string.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def digest_of_files(root: Path, relative_paths: Iterable[Path]) -> str:
    """Return a digest of the files' names and contents; their times and modes do not count."""
    digest = hashlib.sha256()
    for path in sorted(relative_paths):
        content = (root / path).read_bytes()
        for part in (path.as_posix().encode(), content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


class Stamp:
    """A file in the thing that was made, with the digest of what it was made from.

    It is removed before the making starts and written after it succeeded, so an interrupted one is
    never taken for whole.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self._path = path
        self._digest = digest

    def is_current(self) -> bool:
        """Say whether the thing was made from the same inputs."""
        return self._path.is_file() and self._path.read_text() == self._digest

    def clear(self) -> None:
        """Forget what was made; call before making it again."""
        self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Record the inputs; call when the making succeeded."""
        self._path.write_text(self._digest)
