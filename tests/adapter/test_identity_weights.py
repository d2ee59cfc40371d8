"""The hash of a checkpoint's files: the same for a copy, another for other weights, cheap for any size."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import vllm_parts  # noqa: F401  quiets what vLLM's imports warn about

from kvfs.vllm_adapter import weights

MIB = 1 << 20


def write_files(directory: Path, sizes: dict[str, int]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    for seed, (name, size) in enumerate(sizes.items()):
        (directory / name).write_bytes(random.Random(seed).randbytes(size))
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    sizes = {"model-1.safetensors": MIB, "model-2.safetensors": 10_000, "tokenizer.json": 500}
    return write_files(tmp_path / "a", sizes)


def test_fingerprint_is_the_same_for_a_copy_elsewhere_of_another_age(
    checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / "b"
    shutil.copytree(checkpoint, copy)
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    fingerprint = weights.of_files(checkpoint)
    assert re.fullmatch(r"files:[0-9a-f]{40}", fingerprint)
    assert weights.of_files(copy) == fingerprint
    # As in the hub's cache, where the files are links.
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in copy.iterdir():
        (linked / path.name).symlink_to(path)
    assert weights.of_files(linked) == fingerprint


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda files: flip(files / "model-1.safetensors", 0), id="first-byte"),
        pytest.param(lambda files: flip(files / "model-1.safetensors", -1), id="last-byte"),
        # The 33rd of 64 pieces begins here.
        pytest.param(lambda files: flip(files / "model-1.safetensors", (MIB - 4096) * 32 // 63), id="middle"),
        pytest.param(lambda files: flip(files / "model-2.safetensors", 5000), id="small-file-anywhere"),
        pytest.param(lambda files: os.truncate(files / "model-1.safetensors", MIB + 1), id="size"),
        pytest.param(
            lambda files: (files / "model-2.safetensors").rename(files / "model-3.safetensors"), id="name"
        ),
        pytest.param(lambda files: (files / "model-2.safetensors").unlink(), id="one-file-less"),
        pytest.param(lambda files: (files / "config.json").write_text("{}"), id="config"),
        pytest.param(lambda files: (files / "quantize_config.json").write_text("{}"), id="quantisation"),
    ],
)
def test_fingerprint_changes_with_what_is_loaded(checkpoint: Path, change: Callable[[Path], object]) -> None:
    before = weights.of_files(checkpoint)
    change(checkpoint)
    assert weights.of_files(checkpoint) != before


@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "pytorch_model.bin", "original.gguf"])
def test_fingerprint_leaves_out_what_is_not_loaded(checkpoint: Path, name: str) -> None:
    before = weights.of_files(checkpoint)
    (checkpoint / name).write_bytes(b"something else")
    assert weights.of_files(checkpoint) == before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.gguf"])
def test_fingerprint_knows_other_kinds_of_weights(tmp_path: Path, name: str) -> None:
    directory = write_files(tmp_path / "a", {name: 10_000})
    before = weights.of_files(directory)
    flip(directory / name, 9999)
    assert weights.of_files(directory) != before


def test_fingerprint_of_a_single_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(5000))
    before = weights.of_files(path)
    flip(path, 4000)
    assert weights.of_files(path) != before


def test_directory_without_weights_is_a_lookup_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="has no files of weights"):
        weights.of_files(tmp_path)


def bytes_read() -> int:
    """Return what this process has read by system calls so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 1 << 40), (30, 10 << 30), (200, 1 << 30), (3000, MIB)],
    ids=str,
)
def test_fingerprint_of_a_huge_checkpoint_reads_a_few_mib(tmp_path: Path, count: int, size: int) -> None:
    for index in range(count):
        with (tmp_path / f"model-{index:05}.safetensors").open("wb") as file:
            # A hole: it takes no room.
            file.truncate(size)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    before = bytes_read()
    fingerprint = weights.of_files(tmp_path)
    assert bytes_read() - before < 7 * MIB
    assert weights.of_files(tmp_path) == fingerprint
