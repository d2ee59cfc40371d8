"""The calls of docs/lookup.md beside the states: arguments, packed keys, closed engines, counts, threads."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

DEADLINE_S = 30.0


def test_lookup_prefix_counts_hits_up_to_the_first_that_is_none(start_scanned: StartRig) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(10)]
    packed = b"".join(keys)
    assert rig.engine.lookup_prefix(packed, 36) == 0
    rig.store(keys[:4] + keys[5:], [0] * 9)
    assert rig.engine.lookup_prefix(packed, 36) == 4
    assert rig.engine.lookup_prefix(packed[: 3 * 36], np.int64(36)) == 3  # type: ignore[arg-type]
    assert rig.engine.lookup_prefix(b"", 36) == 0
    rig.store(keys[4:5], [0])
    assert rig.engine.lookup_prefix(packed, np.uint8(36)) == 10  # type: ignore[arg-type]
    assert rig.engine.lookup_prefix(packed * 30, 36) == 300
    rig.path(keys[0]).unlink()
    rig.load(keys[:1], [0])
    assert rig.engine.lookup_prefix(packed, 36) == 0
    assert rig.engine.lookup_prefix(packed[36:], 36) == 9


def test_lookup_prefix_finds_the_first_that_is_none_wherever_it_is(start_scanned: StartRig) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(50)]
    rig.store(keys, [0] * len(keys))
    for place, absent in enumerate(rig.key(number) for number in range(50, 100)):
        packed = b"".join([*keys[:place], absent, *keys[place:]])
        assert rig.engine.lookup_prefix(packed, 36) == place


def test_keys_of_several_lengths_at_once_are_told_apart(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned()
    # Each is the beginning of the next.
    sizes = [5, 6, 12, 36, 68, 100]
    keys = {size: bytes(size) for size in (*sizes, 255)}
    rig.store([keys[5]], [0])
    rig.store([keys[36]], [0])
    assert rig.verdicts([keys[size] for size in sizes]) == [
        HIT if size in (5, 36) else unknown for size in sizes
    ]
    for size in sizes:
        rig.store([keys[size]], [0])
    rig.ask([keys[255]])
    assert rig.verdicts([keys[size] for size in sizes]) == [HIT] * len(sizes)
    assert rig.engine.lookup(keys[255]) == MISS
    for size in sizes:
        assert rig.engine.lookup_prefix(keys[size] * 3, size) == 3
        rig.engine.touch(keys[size] * 3, size)
    rig.path(keys[12]).unlink()
    rig.load([keys[12]], [0])
    assert [rig.engine.lookup(keys[size]) == HIT for size in sizes] == [size != 12 for size in sizes]
    assert rig.engine.stats()["index_keys"] == len(sizes) - 1


def test_touch_changes_no_verdict(start_scanned: StartRig, unknown: int) -> None:
    rig = start_scanned()
    present, asked, absent, forgotten, _ = keys = [rig.key(number) for number in range(5)]
    rig.store([present], [0])
    rig.ask([absent])
    rig.load([forgotten], [0])
    rig.engine.probe(asked)
    before = rig.verdicts(keys)
    assert before == [HIT, unknown, MISS, unknown, unknown]
    rig.engine.touch(b"".join(keys), 36)
    rig.engine.touch(b"", 36)
    assert rig.verdicts(keys) == before
    assert rig.engine.stats()["index_keys"] == 1
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.verdicts(keys) == [HIT, MISS, *before[2:]]


@pytest.mark.parametrize("call", ["lookup", "probe"])
@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        pytest.param("x" * 36, TypeError, "bytes|str", id="str"),
        pytest.param(bytearray(36), TypeError, "bytearray", id="bytearray"),
        pytest.param(memoryview(bytes(36)), TypeError, "memoryview", id="memoryview"),
        pytest.param([bytes(36)], TypeError, "list", id="list"),
        pytest.param(36, TypeError, "int", id="int"),
        pytest.param(None, TypeError, "None", id="none"),
        pytest.param(b"", ValueError, "5 and 255.*got 0", id="empty"),
        pytest.param(bytes(4), ValueError, "5 and 255.*got 4", id="without-a-hash"),
        pytest.param(bytes(256), ValueError, "5 and 255.*got 256", id="too-long"),
    ],
)
def test_bad_key_raises_and_nothing_is_asked(
    start_scanned: StartRig, call: str, key: bytes, error: type[Exception], words: str
) -> None:
    rig = start_scanned()
    with pytest.raises(error, match=words):
        getattr(rig.engine, call)(key)
    rig.engine.submit_probes()
    assert rig.engine.drain(DEADLINE_S)
    assert rig.engine.stats()["probes"] == 0


@pytest.mark.parametrize("call", ["lookup_prefix", "touch"])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(("x" * 36, 36), TypeError, id="str"),
        pytest.param((bytearray(36), 36), TypeError, id="bytearray"),
        pytest.param(([bytes(36)], 36), TypeError, id="list"),
        pytest.param((None, 36), TypeError, id="none"),
        pytest.param((bytes(36), "36"), TypeError, id="size-str"),
        pytest.param((bytes(36), 36.0), TypeError, id="size-float"),
        pytest.param((bytes(36), None), TypeError, id="size-none"),
        pytest.param((bytes(36), 0), ValueError, id="size-0"),
        pytest.param((bytes(36), -36), ValueError, id="size-negative"),
        pytest.param((bytes(36), 4), ValueError, id="size-without-a-hash"),
        pytest.param((bytes(256), 256), ValueError, id="size-too-long"),
        pytest.param((b"", 4), ValueError, id="size-without-a-hash-of-nothing"),
        pytest.param((bytes(35), 36), ValueError, id="less-than-a-key"),
        pytest.param((bytes(73), 36), ValueError, id="two-keys-and-a-byte"),
    ],
)
def test_bad_packed_keys_raise(
    start_rig: StartRig, tmp_path: Path, call: str, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    rig = start_rig(tmp_path)
    with pytest.raises(error):
        getattr(rig.engine, call)(*arguments)


def test_closed_engine_still_answers_and_asks_nothing(start_scanned: StartRig) -> None:
    rig = start_scanned()
    keys = [rig.key(number) for number in range(4)]
    rig.store(keys[:2], [0, 0])
    rig.ask(keys[2:3])
    rig.engine.probe(keys[3])
    rig.engine.close()
    assert rig.verdicts(keys[:3]) == [HIT, HIT, MISS]
    assert rig.engine.lookup(rig.key(9)) in (MISS, RETRY)
    assert rig.engine.lookup_prefix(b"".join(keys), 36) == 2
    before = rig.engine.stats()["probes"]
    for key in keys[:3] * 100:
        rig.engine.probe(key)
    rig.engine.submit_probes()
    rig.engine.touch(b"".join(keys), 36)
    # Neither the question that nobody handed over nor those above are waited for.
    assert rig.engine.drain(DEADLINE_S)
    assert rig.verdicts(keys[:3]) == [HIT, HIT, MISS]
    assert rig.engine.stats()["probes"] == before


def test_stats_count_keys_bytes_and_what_is_being_loaded(start_scanned: StartRig) -> None:
    rig = start_scanned(num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    assert rig.engine.stats()["index_keys"] == 0
    keys = [rig.key(number) for number in range(20)]
    rig.store(keys, [0] * 20)
    stats = rig.engine.stats()
    assert (stats["index_keys"], stats["pinned_chunks"]) == (20, 0)
    assert stats["index_bytes"] > 20 * 36
    # Some keys twice, and one that is not there.
    rig.submit("load", [*keys, *keys[:5], rig.key(99)], [0] * 26)
    assert 0 < rig.engine.stats()["pinned_chunks"] <= 20
    assert rig.engine.drain(60)
    stats = rig.engine.stats()
    assert (stats["index_keys"], stats["pinned_chunks"]) == (20, 0)
    rig.submit("load", [rig.key(number) for number in range(100, 150)], [0] * 50)
    assert rig.engine.stats()["pinned_chunks"] == 0
    assert rig.engine.drain(60)
    assert rig.engine.stats()["index_keys"] == 20


def test_stats_of_cancelled_jobs_pin_nothing(start_scanned: StartRig) -> None:
    rig = start_scanned(num_chunks=1, chunk_size_bytes=1 << 20, threads=(1, 1))
    keys = [rig.key(number) for number in range(4)]
    rig.store(keys, [0] * 4)
    rig.submit("load", keys * 100, [0] * 400)
    rig.submit("store", [rig.key(number) for number in range(10, 200)], [0] * 190)
    rig.engine.close()
    assert rig.engine.stats()["pinned_chunks"] == 0


def test_lookups_from_threads_beside_stores_and_loads_end_up_right(start_scanned: StartRig) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rig = start_scanned(num_chunks=16, chunk_size_bytes=512, negative_ttl_s=0.01)
    keys = [rig.key(number) for number in range(40)]
    odd: list[int] = []

    def use(worker: int) -> None:
        rng = random.Random(seed + worker)
        for number in range(300):
            key = rng.choice(keys)
            match rng.randrange(6):
                case 0:
                    rig.engine.submit_store(worker * 1000 + number, key, 36, [rng.randrange(16)])
                case 1:
                    rig.engine.submit_load(worker * 1000 + number, key, 36, [rng.randrange(16)])
                case 2:
                    rig.path(key).unlink(missing_ok=True)
                case 3:
                    rig.engine.probe(key)
                case 4:
                    rig.engine.submit_probes()
            odd.extend({rig.engine.lookup(each) for each in keys} - {MISS, HIT, RETRY, EXPIRED})

    workers = [threading.Thread(target=use, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert odd == []
    rig.engine.submit_probes()
    rig.finish()
    # What is there was stored by this engine, so that it knows of it, unless a load failed since.
    known = [key for key in keys if rig.engine.lookup(key) == HIT]
    assert rig.engine.stats()["index_keys"] == len(known)
    rig.load(known, [0] * len(known))
    rig.ask([key for key in keys if rig.engine.lookup(key) != HIT])
    assert [rig.engine.lookup(key) == HIT for key in keys] == [rig.path(key).exists() for key in keys]
