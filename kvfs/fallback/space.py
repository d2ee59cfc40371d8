"""What one engine may still store: leases on the room that all processes share. docs/capacity.md."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvfs.fallback.space_file import SPACE_NAME, SpaceFile, SpaceTable
from kvfs.paths import make_directories

# What a chunk's file counts in, and its directory as, whatever they take.
_BLOCK_BYTES: Final = 4096
DIRECTORY_BYTES: Final = _BLOCK_BYTES
# A file without blocks may claim any length.
_SIZE_BYTES_MAX: Final = 1 << 40
_LEASE_BYTES_MAX: Final = 64 << 20
_LEASES_PER_CAPACITY: Final = 256
# Evicting begins and ends so far below the capacity, in parts of it; without one, so many chunks.
_MARGIN_PARTS: Final = 20
_MARGIN_CHUNKS: Final = 64
# Counting a root with many chunks takes seconds: a twentieth of the time at most, and after a failure a
# minute passes.
_RECOUNT_SHARE: Final = 20
_RECOUNT_PERIOD_S: Final = 60.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# A place in the shared file may be had later. Busy: another process has stood still, or the disk has, while
# it held the file.
_MAY_PASS: Final = frozenset({errno.EROFS, errno.EBUSY, *_FULL})
_CHUNKS_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """The engine's arguments of the same names; None is no limit."""

    capacity_bytes: int | None = None
    min_free_bytes: int | None = None

    def check(self, chunk_size_bytes: int) -> None:
        """Raise ValueError unless a few chunks fit the capacity."""
        # A block for what rounding up takes at most, and one for the directory.
        least = _CHUNKS_MIN * (chunk_size_bytes + 2 * _BLOCK_BYTES)
        if self.capacity_bytes is not None and self.capacity_bytes < least:
            raise ValueError(
                f"capacity_bytes must be at least {least} for chunks of {chunk_size_bytes} bytes, got "
                f"{self.capacity_bytes}"
            )

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.capacity_bytes is not None or self.min_free_bytes is not None


def chunk_cost_bytes(chunk_size_bytes: int) -> int:
    """Return what a chunk counts as that has a directory for itself."""
    return counted_bytes(chunk_size_bytes) + DIRECTORY_BYTES


def counted_bytes(size_bytes: int) -> int:
    """Return what a file in a chunk's directory counts as, which stays the same until it is removed."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES if size_bytes < _SIZE_BYTES_MAX else 0


class Space:
    """Room for stores. Thread-safe. Without limits it lets everything through and touches nothing.

    Joins those who share the root, which is made if it is missing. Blocks.

    Args:
        limits: What is to be kept.
        root: The directory that they are for.
        chunk_size_bytes: Size of every chunk.
        file_mode: Mode of the shared file.
        dir_mode: Mode of missing directories.

    Raises:
        OSError: The shared file cannot be used.
    """

    def __init__(
        self, limits: SpaceLimits, root: str, chunk_size_bytes: int, file_mode: int, dir_mode: int
    ) -> None:
        self.root = root
        self.cost_bytes = chunk_cost_bytes(chunk_size_bytes)
        # Called when there is something to evict, from any thread.
        self.on_scarce: Callable[[], None] = lambda: None
        self._limits = limits
        wanted = (limits.capacity_bytes or _LEASE_BYTES_MAX * _LEASES_PER_CAPACITY) // _LEASES_PER_CAPACITY
        self._lease_bytes = max(self.cost_bytes, min(_LEASE_BYTES_MAX, wanted))
        # To evict before the others learn of the room: who is killed in between leaves it promised.
        self.chunks_per_lease = self._lease_bytes // self.cost_bytes
        self._lock = threading.Lock()  # guards what follows
        # By this engine, less what it has removed; being stored; what its slot says, which is at least both.
        self._stored = 0
        self._reserved = 0
        self._claim = 0
        # As of the last look.
        self._total = 0
        self._free = 0
        self._used = 0
        self._counted = False
        # What stands there was counted, a process has ended since, and there is no other.
        self._may_recount = False
        self._count_began = self._recount_at = 0.0
        # The last lease was refused, so that the next would be, too, until refresh() sees room.
        self._denied = False
        self._sheds = 0
        self._file: SpaceFile | None = None
        self._file_mode = file_mode
        # The file system is full, so that not even the shared file could be written.
        self._no_room_for_table = False
        if limits.any:
            make_directories(root, dir_mode)
            self._start()

    @property
    def enabled(self) -> bool:
        """Whether anything is limited."""
        return self._limits.any

    @property
    def must_count(self) -> bool:
        """Whether what lies below the root has to be counted.

        Or counted again: more is promised than there may be, which is too much, and nobody else is here.
        """
        with self._lock:
            if self._limits.capacity_bytes is None or self._file is None:
                return False
            if not self._counted:
                return True
            return self._may_recount and self._beyond(1) > 0 and time.monotonic() >= self._recount_at

    def begin_count(self) -> tuple[int, int]:
        """Return what is promised when a count begins: by this engine, and to none.

        Until its end nothing may be `removed`. What this engine had stored before belongs to none then.
        Blocks for as long as other processes' turns take.
        """
        start = (0, 0)
        self._count_began = time.monotonic()
        self._recount_at = self._count_began + _RECOUNT_PERIOD_S

        def look(table: SpaceTable) -> None:
            nonlocal start
            start = (self._stored, table.unowned)

        self._update(look)
        return start

    def reserve(self) -> bool:
        """Tell whether there is room for a chunk; then either `stored` or `cancelled` is due."""
        if not self.enabled:
            return True
        with self._lock:
            fits = self._stored + self._reserved + self.cost_bytes <= self._claim
            granted = fits or (self._file is not None and not self._denied and self._lease(self._file))
            self._denied = not granted
            if granted:
                self._reserved += self.cost_bytes
            else:
                self._sheds += 1
            scarce = not granted or self._beyond(1) > 0
        if scarce:
            self.on_scarce()
        return granted

    def stored(self) -> None:
        """Keep what was reserved."""
        with self._lock:
            if self.enabled:
                self._reserved -= self.cost_bytes
                self._stored += self.cost_bytes - DIRECTORY_BYTES

    def made_directory(self) -> None:
        """Keep the part of what was reserved that the chunk's directory needed."""
        with self._lock:
            if self.enabled:
                self._stored += DIRECTORY_BYTES

    def cancelled(self) -> None:
        """Give back what was reserved."""
        with self._lock:
            if self.enabled:
                self._reserved -= self.cost_bytes

    def removed(self, size_bytes: int) -> None:
        """Give back files or directories that are gone and counted as so much, whoever had made them."""
        with self._lock:
            self._stored -= size_bytes

    def set_counted(self, size_bytes: int, start: tuple[int, int]) -> None:
        """Note that everything takes so much; `start` is what `begin_count` said."""
        stored, unowned = start
        is_used = False

        def change(table: SpaceTable) -> None:
            nonlocal is_used
            # A process that came meanwhile has counted, too, or may have evicted chunks: then this count has
            # not seen them any more, and they are taken from what was there before.
            if not table.counted or (table.stale and table.unowned == unowned and self._is_alone()):
                # What was stored meanwhile, also by who is dead by now, may have been seen or not: it counts
                # twice rather than not at all.
                orphaned = max(0, table.unowned - unowned)
                table.unowned = size_bytes + orphaned
                table.slots[table.mine] = self._claim - stored
                table.stale = orphaned > 0
                is_used = True
            table.counted = True

        is_written = self._update(change)
        if is_used and is_written:
            with self._lock:
                self._stored -= stored
                self._claim -= stored
                self._may_recount = False
        now = time.monotonic()
        self._recount_at = now + _RECOUNT_SHARE * (now - self._count_began)

    def removed_unowned(self, size_bytes: int) -> None:
        """Give back bytes that are gone and belonged to no process."""

        def change(table: SpaceTable) -> None:
            table.unowned -= size_bytes
            if not table.counted:
                # Before the count it is only a part.
                table.unowned = max(0, table.unowned)

        self._update(change)

    def refresh(self) -> None:
        """Learn what the others hold, and give back what was leased and is not needed."""
        if not self.enabled:
            return
        with self._lock:
            held = self._stored + self._reserved
            wanted = min(self._claim, held + self._lease_bytes)
            if not self._reserved:
                # A chunk whose directory was removed while it was written has made more than one. As long as
                # others are being stored, what they have made is in their reservations, too.
                wanted = max(wanted, held)

            def change(table: SpaceTable) -> None:
                table.slots[table.mine] = wanted
                self._may_recount = table.counted and table.stale and self._is_alone()

            with contextlib.suppress(OSError):
                if self._file is None:
                    self._file = self._join()
                self._free, self._used = self._file.room()
                self._file.update(lambda table: self._look(table, change))
                self._claim = wanted
            self._denied = False

    def excess_bytes(self) -> int:
        """Return how many bytes have to be evicted now, as of the last `refresh`."""
        with self._lock:
            return self._beyond(2) if self._beyond(1) > 0 else 0

    def remaining_excess_bytes(self) -> int:
        """Return the same while evicting, which begins later than it ends."""
        with self._lock:
            return self._beyond(2)

    def stats(self) -> dict[str, int]:
        """Return the room's part of the engine's `stats()`."""
        # Without the lock, which is held while a disk that hangs is asked for its room. See `_look`.
        is_counted = self._counted
        return {
            "capacity_sheds": self._sheds,
            "used_bytes": max(0, self._total),
            "free_bytes": self._free,
            "space_counted": int(is_counted),
        }

    def close(self) -> None:
        """Give back what was leased and leave; what was stored belongs to nobody then. Blocks."""
        with self._lock:
            if self._file is not None:
                held = self._stored + self._reserved

                def change(table: SpaceTable) -> None:
                    table.slots[table.mine] = held

                with contextlib.suppress(OSError):
                    self._file.update(change)
                self._file.close()

    def _start(self) -> None:
        """Join the others, but not where nothing can be stored now: what is there can still be loaded."""
        try:
            self._file = self._join()
        except OSError as error:
            if error.errno in _MAY_PASS:
                return
            problem = f"cannot share with other processes what is taken ({error.strerror or error})"
            raise OSError(error.errno or errno.EIO, problem, f"{self.root}/{SPACE_NAME}") from error

    def _join(self) -> SpaceFile:
        with self._noting_want_of_room():
            file = SpaceFile(self.root, self._file_mode)
            self._enter(file)
            return file

    def _enter(self, file: SpaceFile) -> None:
        def change(table: SpaceTable) -> None:
            left, table.slots[table.mine] = table.slots[table.mine], 0
            table.unowned += left
            table.stale = table.stale or left != 0
            # What others than kvfs have written since is counted, too.
            table.counted = table.counted and not file.alone

        try:
            self._free, self._used = file.room()
            file.update(lambda table: self._look(table, change))
        except BaseException:
            file.close()
            raise

    @contextlib.contextmanager
    def _noting_want_of_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._no_room_for_table = error.errno in _FULL
            raise
        self._no_room_for_table = False

    def _update(self, change: Callable[[SpaceTable], None]) -> bool:
        """Change the table; tell whether that was done."""
        with self._lock, contextlib.suppress(OSError), self._noting_want_of_room():
            if self._file is not None:
                self._file.update(lambda table: self._look(table, change))
                return True
        return False

    def _is_alone(self) -> bool:
        """Tell whether nobody else has a slot: a system call. For a change of the table."""
        return self._file is not None and self._file.is_alone()

    def _look(self, table: SpaceTable, change: Callable[[SpaceTable], None]) -> None:
        change(table)
        # In this order: whoever sees that it was counted sees how much it is.
        self._total = table.total
        self._counted = table.counted

    def _lease(self, file: SpaceFile) -> bool:
        """Take room from what is left for all. The caller holds the lock."""
        needed = self._stored + self._reserved + self.cost_bytes - self._claim
        taken = 0

        def change(table: SpaceTable) -> None:
            nonlocal taken
            table.slots[table.mine] = self._claim
            sizes = (max(needed, self._lease_bytes), needed)
            taken = next((size for size in sizes if self._fits(table, size)), 0)
            table.slots[table.mine] += taken

        try:
            self._free, self._used = file.room()
            file.update(lambda table: self._look(table, change))
        except OSError:
            return False
        self._claim += taken
        return taken > 0

    def _fits(self, table: SpaceTable, more: int) -> bool:
        """Tell whether so much more may be taken. The caller holds the lock."""
        capacity_bytes, min_free_bytes = self._limits.capacity_bytes, self._limits.min_free_bytes
        # Until all has been counted, no more than all that is taken there can be ours.
        taken = table.total if table.counted else self._used + max(0, table.total)
        if capacity_bytes is not None and taken + more > capacity_bytes:
            return False
        unwritten = self._claim - self._stored
        return min_free_bytes is None or self._free - unwritten - more >= min_free_bytes

    def _beyond(self, margins: int) -> int:
        """Return how many bytes too many there are if so many margins are to be left."""
        capacity_bytes, min_free_bytes = self._limits.capacity_bytes, self._limits.min_free_bytes
        excess = 0
        margin = _MARGIN_CHUNKS * self.cost_bytes
        if capacity_bytes is not None:
            # At least a chunk, or a store would be refused that nothing makes room for.
            margin = max(self.cost_bytes, capacity_bytes // _MARGIN_PARTS)
            if self._counted:
                excess = self._total - (capacity_bytes - margins * margin)
        if min_free_bytes is not None:
            kept = min_free_bytes + self._claim - self._stored
            excess = max(excess, kept + margins * max(self.cost_bytes, margin // 2) - self._free)
        if self._no_room_for_table:
            # Nothing can be counted before there is room for the file that says how much it is.
            excess = max(excess, _CHUNKS_MIN * self.cost_bytes)
        return max(0, excess)
