"""What an engine finds in a namespace that was there before it, whatever lies in it."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import HIT, MISS, RETRY

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

DEADLINE_S = 30.0
NOBODY = 65534
CHUNK_SIZE_BYTES = 512
CHUNK = bytes(CHUNK_SIZE_BYTES)
# A hash whose digits have letters among the first five.
HASH = bytes.fromhex("abcdef") + bytes(29)
DIGITS = HASH.hex()


def _path(base: Path, key: bytes) -> Path:
    digits, group = key[:-4].hex(), int.from_bytes(key[-4:], "big")
    return base / digits[:3] / f"{digits[3:5]}_g{group}" / f"{digits}.bin"


def _place(path: Path, chunk: bytes = CHUNK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(chunk)
    return path


def _keys(count: int) -> list[bytes]:
    """Return keys that are spread over the first level's directories, several in some of the second."""
    return [
        (number * 7919 % 4096).to_bytes(3, "big")[1:]
        + number.to_bytes(30, "big")
        + (number % 3).to_bytes(4, "big")
        for number in range(count)
    ]


def _await(condition: Callable[[], bool]) -> bool:
    """Poll until `condition` holds; False when it does not within the bound."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _scans() -> bool:
    """Tell whether an engine of this process still scans."""
    names = [thread.name for thread in threading.enumerate()]
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return "kvfs-scan" in names


@pytest.mark.parametrize("index_mode", ["owner", "shared"])
def test_scan_finds_hundreds_of_chunks_of_any_key(
    start_rig: StartRig, storage: Path, index_mode: str
) -> None:
    keys = _keys(400)
    keys += [
        bytes([255 - size]) * size + group.to_bytes(4, "big")
        for size in (1, 2, 3, 8, 64, 125)
        for group in (0, 7, 65536, 2**32 - 1)
    ]
    for key in keys:
        _place(_path(storage, key))
    rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode=index_mode)
    assert rig.await_stats(scan_complete=1)
    assert rig.verdicts(keys) == [HIT] * len(keys)
    stats = rig.engine.stats()
    assert (stats["index_keys"], stats["scanned_files"], stats["probes"]) == (len(keys), len(keys), 0)
    assert rig.engine.lookup(rig.key(1)) == (MISS if index_mode == "owner" else RETRY)
    assert rig.load(keys[:8], range(8)).outcomes == [0] * 8


def _link_to_chunk(base: Path) -> None:
    path = base / DIGITS[:3] / f"{DIGITS[3:5]}_g0" / f"{DIGITS}.bin"
    path.parent.mkdir(parents=True)
    path.symlink_to(_place(base / "elsewhere"))


def _link_as_long_as_a_chunk(base: Path) -> None:
    path = base / DIGITS[:3] / f"{DIGITS[3:5]}_g0" / f"{DIGITS}.bin"
    path.parent.mkdir(parents=True)
    path.symlink_to("./" * (CHUNK_SIZE_BYTES // 2))
    assert path.lstat().st_size == CHUNK_SIZE_BYTES


def _link_to_first_level(base: Path) -> None:
    _place(base / "elsewhere" / f"{DIGITS[3:5]}_g0" / f"{DIGITS}.bin")
    (base / DIGITS[:3]).symlink_to("elsewhere")


def _link_to_second_level(base: Path) -> None:
    _place(base / "elsewhere" / f"{DIGITS}.bin")
    (base / DIGITS[:3]).mkdir()
    (base / DIGITS[:3] / f"{DIGITS[3:5]}_g0").symlink_to("../elsewhere")


def _fifo(base: Path) -> None:
    path = base / DIGITS[:3] / f"{DIGITS[3:5]}_g0" / f"{DIGITS}.bin"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


def _file(first: str, second: str, name: str, chunk: bytes = CHUNK) -> Callable[[Path], object]:
    return lambda base: _place(base / first / second / name, chunk)


FIRST, SECOND, NAME = DIGITS[:3], f"{DIGITS[3:5]}_g0", f"{DIGITS}.bin"
HOSTILE: dict[str, Callable[[Path], object]] = {
    "short": _file(FIRST, SECOND, NAME, CHUNK[1:]),
    "long": _file(FIRST, SECOND, NAME, CHUNK + b"x"),
    "empty": _file(FIRST, SECOND, NAME, b""),
    "wrong-first-level": _file("abd", SECOND, NAME),
    "wrong-second-level": _file(FIRST, "aa_g0", NAME),
    "upper-case-name": _file(FIRST, SECOND, f"{DIGITS.upper()}.bin"),
    "upper-case-first-level": _file(FIRST.upper(), SECOND, NAME),
    "upper-case-second-level": _file(FIRST, SECOND.upper(), NAME),
    "upper-case-suffix": _file(FIRST, SECOND, f"{DIGITS}.BIN"),
    "all-upper-case": _file(FIRST.upper(), f"{DIGITS[3:5].upper()}_g0", f"{DIGITS.upper()}.bin"),
    "temporary": _file(FIRST, SECOND, f"{NAME}_0123456789abcdef.tmp"),
    "no-suffix": _file(FIRST, SECOND, DIGITS),
    "odd-number-of-digits": _file(FIRST, SECOND, f"{DIGITS}a.bin"),
    "no-digits": _file(FIRST, SECOND, ".bin"),
    "space-in-digits": _file(FIRST, SECOND, f"{DIGITS[:6]} {DIGITS[6:]}.bin"),
    "space-behind-digits": _file(FIRST, SECOND, f"{DIGITS} .bin"),
    "no-hex": _file(FIRST, SECOND, f"{DIGITS[:-2]}xy.bin"),
    "other-digits": _file(FIRST, SECOND, f"{DIGITS[:-2]}\u0663\u0663.bin"),
    "not-utf-8": _file(FIRST, SECOND, f"{DIGITS[:-2]}\udcff.bin"),
    "newline": _file(FIRST, SECOND, f"{DIGITS}.bin\n"),
    "group-with-a-zero": _file(FIRST, f"{DIGITS[3:5]}_g00", NAME),
    "group-01": _file(FIRST, f"{DIGITS[3:5]}_g01", NAME),
    "group-negative": _file(FIRST, f"{DIGITS[3:5]}_g-1", NAME),
    "group-with-a-sign": _file(FIRST, f"{DIGITS[3:5]}_g+1", NAME),
    "group-with-an-underscore": _file(FIRST, f"{DIGITS[3:5]}_g1_0", NAME),
    "group-of-other-digits": _file(FIRST, f"{DIGITS[3:5]}_g\u0663", NAME),
    "group-in-hex": _file(FIRST, f"{DIGITS[3:5]}_gff", NAME),
    "group-empty": _file(FIRST, f"{DIGITS[3:5]}_g", NAME),
    "group-beyond-32-bits": _file(FIRST, f"{DIGITS[3:5]}_g4294967296", NAME),
    "group-beyond-64-bits": _file(FIRST, f"{DIGITS[3:5]}_g18446744073709551616", NAME),
    "no-group": _file(FIRST, DIGITS[3:5], NAME),
    "first-level-only": lambda base: _place(base / FIRST / NAME),
    "no-level": lambda base: _place(base / NAME),
    "one-level-more": _file(FIRST, SECOND, f"{DIGITS}.bin/{DIGITS}.bin"),
    "file-as-first-level": lambda base: _place(base / FIRST),
    "file-as-second-level": lambda base: _place(base / FIRST / SECOND),
    "directory": lambda base: (base / FIRST / SECOND / NAME).mkdir(parents=True),
    "link": _link_to_chunk,
    "link-as-long-as-a-chunk": _link_as_long_as_a_chunk,
    "link-to-first-level": _link_to_first_level,
    "link-to-second-level": _link_to_second_level,
    "fifo": _fifo,
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_scan_passes_over_all_else(start_rig: StartRig, storage: Path, hostile: str) -> None:
    good = _keys(10)
    for key in good:
        _place(_path(storage, key))
    HOSTILE[hostile](storage)
    before = sorted(storage.rglob("*"))
    rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
    assert rig.await_stats(scan_complete=1)
    assert rig.engine.stats()["index_keys"] == len(good)
    assert rig.verdicts(good) == [HIT] * len(good)
    assert (
        rig.verdicts([HASH + group.to_bytes(4, "big") for group in (0, 1, 3, 10, 255, 2**32 - 1)])
        == [MISS] * 6
    )
    assert sorted(path for path in storage.rglob("*") if path.name != "kvfs.lock") == before


def test_scan_finds_chunks_among_all_that(start_rig: StartRig, storage: Path) -> None:
    keys = _keys(300)
    for key in keys:
        path = _place(_path(storage, key))
        path.with_suffix(".tmp").touch()
        path.with_name("00.bin").write_bytes(CHUNK)
        path.with_name(path.name.upper()).write_bytes(CHUNK)
    # Where it is a chunk's, the smallest name counts.
    smallest = {path for path in storage.rglob("00.bin") if path.parts[-3:-1] == ("00", "_g0")}
    rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
    assert rig.await_stats(scan_complete=1)
    assert rig.engine.stats()["index_keys"] == len(keys) + len(smallest)
    assert rig.verdicts(keys) == [HIT] * len(keys)


def test_scan_follows_a_link_to_the_namespace_itself(start_rig: StartRig, storage: Path) -> None:
    key = _keys(1)[0]
    _place(_path(storage / "real", key))
    (storage / "link").symlink_to("real")
    rig = start_rig(storage / "link", chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
    assert rig.await_stats(scan_complete=1)
    assert rig.engine.lookup(key) == HIT


def test_owner_never_misses_what_was_there_before_it(start_rig: StartRig, storage: Path) -> None:
    keys = _keys(200)
    for key in keys:
        _place(_path(storage, key))
    for _ in range(20):
        rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
        deadline = time.monotonic() + DEADLINE_S
        while rig.engine.lookup_prefix(b"".join(keys), 36) < len(keys):
            # The last ones are found just before the scan is complete.
            assert MISS not in rig.verdicts(keys)
            assert time.monotonic() < deadline
            # A loop without a pause hands the fallback's scan the GIL once in 5 ms, for one call.
            time.sleep(0.0005)
        rig.engine.close()


def test_load_that_fails_during_the_scan_does_not_come_back(start_rig: StartRig, storage: Path) -> None:
    keys = _keys(600)
    for key in keys:
        _place(_path(storage, key))
    for _ in range(3):
        rig = start_rig(storage, num_chunks=1, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
        # The files are good; only these loads are not.
        rig.submit("load", keys, [1] * len(keys))
        assert rig.engine.drain(DEADLINE_S)
        assert HIT not in rig.verdicts(keys)
        assert rig.await_stats(scan_complete=1)
        assert rig.verdicts(keys) == [MISS] * len(keys)
        assert rig.engine.stats()["index_keys"] == 0
        rig.engine.close()


def test_absence_that_is_found_during_the_scan_is_newer(start_rig: StartRig, storage: Path) -> None:
    old, new = _keys(500)[:400], _keys(500)[400:]
    for key in old:
        _place(_path(storage, key))
    rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner", negative_ttl_s=3600.0)
    rig.ask(new)
    assert rig.verdicts(new) == [MISS] * len(new)
    for key in new:
        _place(_path(storage, key))
    assert rig.await_stats(scan_complete=1)
    assert rig.verdicts(old) == [HIT] * len(old)
    assert rig.verdicts(new) == [MISS] * len(new)


def test_engine_is_usable_before_the_scan_has_ended(start_rig: StartRig, storage: Path) -> None:
    keys = _keys(600)
    for key in keys:
        _place(_path(storage, key))
    rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
    rig.ask(keys[-50:])
    assert rig.verdicts(keys[-50:]) == [HIT] * 50
    stored = [rig.key(number) for number in range(50)]
    assert rig.store(stored, [0] * 50).outcomes == [0] * 50
    assert rig.verdicts(stored) == [HIT] * 50
    assert rig.load(keys[:50], [1] * 50).outcomes == [0] * 50
    assert rig.await_stats(scan_complete=1, index_keys=650)


def test_chunks_that_came_and_went_while_no_engine_ran_are_known(start_rig: StartRig, storage: Path) -> None:
    def start() -> Rig:
        rig = start_rig(storage, num_chunks=1, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner")
        assert rig.await_stats(scan_complete=1)
        return rig

    rig = start()
    keys = [rig.key(number) for number in range(200)]
    there = set(keys[:100])
    rig.store(keys[:100], [0] * 100)
    for seed in range(4):
        rig.engine.close()
        for key in keys[seed::5]:
            if key in there:
                _path(storage, key).unlink()
                there.discard(key)
            else:
                _place(_path(storage, key))
                there.add(key)
        rig = start()
        assert rig.verdicts(keys) == [HIT if key in there else MISS for key in keys]
        assert rig.engine.stats()["index_keys"] == len(there)


@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
def test_scan_ends_early_when_the_engine_closes(start_rig: StartRig, storage: Path) -> None:
    keys = _keys(4000)
    for key in keys:
        _place(_path(storage, key))
    ended_early = False
    # One of a few engines has read less than thousands of directories, if it does not wait for its scan.
    for _ in range(20):
        rig = start_rig(storage, chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="shared")
        rig.engine.close()
        stats = rig.engine.stats()
        assert stats["scan_complete"] == (stats["scanned_files"] == len(keys))
        ended_early = ended_early or stats["scan_complete"] == 0
        assert _await(lambda: not _scans())
    assert ended_early


@pytest.fixture
def unprivileged(storage: Path) -> Iterator[Callable[[Path], None]]:
    """Yield a function that gives a tree to a user without rights, whom the test then is until its end."""
    if os.geteuid() != 0:
        yield lambda _: None
        return
    storage.chmod(0o755)

    def become(tree: Path) -> None:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        # The C library changes all threads of the process.
        os.seteuid(NOBODY)

    yield become
    os.seteuid(0)


# A directory of the session's own that other users can enter: not below pytest's, which is closed to them.
@pytest.mark.parametrize("storage", ["tmpfs"], indirect=True)
@pytest.mark.parametrize(
    ("closed", "complete"),
    [
        pytest.param(f"ns/{FIRST}", False, id="first-level"),
        pytest.param(f"ns/{FIRST}/{SECOND}", False, id="second-level"),
        pytest.param("ns/lost+found", True, id="no-directory-of-chunks"),
        pytest.param(f"ns/{FIRST}/notes", True, id="no-directory-of-chunks-below"),
        pytest.param(f"ns/{FIRST}/{SECOND}/notes", True, id="too-far-below"),
    ],
)
def test_directory_that_cannot_be_read_leaves_the_scan_incomplete(
    start_rig: StartRig,
    storage: Path,
    unprivileged: Callable[[Path], None],
    closed: str,
    complete: bool,
) -> None:
    key = HASH + bytes(4)
    others = _keys(20)
    for each in (key, *others):
        _place(_path(storage / "ns", each))
    (storage / closed).mkdir(parents=True, exist_ok=True)
    unprivileged(storage / "ns")
    (storage / closed).chmod(0)
    rig = start_rig(
        storage / "ns", chunk_size_bytes=CHUNK_SIZE_BYTES, index_mode="owner", negative_ttl_s=3600.0
    )
    assert _await(lambda: not _scans())
    assert rig.engine.stats()["scan_complete"] == complete
    assert rig.engine.stats()["owner"] == 1
    assert rig.verdicts(others) == [HIT] * len(others)
    unknown = rig.key(1)
    assert rig.engine.lookup(unknown) == (MISS if complete else RETRY)
    # The owner, too, has to ask.
    rig.ask([unknown])
    assert rig.engine.lookup(unknown) == MISS
    assert rig.load([unknown], [0]).outcomes == [errno.ENOENT]
    assert rig.engine.lookup(unknown) == (MISS if complete else RETRY)
    rig.engine.close()
    (storage / closed).chmod(0o700)
