"""A fingerprint of the weights behind a model's name: the hub's commit, or a cheap hash of the files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm.config import ModelConfig

# At most 6 MiB in all: pieces that lie evenly in each weight file, its ends among them, and a head that holds
# the names and shapes of the first tensors. A fine-tuned model often shares its first and last tensors, and
# always the sizes, with what it was made from.
_PIECE_SIZE_BYTES: Final = 4 << 10
_PIECES_MAX: Final = 1024
_PIECES_PER_FILE_MAX: Final = 64
_HEAD_SIZE_MAX_BYTES: Final = 64 << 10
_HEADS_SIZE_MAX_BYTES: Final = 2 << 20
# More files than these count with their names and sizes.
_SAMPLED_FILES_MAX: Final = _PIECES_MAX // 2
_SETTINGS_SIZE_MAX_BYTES: Final = 256 << 10
# In the order in which vLLM looks for them: it loads the files of one kind.
_KINDS: Final = ((".safetensors",), (".bin", ".pt", ".pth"), (".gguf",))
# What says how the weights are to be read (shapes, rotary embedding, quantisation) and which file has which.
_SETTINGS: Final = (
    "config.json",
    "params.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    "model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def of_model(model_config: ModelConfig, load_format: str) -> str:
    """Return the fingerprint of what vLLM loads: "commit:...", "files:..." or "dummy".

    Blocks: reads some MiB of a local checkpoint.

    Args:
        model_config: vLLM's, of the model or of a draft.
        load_format: From vLLM's `LoadConfig`; "dummy" makes weights up, always the same.

    Raises:
        OSError: A file of the checkpoint cannot be read.
        LookupError: Nothing there says which weights these are.
    """
    if load_format == "dummy":
        return "dummy"
    if getattr(model_config, "model_weights", ""):
        raise LookupError(f"they come from {model_config.model_weights}, which has no version")
    checkpoint = Path(model_config.model)
    if checkpoint.exists():
        return of_files(checkpoint)
    revision = model_config.revision
    # A branch's or tag's name, with the commit that the hub or its cache gave for it.
    candidates = [getattr(revision, "resolved", None), revision]
    if not getattr(model_config, "hf_config_path", None):
        candidates.append(getattr(model_config.hf_config, "_commit_hash", None))
    for candidate in candidates:
        if isinstance(candidate, str) and _COMMIT.fullmatch(candidate):
            return f"commit:{candidate}"
    raise LookupError("neither the hub nor its cache says which commit the model is")


def of_files(checkpoint: Path) -> str:
    """Return the fingerprint of a checkpoint's directory, or of its only file.

    The same for copies elsewhere and of any age: it is made from names, sizes, settings and pieces of the
    weights, of which it reads at most about 6 MiB.

    Raises:
        OSError: A file cannot be read.
        LookupError: The directory has no weights.
    """
    if checkpoint.is_dir():
        files = _weight_files(checkpoint)
        settings = [path for name in _SETTINGS if (path := checkpoint / name).is_file()]
    else:
        files, settings = [checkpoint], []
    digest = hashlib.sha256()
    for field in _fields(files, settings):
        # With its length, so that no two lists of fields are the same bytes.
        digest.update(len(field).to_bytes(8, "big"))
        digest.update(field)
    return f"files:{digest.hexdigest()[:40]}"


def _weight_files(directory: Path) -> Sequence[Path]:
    files = sorted((path for path in directory.iterdir() if path.is_file()), key=lambda path: path.name)
    for suffixes in _KINDS:
        if found := [path for path in files if path.suffix in suffixes]:
            return found
    raise LookupError(f"{directory} has no files of weights")


def _fields(files: Sequence[Path], settings: Sequence[Path]) -> Iterator[bytes]:
    for path in settings:
        yield os.fsencode(path.name)
        yield path.stat().st_size.to_bytes(8, "big")
        with path.open("rb") as file:
            yield file.read(_SETTINGS_SIZE_MAX_BYTES)
    pieces = max(2, min(_PIECES_PER_FILE_MAX, _PIECES_MAX // len(files)))
    head_size_bytes = max(_PIECE_SIZE_BYTES, min(_HEAD_SIZE_MAX_BYTES, _HEADS_SIZE_MAX_BYTES // len(files)))
    for index, path in enumerate(files):
        size_bytes = path.stat().st_size
        yield os.fsencode(path.name)
        yield size_bytes.to_bytes(8, "big")
        if index < _SAMPLED_FILES_MAX:
            yield from _samples(path, size_bytes, pieces, head_size_bytes)


def _samples(path: Path, size_bytes: int, pieces: int, head_size_bytes: int) -> Iterator[bytes]:
    # Unbuffered: read-ahead of Python's would double what is read.
    with path.open("rb", buffering=0) as file:
        yield _read(file.fileno(), 0, min(head_size_bytes, size_bytes))
        last = max(0, size_bytes - _PIECE_SIZE_BYTES)
        for index in range(1, pieces):
            yield _read(file.fileno(), last * index // (pieces - 1), _PIECE_SIZE_BYTES)


def _read(fd: int, offset: int, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes and (part := os.pread(fd, size_bytes - len(data), offset + len(data))):
        data += part
    return data
