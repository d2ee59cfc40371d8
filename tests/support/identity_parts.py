"""Namespaces for the tests of `kvfs.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvfs import Namespace

CHUNK_SIZE_BYTES = 4096
WEIGHTS = "commit:0123"


def make_namespace(root: Path, **traits: str) -> Namespace:
    """Make a namespace of one model with its `config.json`."""
    namespace = Namespace(str(root), {"model_name": "org/model", "dtype": "bfloat16"}, traits=traits)
    namespace.write_config()
    return namespace


def record_of(namespace: Namespace) -> Any:
    """Return what the namespace's `kvfs.json` says."""
    return json.loads(Path(namespace.identity_path).read_bytes())


def temporaries(namespace: Namespace) -> list[str]:
    """Return the names of unfinished files in the namespace's directory."""
    return [path.name for path in Path(namespace.config_dir).iterdir() if path.name.endswith(".tmp")]
