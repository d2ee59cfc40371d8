"""Where a namespace and its chunks lie: the same paths as vLLM's `FileMapper`, file for file."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Final

from kvfs import small_files
from kvfs.permissions import DIR_MODE, FILE_MODE, make_directory

GROUP_INDEX_BYTES: Final = 4
_DIGEST_DIGITS: Final = 12
# Names of layers make up most of it; no model comes near.
_CONFIG_SIZE_MAX_BYTES: Final = 16 << 20

_logger = logging.getLogger("kvfs")


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """The directory that one model configuration owns.

    Attributes:
        root_dir: Directory of all namespaces.
        fields: What distinguishes this configuration, JSON values by name; `model_name` is among them.
        rank: Rank of the worker whose chunks these are; ranks share `config.json`.
        traits: What else changes the bytes of chunks or their meaning, as far as it is known, text by name.
            It is no part of the path, which is vLLM's; `kvfs.json` keeps it (kvfs/identity.py).
    """

    root_dir: str
    fields: Mapping[str, object]
    rank: int = 0
    traits: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def config_dir(self) -> str:
        """The directory of `config.json`: `<root>/<model>_<12 digits of the fields' SHA-256>`."""
        canonical = json.dumps(dict(self.fields), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]
        model = str(self.fields["model_name"]).replace("/", "_")
        return f"{self.root_dir}/{model}_{digest}"

    @property
    def base_path(self) -> str:
        """The directory of this rank's chunks."""
        return f"{self.config_dir}_r{self.rank}"

    @property
    def config_path(self) -> str:
        """The file that says which configuration this namespace is."""
        return f"{self.config_dir}/config.json"

    @property
    def identity_path(self) -> str:
        """The file that says what vLLM's `config.json` does not."""
        return f"{self.config_dir}/kvfs.json"

    def chunk_path(self, key: bytes) -> str:
        """Return the file of a chunk.

        The engines format paths themselves; this is for people and tests.

        Args:
            key: The block hash and 4 bytes of group index, big-endian (vLLM's `OffloadKey`).
        """
        digits = key[:-GROUP_INDEX_BYTES].hex()
        group = int.from_bytes(key[-GROUP_INDEX_BYTES:], "big")
        return f"{self.base_path}/{digits[:3]}/{digits[3:5]}_g{group}/{digits}.bin"

    def write_config(self, file_mode: int = FILE_MODE, dir_mode: int = DIR_MODE) -> None:
        """Make the namespace's directory and its `config.json`, whole or not at all. Blocks.

        A file that cannot be read as JSON (a writer died half-way) is written again.

        Args:
            file_mode: Mode of the file, if it is made.
            dir_mode: Mode of the directories that are made.

        Raises:
            OSError: The directory or the file cannot be made; the message says what to change.
            ValueError: The file is there and describes another configuration.
        """
        try:
            make_directories(self.config_dir, dir_mode)
            with small_files.locked(self.config_dir):
                found = self._read_config()
                if found == dict(self.fields):
                    return
                if found is not None:
                    difference = _difference(found, self.fields)
                    raise ValueError(
                        f"{self.config_path} describes another configuration ({difference}); "
                        "remove that directory or use another root_dir"
                    )
                # As vLLM writes it.
                text = json.dumps(dict(self.fields), indent=2, sort_keys=True)
                small_files.replace(self.config_path, text.encode(), file_mode)
        except OSError as error:
            code = error.errno or errno.EIO
            raise OSError(
                code,
                f"cannot prepare the kvfs namespace ({error.strerror or error}); "
                "set root_dir to a directory that this user can write",
                self.config_path,
            ) from error

    def _read_config(self) -> object:
        """Return what `config.json` holds, None if there is nothing to trust."""
        content = small_files.read(self.config_path, _CONFIG_SIZE_MAX_BYTES)
        if content is None:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            _logger.warning("%s is not JSON (a writer died half-way?); writing it again", self.config_path)
            return None


def make_directories(path: str, mode: int = DIR_MODE) -> None:
    """Make a directory and its missing parents, all of them with exactly this mode. Blocks.

    Raises:
        OSError: One of them cannot be made.
    """
    # Not os.makedirs(): it gives the mode to the last one only.
    try:
        make_directory(path, mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):
            raise
        make_directories(parent, mode)
        with contextlib.suppress(FileExistsError):
            make_directory(path, mode)


def _difference(found: object, wanted: Mapping[str, object]) -> str:
    if not isinstance(found, dict):
        return f"a {type(found).__name__} instead of an object"
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return "; ".join(f"{name}: {found.get(name)!r} there, {wanted.get(name)!r} here" for name in names)
