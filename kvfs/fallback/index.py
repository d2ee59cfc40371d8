"""What the Python engine knows of keys: the states of docs/lookup.md, in a dict."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

# How long an absence that is over, or a failed load, is remembered beyond the time to live: a request has to
# learn that its question was answered, though its step took long.
_REMEMBERED_S: Final = 10.0
# More than one for each that is added, so that what piled up during a scan goes.
_PURGED_AT_ONCE: Final = 2
# Above all seconds of a calendar until the year 2106.
_FIRST_USE: Final = 2**32


class State(Enum):
    """What is known of a key. Of one that is not in the index nothing is."""

    PRESENT = "present"
    ABSENT = "absent"
    ASKED = "asked"
    FORGOTTEN = "forgotten"


class Entry(NamedTuple):
    """What is known of one key. Replaced as a whole, so that readers need no lock."""

    state: State
    # When: present, the last use; absent, the look at the disk; forgotten, the load's failure.
    at: float
    # Of a present key: the order of uses, a later one is more. Of files that were found, seconds of a
    # calendar, which is less than any use since a start.
    use: int = 0


# With its number and its key, but not the key's bytes.
_ENTRY_SIZE_BYTES: Final = sum(map(sys.getsizeof, (Entry(State.PRESENT, 0.0), 0.0, _FIRST_USE, b"")))


class KeyIndex:
    """The states of all keys. Thread-safe; no call touches the disk.

    Reading takes no lock: a dict hands out one entry or another, never half of one. Changes are made one at a
    time. While `scanning` is set nothing is purged, since the scan adds all keys of which nothing is known.

    Args:
        negative_ttl_s: How long an absence is believed.
        clock: Seconds since some start.
    """

    def __init__(self, negative_ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.scanning = False
        self._negative_ttl_s = negative_ttl_s
        self._clock = clock
        self._lock = threading.Lock()  # held to change anything below
        self._entries: dict[bytes, Entry] = {}
        self._next_use = _FIRST_USE
        self._asked = 0
        self._present = 0
        self._key_bytes = 0
        # What may be purged one day, oldest first: since when, the key, what was known of it then.
        self._doubtful: deque[tuple[float, bytes, Entry]] = deque()
        # How many loads and stores of a key are under way.
        self._loads: Counter[bytes] = Counter()
        self._stores: Counter[bytes] = Counter()

    def find(self, key: bytes) -> Entry | None:
        """Return what is known of a key; None for nothing."""
        return self._entries.get(key)

    def believes(self, absence: Entry) -> bool:
        """Tell whether an absence is still within its time to live."""
        return self._clock() - absence.at < self._negative_ttl_s

    def count_present(self, keys: Iterable[bytes]) -> int:
        """Count the keys that are present, up to the first that is not."""
        count = 0
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.state is not State.PRESENT:
                break
            count += 1
        return count

    def ask(self, key: bytes, asked_at: float) -> Entry | None:
        """Make the key asked, for a question of then, and return that; None where there is nothing to ask.

        The key is present, asked already, or was found to be absent since.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                if entry.state in (State.PRESENT, State.ASKED):
                    return None
                if entry.state is State.ABSENT and entry.at > asked_at:
                    return None
            self._asked += 1
            return self._set(key, State.ASKED)

    def answer(self, key: bytes, asked: Entry, *, present: bool, looked_at: float) -> None:
        """Take in what the disk said when it was `looked_at`, unless something newer is known."""
        with self._lock:
            if self._entries.get(key) is asked:
                # From before the look: what was stored during it must not be missed for longer.
                self._set(key, State.PRESENT if present else State.ABSENT, looked_at)

    def explains(self, key: bytes) -> bool:
        """Tell whether a chunk is no news: known, left by a load that failed, or being stored just now.

        While a question is on its way, the load that failed may lie before it.
        """
        with self._lock:
            entry = self._entries.get(key)
            known = entry is not None and entry.state is not State.ABSENT
            return known or key in self._stores

    def take_uses(self, count: int) -> int:
        """Return the use of the first of `count` keys that are used together; each next one has one less.

        Since the beginning of a prefix is worth more than its end.
        """
        with self._lock:
            self._next_use += count
            return self._next_use - 1

    def put(self, key: bytes, use: int | None = None) -> None:
        """Note that a store has ended well, or that the chunk was there already."""
        with self._lock:
            self._set(key, State.PRESENT, use=use)

    def forget(self, key: bytes) -> None:
        """Note that a load has failed."""
        with self._lock:
            self._set(key, State.FORGOTTEN)

    def add(self, key: bytes, written_s: int = 0) -> None:
        """Note that the scan has seen the chunk; whatever is known already is newer."""
        with self._lock:
            if key not in self._entries:
                # A clock that is far off must not make a file newer than all uses.
                self._set(key, State.PRESENT, use=written_s % _FIRST_USE)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that the present ones of these keys were used now, the first of them last."""
        used = list(keys)
        use = self.take_uses(len(used))
        for number, key in enumerate(used):
            with self._lock:
                self._use(key, use - number)

    def begin_load(self, key: bytes, use: int | None = None) -> None:
        """Note that a load of the key is under way; a present key is used and pinned by that."""
        with self._lock:
            self._loads[key] += 1
            self._use(key, use)

    def end_load(self, key: bytes) -> None:
        """Note that a load of the key has ended."""
        with self._lock:
            _count_down(self._loads, key)

    def begin_store(self, key: bytes) -> None:
        """Note that a store of the key is under way, whose file may be there before it has ended."""
        with self._lock:
            self._stores[key] += 1

    def end_store(self, key: bytes) -> None:
        """Note that a store of the key has ended."""
        with self._lock:
            _count_down(self._stores, key)

    def oldest(self, count: int) -> list[tuple[int, bytes]]:
        """Return the last use and the key of present keys that were used longest ago, the oldest first.

        Those that are being loaded are left out. Goes through the whole index.
        """
        # A copy, which a dict gives out at once, so that nobody waits for the lock meanwhile.
        entries = list(self._entries.items())
        present = ((entry.use, key) for key, entry in entries if entry.state is State.PRESENT)
        return heapq.nsmallest(count, (each for each in present if each[1] not in self._loads))

    def take(self, key: bytes, use: int) -> bool:
        """Forget a present key, whose file the caller removes; False if it was used since, or is loaded."""
        with self._lock:
            entry = self._entries.get(key)
            present = entry is not None and entry.state is State.PRESENT and entry.use == use
            if not present or key in self._loads:
                return False
            self._set(key, State.FORGOTTEN)
            return True

    def drop_taken(self, key: bytes) -> bool:
        """Note that the file of a key that was taken is gone.

        True where a store has come in between and says that the chunk is there, which has to be looked at.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return False
            # The scan may have seen the file just before; what is known already it leaves alone.
            if entry.state is State.FORGOTTEN and not self.scanning:
                del self._entries[key]
                self._key_bytes -= len(key)
            return entry.state is State.PRESENT

    def stats(self) -> dict[str, int]:
        """Return the index's part of the engine's `stats()`."""
        with self._lock:
            queued_bytes = len(self._doubtful) * sys.getsizeof((None, None, None))
            held_bytes = len(self._entries) * _ENTRY_SIZE_BYTES + self._key_bytes + queued_bytes
            return {
                "probes": self._asked,
                "index_keys": self._present,
                "index_bytes": sys.getsizeof(self._entries) + held_bytes,
                "pinned_chunks": sum(self.count_present([key]) for key in self._loads),
            }

    def _use(self, key: bytes, use: int | None) -> None:
        """Note a use of the key if it is present. The caller holds the lock."""
        entry = self._entries.get(key)
        if entry is not None and entry.state is State.PRESENT:
            self._set(key, State.PRESENT, use=use)

    def _set(self, key: bytes, state: State, at: float | None = None, use: int | None = None) -> Entry:
        """Replace what is known of a key; used now unless told when. The caller holds the lock."""
        now = self._clock()
        if use is None:
            use = self._next_use
            self._next_use += 1
        entry = Entry(state, now if at is None else at, use)
        before = self._entries.get(key)
        self._entries[key] = entry
        if before is None:
            self._key_bytes += len(key)
        self._present += (state is State.PRESENT) - (before is not None and before.state is State.PRESENT)
        if state in (State.ABSENT, State.FORGOTTEN):
            self._doubtful.append((now, key, entry))
            self._purge(now)
        return entry

    def _purge(self, now: float) -> None:
        """Drop the oldest absences that are over and failed loads, so that they do not pile up."""
        if self.scanning:
            return
        for _ in range(_PURGED_AT_ONCE):
            if not self._doubtful or now - self._doubtful[0][0] <= self._negative_ttl_s + _REMEMBERED_S:
                return
            _, key, entry = self._doubtful.popleft()
            if self._entries.get(key) is entry:
                del self._entries[key]
                self._key_bytes -= len(key)


def _count_down(counts: Counter[bytes], key: bytes) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
