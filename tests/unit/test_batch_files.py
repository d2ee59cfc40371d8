"""Level 1 on disk: lookups, round trips, and how far a failing batch got."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kvfs.jobs import IoBackend

CHUNK = bytes(range(256)) * 16


def _names(root: Path, count: int) -> tuple[list[str], list[str]]:
    paths = [str(root / f"dir{i % 3}" / f"{i}.bin") for i in range(count)]
    return [f"{path}.tmp" for path in paths], paths


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_batch_lookup_mixed_paths_answers_in_order(io: IoBackend, storage: Path) -> None:
    present = storage / "present"
    present.write_bytes(b"x")
    empty = storage / "empty"
    empty.touch()
    link = storage / "link"
    link.symlink_to(present)
    dangling = storage / "dangling"
    dangling.symlink_to(storage / "nothing")
    fifo = storage / "fifo"
    os.mkfifo(fifo)
    cases = [
        (present, True),
        (storage / "missing", False),
        (empty, False),
        (storage, False),
        (link, False),
        (dangling, False),
        (fifo, False),
        (present / "below-a-file", False),
        (storage / ("n" * 300), False),
        (present, True),
    ]
    assert io.batch_lookup([str(path) for path, _ in cases]) == [expected for _, expected in cases]


def test_batch_lookup_one_path_answers_one(io: IoBackend, storage: Path) -> None:
    assert io.batch_lookup([str(storage / "missing")]) == [False]
    (storage / "present").write_bytes(b"x")
    assert io.batch_lookup([str(storage / "present")]) == [True]


def test_batch_lookup_empty_string_is_absent(io: IoBackend) -> None:
    assert io.batch_lookup([""]) == [False]


@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_batch_store_then_load_returns_the_bytes(
    io: IoBackend, storage: Path, count: int, use_o_direct: bool
) -> None:
    temporaries, paths = _names(storage, count)
    chunks = [bytes([i]) + CHUNK[1:] for i in range(count)]
    io.batch_store(temporaries, paths, list(chunks), use_o_direct)
    assert io.batch_lookup(paths) == [True] * count
    assert _files(storage) == sorted(str(Path(path).relative_to(storage)) for path in paths)
    loaded = [bytearray(len(CHUNK)) for _ in range(count)]
    io.batch_load(paths, list(loaded), use_o_direct)
    assert loaded == chunks


def test_batch_round_trip_without_o_direct_argument_works(io: IoBackend, storage: Path) -> None:
    path = str(storage / "chunk")
    io.batch_store([f"{path}.tmp"], [path], [CHUNK])
    loaded = bytearray(len(CHUNK))
    io.batch_load([path], [loaded])
    assert loaded == CHUNK


@pytest.mark.parametrize(
    "name", ["\udcff\udc80", "Kapitän", "with space\n"], ids=["not-utf8", "utf8", "newline"]
)
def test_batch_round_trip_odd_name_keeps_bytes(io: IoBackend, storage: Path, name: str) -> None:
    path = str(storage / name)
    io.batch_store([f"{path}.tmp"], [path], [CHUNK])
    assert [os.fsencode(path.name) for path in storage.iterdir()] == [os.fsencode(name)]
    loaded = bytearray(len(CHUNK))
    io.batch_load([path], [loaded])
    assert loaded == CHUNK


def test_batch_load_missing_file_stops_there_and_says_how_far(io: IoBackend, storage: Path) -> None:
    temporaries, paths = _names(storage, 4)
    io.batch_store(temporaries, paths, [CHUNK] * 4)
    Path(paths[2]).unlink()
    loaded = [bytearray(len(CHUNK)) for _ in range(4)]
    with pytest.raises(FileNotFoundError) as caught:
        io.batch_load(paths, list(loaded))
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == paths[2]
    assert caught.value.num_succeeded == 2  # type: ignore[attr-defined]
    assert loaded[:2] == [CHUNK, CHUNK]
    assert loaded[3] == bytes(len(CHUNK))


def test_batch_store_directory_in_the_way_stops_there_and_says_how_far(io: IoBackend, storage: Path) -> None:
    temporaries, paths = _names(storage, 4)
    Path(paths[1]).mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as caught:
        io.batch_store(temporaries, paths, [CHUNK] * 4)
    assert caught.value.errno == errno.EISDIR
    assert caught.value.filename == paths[1]
    assert caught.value.num_succeeded == 1  # type: ignore[attr-defined]
    assert _files(storage) == ["dir0/0.bin"]


def test_batch_load_short_file_raises_ebadmsg_with_path(io: IoBackend, storage: Path) -> None:
    path = storage / "chunk"
    path.write_bytes(CHUNK[:-1])
    with pytest.raises(OSError, match=r".+") as caught:
        io.batch_load([str(path)], [bytearray(len(CHUNK))])
    assert caught.value.errno == errno.EBADMSG
    assert caught.value.filename == str(path)
    assert caught.value.num_succeeded == 0  # type: ignore[attr-defined]


def test_batch_over_long_path_raises_enametoolong(io: IoBackend, storage: Path) -> None:
    path = str(storage / ("n" * 300))
    with pytest.raises(OSError, match=r".+") as caught:
        io.batch_store([str(storage / "a.tmp")], [path], [CHUNK])
    assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError, match=r".+") as caught:
        io.batch_load([path], [bytearray(8)])
    assert caught.value.errno == errno.ENAMETOOLONG
    assert _files(storage) == []


def test_batch_store_temporary_of_another_writer_fails_and_leaves_it(io: IoBackend, storage: Path) -> None:
    temporary = storage / "chunk.tmp"
    temporary.write_bytes(b"another writer's")
    with pytest.raises(FileExistsError) as caught:
        io.batch_store([str(temporary)], [str(storage / "chunk")], [CHUNK])
    assert caught.value.num_succeeded == 0  # type: ignore[attr-defined]
    assert temporary.read_bytes() == b"another writer's"
    assert _files(storage) == ["chunk.tmp"]


def test_batch_store_temporary_is_a_link_does_not_follow_it(io: IoBackend, storage: Path) -> None:
    target = storage / "target"
    (storage / "chunk.tmp").symlink_to(target)
    with pytest.raises(FileExistsError):
        io.batch_store([str(storage / "chunk.tmp")], [str(storage / "chunk")], [CHUNK])
    assert not target.exists()


def test_batch_store_relative_paths_lie_in_the_working_directory(
    io: IoBackend, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(storage)
    io.batch_store(["a.tmp", "d/b.tmp"], ["a", "d/b"], [CHUNK, CHUNK])
    assert _files(storage) == ["a", "d/b"]


def test_batch_store_same_destination_twice_keeps_the_first(io: IoBackend, storage: Path) -> None:
    path = str(storage / "chunk")
    other = bytes(len(CHUNK))
    io.batch_store([f"{path}_1.tmp", f"{path}_2.tmp"], [path, path], [CHUNK, other])
    assert Path(path).read_bytes() == CHUNK
    assert _files(storage) == ["chunk"]
