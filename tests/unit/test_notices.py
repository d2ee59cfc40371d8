"""What users are told of limits, sheds and pauses: once, with the figures and what to do."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import DEADLINE_S, await_that

from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.notices import warn_without_limit
from kvfs.paths import Namespace

if TYPE_CHECKING:
    from tests.unit.conftest import Mount

CHUNK = 16384
COST = CHUNK + 4096
ROWS = 16


def _namespace(root: Path) -> Namespace:
    return Namespace(str(root), {"model_name": "model"})


class Engine:
    """A chunk engine with its log."""

    def __init__(self, root: Path, caplog: pytest.LogCaptureFixture, **options: object) -> None:
        config = TierConfig.from_options(
            {"root_dir": str(root), "max_queued_store_bytes": 1 << 30, **options}
        )
        buffer = memoryview(bytearray(CHUNK * ROWS)).cast("B", (ROWS, CHUNK))
        self.chunks = ChunkEngine(_namespace(root), buffer, config)
        self._caplog = caplog
        self._next = 0

    def store(self, count: int = ROWS) -> None:
        """Store new chunks and take the result."""
        keys = [number.to_bytes(4, "little") + bytes(32) for number in range(self._next, self._next + count)]
        self._next += count
        self.chunks.submit_store(self._next, keys, list(range(count)))
        assert self.chunks.drain(DEADLINE_S)
        assert len(self.chunks.poll()) == 1

    def said(self, level: int, text: str) -> list[str]:
        return [
            record.getMessage()
            for record in self._caplog.records
            if record.levelno == level and text in record.getMessage()
        ]


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level("INFO", "kvfs"):
        yield caplog


def test_without_a_limit_the_free_space_and_the_options_are_named(
    tmp_path: Path, info: pytest.LogCaptureFixture
) -> None:
    namespace = _namespace(tmp_path)
    os.makedirs(namespace.base_path)  # noqa: PTH103 - a path as text
    warn_without_limit(namespace, TierConfig(str(tmp_path)))
    (record,) = info.records
    assert record.levelname == "WARNING"
    for part in (str(tmp_path), "iB are free", "capacity_bytes", "min_free_bytes", '"200GiB"'):
        assert part in record.getMessage()
    info.clear()
    warn_without_limit(namespace, TierConfig(str(tmp_path), capacity_bytes=1))
    warn_without_limit(namespace, TierConfig(str(tmp_path), min_free_bytes=1))
    assert info.records == []


def test_want_of_room_is_said_once_with_the_figures(tmp_path: Path, info: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, info, capacity_bytes=f"{8 * COST}B", min_free_bytes="1 KiB")

    def is_shed() -> bool:
        engine.store()
        return engine.chunks.stats()["capacity_sheds"] > 5 * ROWS

    assert await_that(is_shed)
    (warning,) = engine.said(logging.WARNING, "no room for more chunks")
    for part in (str(tmp_path), "of capacity_bytes 160.0 KiB are taken", "min_free_bytes is 1.0 KiB"):
        assert part in warning
    assert "stats()['capacity_sheds']" in warning
    assert engine.said(logging.WARNING, "does not keep up") == []
    engine.chunks.close()


def test_limits_are_for_the_root_with_all_namespaces(tmp_path: Path, info: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, info, capacity_bytes="1GiB")
    assert (tmp_path / "kvfs.space").is_file()
    assert not (Path(engine.chunks.namespace.base_path) / "kvfs.space").exists()
    engine.chunks.close()


def test_evicted_keys_that_are_back_are_not_taken(tmp_path: Path, info: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, info, capacity_bytes=60 * COST)
    assert await_that(lambda: engine.chunks.stats()["space_counted"] == 1)

    def has_evicted() -> bool:
        engine.store()
        return engine.chunks.stats()["evicted_chunks"] > 0

    assert await_that(has_evicted)
    taken = engine.chunks.take_evicted()
    assert taken
    # As if they had been stored again before anybody asked.
    native = engine.chunks._native

    def is_back() -> bool:
        engine.chunks.submit_store(9999, taken[:1], [0])
        assert engine.chunks.drain(DEADLINE_S)
        return native.lookup_prefix(taken[0], 36) == 1

    assert await_that(is_back)

    class Again:
        def take_evicted(self) -> list[bytes]:
            return taken

        def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int:
            return native.lookup_prefix(keys, key_size_bytes)

    engine.chunks._native = Again()  # type: ignore[assignment]  # what it asks for there
    back = [key for key in taken if native.lookup_prefix(key, len(key))]
    assert engine.chunks.take_evicted() == [key for key in taken if key not in back]
    assert back == taken[:1]
    engine.chunks._native = native
    engine.chunks.close()


@pytest.mark.needs_root
def test_pause_is_warned_of_once_with_the_reason_and_its_end_is_told(
    mount: Mount, info: pytest.LogCaptureFixture
) -> None:
    directory = mount("tmpfs", options="size=2m")
    engine = Engine(directory / "root", info)
    for round_number in range(2):
        filler = directory / "filler"
        with filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
        engine.store(1)
        assert len(engine.said(logging.WARNING, "takes no stores now (No space left on device)")) == 1
        assert len(engine.said(logging.INFO, "takes no stores now")) == round_number
        filler.unlink()

        def has_gone_on(count: int = round_number + 1) -> bool:
            engine.store(1)
            return len(engine.said(logging.INFO, "takes stores again")) == count

        assert await_that(has_gone_on)
    assert engine.said(logging.WARNING, "does not keep up") == []
    assert engine.chunks.stats()["paused_stores"] > 0
    engine.chunks.close()


def test_polls_in_a_row_ask_for_counts_once(tmp_path: Path, info: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, info)
    asked = 0
    stats = engine.chunks._native.stats

    def count() -> dict[str, int]:
        nonlocal asked
        asked += 1
        return stats()

    engine.chunks._notices._stats = count
    engine.store(1)
    for _ in range(20):
        engine.store(1)
    assert asked <= 20
    engine.chunks._notices._look_at = float("inf")
    before = asked
    for _ in range(20):
        engine.store(1)
    assert asked == before
    engine.chunks.close()
