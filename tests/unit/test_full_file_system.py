"""Stores that the file system refuses in mid-job: full, limited, read-only."""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import until_admitted
from system_tools import MKFS

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, StartRig

CHUNK_SIZE_BYTES = 65536


@pytest.fixture(params=["tmpfs-needs_root", "ext4-needs_root"])
def small(request: pytest.FixtureRequest, mount: Mount, tmp_path: Path) -> Path:
    """Return a file system of a few MiB."""
    if request.param.startswith("tmpfs"):
        return mount("tmpfs", options="size=4m")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run([MKFS, "-q", "-F", "-m", "0", str(image)], check=True, timeout=30)
    return mount("ext4", source=str(image), options="loop")


def _fill_up(directory: Path, leave_bytes: int) -> Path:
    """Fill the file system but for `leave_bytes` with a file that the test removes later."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - always raised, to end the loop
        file.truncate(file.tell() - leave_bytes)
    return filler


@pytest.mark.needs_root
@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_store_disk_full_fails_keys_with_enospc_and_recovers(
    start_rig: StartRig, small: Path, use_o_direct: bool
) -> None:
    count = 200
    rig = start_rig(
        small / "namespace", num_chunks=2, chunk_size_bytes=CHUNK_SIZE_BYTES, use_o_direct=use_o_direct
    )
    chunk = rig.tier.fill(0, seed=1)
    keys = [rig.key(number) for number in range(count)]
    completion = rig.store(keys, [0] * count)
    stored = [key for key, outcome in zip(keys, completion.outcomes, strict=True) if outcome == 0]
    assert set(completion.outcomes) == {0, errno.ENOSPC}
    assert completion.bytes_moved == len(stored) * CHUNK_SIZE_BYTES
    assert "No space left" in completion.detail
    assert list(small.rglob("*.tmp")) == []
    # Loads go on, and what failed is a miss.
    lookups = rig.lookup(keys).outcomes
    assert lookups == [0 if outcome == 0 else errno.ENOENT for outcome in completion.outcomes]
    for key in stored:
        assert rig.load([key], [1]).outcomes == [0]
        assert rig.tier.row(1) == chunk
    for key in stored[:3]:
        rig.path(key).unlink()
    assert until_admitted(lambda: rig.store(stored[:2], [0, 0])).outcomes == [0, 0]


@pytest.mark.needs_root
def test_store_no_room_for_some_keys_still_tries_the_later_ones(start_rig: StartRig, small: Path) -> None:
    rig = start_rig(small / "namespace", num_chunks=1, chunk_size_bytes=CHUNK_SIZE_BYTES)
    keys = [rig.key(number) for number in range(6)]
    assert rig.store([keys[1], keys[5]], [0, 0]).outcomes == [0, 0]
    # Less than a chunk: the write itself comes back short before it fails.
    filler = _fill_up(small, leave_bytes=CHUNK_SIZE_BYTES // 2)
    full = [errno.ENOSPC, 0, errno.ENOSPC, errno.ENOSPC, errno.ENOSPC, 0]
    assert rig.store(keys, [0] * 6).outcomes == full
    assert list(small.rglob("*.tmp")) == []
    filler.unlink()
    assert until_admitted(lambda: rig.store(keys, [0] * 6)).outcomes == [0] * 6
    assert rig.lookup(keys).outcomes == [0] * 6


@pytest.mark.needs_root
def test_batch_store_disk_full_raises_enospc_with_count(io: IoBackend, small: Path) -> None:
    chunk = bytes(CHUNK_SIZE_BYTES)
    names = [str(small / f"{number}.bin") for number in range(200)]
    with pytest.raises(OSError, match="No space left") as caught:
        io.batch_store([f"{name}.tmp" for name in names], names, [chunk] * len(names))
    assert caught.value.errno == errno.ENOSPC
    succeeded: int = caught.value.num_succeeded  # type: ignore[attr-defined]
    assert caught.value.filename == names[succeeded]
    assert io.batch_lookup(names) == [number < succeeded for number in range(200)]
    assert list(small.rglob("*.tmp")) == []


@pytest.mark.needs_root
def test_store_no_inodes_left_fails_with_enospc(start_rig: StartRig, mount: Mount) -> None:
    directory = mount("tmpfs", options="size=4m,nr_inodes=20")
    rig = start_rig(directory, num_chunks=1)
    keys = [rig.key(number) for number in range(20)]
    assert set(rig.store(keys, [0] * 20).outcomes) == {0, errno.ENOSPC}
    assert list(directory.rglob("*.tmp")) == []


@pytest.mark.needs_root
def test_read_only_file_system_fails_stores_with_erofs_and_still_loads(
    start_rig: StartRig, mount: Mount
) -> None:
    directory = mount("tmpfs", options="size=4m")
    rig = start_rig(directory, num_chunks=4)
    keys = [rig.key(number) for number in range(4)]
    chunk = rig.tier.fill(0, seed=1)
    rig.store(keys[:3], [0] * 3)
    rig.path(keys[1]).write_bytes(chunk[:100])
    rig.path(keys[2]).write_bytes(chunk + b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True, timeout=30)
    assert rig.store(keys, [0] * 4).outcomes == [0, errno.EROFS, errno.EROFS, errno.EROFS]
    completion = rig.load(keys, [1, 2, 2, 2])
    assert completion.outcomes == [0, errno.EBADMSG, errno.EBADMSG, errno.ENOENT]
    assert rig.tier.row(1) == chunk
    # It could not be removed, and nothing says it was.
    assert rig.path(keys[1]).exists()
    assert rig.engine.stats()["removed_files"] == 0


FILE_SIZE_LIMIT = CHUNK_SIZE_BYTES // 2


@contextlib.contextmanager
def file_size_limit() -> Iterator[None]:
    """Limit files of this process to half a chunk: writes come back short, then fail with EFBIG.

    Around the store alone: pytest's own output may be a file, too.
    """
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE_LIMIT, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
def test_store_short_write_fails_with_the_errno_and_leaves_nothing(
    start_rig: StartRig, storage: Path, use_o_direct: bool
) -> None:
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=2 * FILE_SIZE_LIMIT, use_o_direct=use_o_direct)
    with file_size_limit():
        completion = rig.store([rig.key(1), rig.key(2)], [0, 0])
    assert completion.outcomes == [errno.EFBIG] * 2
    assert rig.files() == []


def test_batch_store_short_write_raises_the_errno_and_leaves_nothing(io: IoBackend, storage: Path) -> None:
    small, large = bytes(FILE_SIZE_LIMIT), bytes(FILE_SIZE_LIMIT + 1)
    names = [str(storage / name) for name in ("small", "large")]
    with file_size_limit(), pytest.raises(OSError, match=r".+") as caught:
        io.batch_store([f"{name}.tmp" for name in names], names, [small, large])
    assert caught.value.errno == errno.EFBIG
    assert caught.value.num_succeeded == 1  # type: ignore[attr-defined]
    assert [path.name for path in storage.iterdir()] == ["small"]
