"""The thread that counts what lies below the root, and removes chunks when there are too many.

docs/capacity.md has the rules.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from kvfs.fallback import tree
from kvfs.fallback.chunks import Chunks
from kvfs.fallback.index import KeyIndex
from kvfs.fallback.names import chunk_names
from kvfs.fallback.space import DIRECTORY_BYTES, Space, counted_bytes

# How long what other processes do may go unnoticed.
_PERIOD_S: Final = 1.0
# Evicted before the others learn of the room.
_KEYS_AT_ONCE_MAX: Final = 64
_EVICTED_KEPT_MAX: Final = 65_536
_UNUSED_KEPT_MAX: Final = 65_536
# Walking a root with many chunks takes seconds.
_UNUSED_LOOK_PERIOD_S: Final = 60.0
# Of the time, a twentieth at most.
_LEARN_SHARE: Final = 20
# What a look says may be a little off.
_ROUNDS: Final = 4
# Directories to remove before looking whether stores need room.
_PRUNED_AT_ONCE: Final = 16
# And before looking what other processes do; half a second.
_PRUNED_PER_TURN: Final = 256


class Evictor:
    """Evicts until there is room. `run` belongs to one thread; all else is thread-safe and never blocks.

    Args:
        chunks: The namespace.
        chunk_size_bytes: Size of every chunk.
        index: Says which chunks were used longest ago.
        space: Says how much is to be evicted.
        learn: Adds to the index what others have stored.
    """

    def __init__(
        self,
        chunks: Chunks,
        chunk_size_bytes: int,
        index: KeyIndex,
        space: Space,
        learn: Callable[[], None],
    ) -> None:
        self._chunks = chunks
        self._chunk_size_bytes = chunk_size_bytes
        self._index = index
        self._space = space
        self._stopped = threading.Event()
        self._wake = threading.Event()
        # Files that others have removed: their two directories, and what they counted as.
        self._removed: deque[tuple[str, str, int]] = deque()
        # Directories that may be empty.
        self._unpruned: list[tuple[str, str]] = []
        # Chunks of unused namespaces, oldest first; and when to look for more.
        self._unused: deque[tree.UnusedChunk] = deque()
        self._look_again_at = 0.0
        self._learn = learn
        self._learn_at = 0.0
        self._evicted: deque[bytes] = deque(maxlen=_EVICTED_KEPT_MAX)
        self._evicted_chunks = 0
        self._evicted_bytes = 0
        self._failures = 0
        space.on_scarce = self._wake.set

    def run(self) -> None:
        """Count, evict and prune until `stop`. Blocks."""
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                self._take_a_turn()
            except Exception:  # noqa: BLE001 - out of memory, say; the next turn may find some
                self._failures += 1
            if not self._unpruned:
                self._wake.wait(_PERIOD_S)

    def stop(self) -> None:
        """Ask it to end; returns before it has ended."""
        self._stopped.set()
        self._wake.set()

    def finish(self) -> None:
        """Give back what loads have removed until their end, once `run` has ended."""
        if self._space.enabled and not self._space.must_count:
            self._take_removed(give_back=True)

    def note_removed(self, first: str, second: str, size_bytes: int) -> None:
        """Note that a file of this size is gone from a chunk's directory, which may be empty now."""
        if self._space.enabled:
            self._removed.append((first, second, counted_bytes(size_bytes)))

    def take_evicted(self) -> list[bytes]:
        """Take the keys evicted since the last call, or the last of them."""
        taken = []
        while self._evicted:
            taken.append(self._evicted.popleft())
        return taken

    def stats(self) -> dict[str, int]:
        """Return the evictor's part of the engine's `stats()`."""
        return {
            "evicted_chunks": self._evicted_chunks,
            "evicted_bytes": self._evicted_bytes,
            "evict_failures": self._failures,
        }

    def _take_a_turn(self) -> None:
        # Not before all has been counted: what is gone by then may not have been seen.
        if not self._space.must_count:
            self._take_removed(give_back=True)
        self._space.refresh()
        if self._space.must_count:
            self._count()
            self._space.refresh()
        self._evict()
        self._prune()

    def _count(self) -> None:
        self._take_removed(give_back=True)
        start = self._space.begin_count()
        size_bytes = tree.count_tree(self._space.root, self._stopped.is_set)
        if size_bytes is None:
            return
        self._space.set_counted(size_bytes, start)
        self._take_removed(give_back=False)

    def _take_removed(self, *, give_back: bool) -> None:
        """Take what others have removed, to be given back or not."""
        while self._removed:
            first, second, size_bytes = self._removed.popleft()
            if give_back:
                self._space.removed(size_bytes)
            self._unpruned.append((first, second))

    def _evict(self) -> None:
        for _ in range(_ROUNDS):
            # What pruning will give back makes no more chunks victims.
            excess_bytes = self._space.excess_bytes() - len(self._unpruned) * DIRECTORY_BYTES
            if excess_bytes <= 0 or self._stopped.is_set():
                return
            freed_bytes = self._evict_unused(excess_bytes)
            if freed_bytes < excess_bytes:
                freed_bytes += self._evict_own(excess_bytes - freed_bytes)
            self._space.refresh()
            if not freed_bytes and not self._has_learned():
                return

    def _has_learned(self) -> bool:
        """Look what others have stored, where nothing known is left to evict; False if that was just done."""
        began = time.monotonic()
        if began < self._learn_at:
            return False
        self._learn()
        ended = time.monotonic()
        self._learn_at = ended + max(_PERIOD_S, _LEARN_SHARE * (ended - began))
        return True

    def _evict_unused(self, size_bytes: int) -> int:
        """Evict chunks of namespaces that nobody uses; return how many bytes that has freed."""
        now = time.monotonic()
        if not self._unused and now >= self._look_again_at:
            found = tree.unused_chunks(
                self._space.root, self._chunks.base_path, _UNUSED_KEPT_MAX, self._stopped.is_set
            )
            self._unused.extend(found)
            self._look_again_at = now + _UNUSED_LOOK_PERIOD_S
        freed_bytes = 0
        while self._unused and freed_bytes < size_bytes and not self._stopped.is_set():
            chunk = self._unused.popleft()
            try:
                removed_bytes = tree.remove_unused(chunk)
            except OSError:
                self._failures += 1
                continue
            freed_bytes += removed_bytes
            self._evicted_chunks += removed_bytes > 0
        if freed_bytes:
            self._space.removed_unowned(freed_bytes)
        self._evicted_bytes += freed_bytes
        return freed_bytes

    def _evict_own(self, size_bytes: int) -> int:
        """Evict chunks of this namespace; return how many bytes that has freed."""
        victims = deque(self._index.oldest(-(-size_bytes // self._space.cost_bytes)))
        at_once = min(_KEYS_AT_ONCE_MAX, self._space.chunks_per_lease)
        freed = 0
        while victims and not self._stopped.is_set():
            batch = [victims.popleft() for _ in range(min(at_once, len(victims)))]
            freed += sum([self._evict_one(key) for use, key in batch if self._index.take(key, use)])
            # The room is there as soon as the slot says so. Others see the same excess and evict, too.
            self._space.refresh()
            if not self._space.remaining_excess_bytes():
                break
        return freed * self._space.cost_bytes

    def _evict_one(self, key: bytes) -> bool:
        try:
            size_bytes = self._chunks.remove(key)
        except OSError:
            self._failures += 1
            return False
        # A store has ended meanwhile: as a duplicate of the file that is gone, or after it, with its own.
        if self._index.drop_taken(key) and self._chunks.lookup(key, self._chunk_size_bytes) == errno.ENOENT:
            self._index.forget(key)
        if size_bytes is not None:
            # One that has grown since was not reserved as such.
            self._space.removed(counted_bytes(min(size_bytes, self._chunk_size_bytes)))
            first, second, _ = chunk_names(key)
            self._unpruned.append((first, second))
        self._evicted_chunks += 1
        self._evicted_bytes += self._space.cost_bytes
        self._evicted.append(key)
        return size_bytes is not None

    def _prune(self) -> None:
        """Remove directories that evicting has left empty, until there is something more urgent."""
        for count in range(min(len(self._unpruned), _PRUNED_PER_TURN)):
            if self._stopped.is_set() or (count >= _PRUNED_AT_ONCE and self._space.excess_bytes()):
                return
            self._space.removed(tree.prune(self._chunks.base_path, *self._unpruned.pop()))
