"""What docs/lookup.md lets an engine say about each key, worked out from everything that was done to it.

Not all is known: the scan takes its time, clocks are read before and after, and others do things meanwhile.
So a key has a set of states that are possible; each answer must be what one of them allows, and rules others
out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from lookup_subject import Answer, Look, Status

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY

NAMES: Final[Mapping[int, str]] = {MISS: "MISS", HIT: "HIT", RETRY: "RETRY", EXPIRED: "EXPIRED"}
# The owner may have asked so long ago whether it is alone.
_CONFIRMED_S: Final = 0.05
# So many keys of which it said MISS wait to be checked, at least.
_CHECKS: Final = 64
# So many questions go to the disk without being told to.
QUESTIONS: Final = 64
# Clocks that count hundredths of a second round towards the end of an absence.
_TICKS_S: Final = 0.02


class File(Enum):
    """What lies at a key's path."""

    NONE = "nothing"
    CHUNK = "a chunk"
    WRONG = "a file of another size"


class Known(Enum):
    """The states of docs/lookup.md, but for asked, which no call sees: it waits for the answers."""

    NOTHING = "nothing"
    PRESENT = "present"
    ABSENT = "absent"
    FORGOTTEN = "forgotten"


@dataclasses.dataclass
class Belief:
    """What an engine may know of one key, and what is true.

    Attributes:
        states: One of them is the key's.
        is_scanning: Whether the scan or the snapshot may still tell something about it.
        is_questioned: Whether a question about it is collected; it changes nothing until it is answered.
        absent_s: The clock before and after the disk was found to have no chunk.
        file: What lies there.
        file_since_s: Since when.
        foreign_since_s: When somebody else had stored the chunk that lies there; None if nobody had.
    """

    states: set[Known] = dataclasses.field(default_factory=lambda: {Known.NOTHING})
    is_scanning: bool = False
    is_questioned: bool = False
    absent_s: tuple[float, float] = (0.0, 0.0)
    file: File = File.NONE
    file_since_s: float = 0.0
    foreign_since_s: float | None = None


class Model:
    """All keys of a namespace, as one engine may see them.

    Args:
        keys: Their numbers.
        negative_ttl_s: The engine's.
        others_take_locks: Whether those who store beside it are kvfs.
    """

    def __init__(self, keys: Iterable[int], negative_ttl_s: float, *, others_take_locks: bool) -> None:
        self.beliefs = {key: Belief() for key in keys}
        self._negative_ttl_s = negative_ttl_s
        self._others_take_locks = others_take_locks
        self._started_s = 0.0
        self._may_trust_snapshot = False
        # Since questions were last submitted: how many were collected at most, how often the owner said
        # MISS, and of which keys wrongly.
        self.questions = 0
        self._misses = 0
        self._missed: set[int] = set()

    def start(self, now_s: float, *, may_trust_snapshot: bool) -> None:
        """An engine begins to start; `may_trust_snapshot`: one ended well since somebody else wrote."""
        self._started_s = now_s
        self._may_trust_snapshot = may_trust_snapshot
        self._misses = self.questions = 0
        self._missed.clear()
        for belief in self.beliefs.values():
            belief.states = {Known.NOTHING, Known.PRESENT}
            belief.is_scanning, belief.is_questioned = True, False

    def scanned(self) -> None:
        """The engine says that it has read all directories."""
        for belief in self.beliefs.values():
            if belief.is_scanning and belief.file_since_s < self._started_s:
                wrong, right = Known.NOTHING, Known.PRESENT
                if belief.file is not File.CHUNK:
                    wrong, right = right, wrong
                belief.states = {right if state is wrong else state for state in belief.states}
            belief.is_scanning = False

    def file_became(self, key: int, file: File, now_s: float, *, by_others: bool = False) -> None:
        """Something else lies at a key's path now."""
        belief = self.beliefs[key]
        if file is not belief.file:
            belief.file, belief.file_since_s = file, now_s
            belief.foreign_since_s = now_s if by_others and file is File.CHUNK else None

    def storing(self, key: int, now_s: float) -> None:
        """A store may have ended well, and the scan may have met its file."""
        self.beliefs[key].states |= {Known.PRESENT}
        self.beliefs[key].file_since_s = now_s

    def stored(self, key: int, now_s: float) -> None:
        """A store has ended well."""
        self.file_became(key, File.CHUNK, now_s)
        self._learn(key, {Known.PRESENT})

    def load_failed(self, key: int) -> None:
        """A load has failed; an owner may pass over a chunk that is there all the same."""
        self._learn(key, {Known.FORGOTTEN})
        self.beliefs[key].foreign_since_s = None

    def loaded(self, key: int) -> None:
        """A load has ended well; whether that teaches the engine anything is its own affair."""
        self.beliefs[key].states |= {Known.PRESENT}

    def probed(self, key: int) -> None:
        """The disk is to be asked, unless the key is a hit."""
        self._missed.discard(key)
        self.questions += 1
        assert self.questions < QUESTIONS, "questions were answered before the model was told"
        self.beliefs[key].is_questioned = self.beliefs[key].states != {Known.PRESENT}

    def answered(self, before_s: float, after_s: float, status: Status) -> None:
        """All questions have been answered, between these moments, and this is what the engine says then.

        Raises:
            AssertionError: The engine believes to be the owner and has seen that it is not.
        """
        seen = {key for key in self._missed if self.beliefs[key].file is File.CHUNK}
        assert not (seen and status.is_owner), f"the owner does not notice that others have stored {seen}"
        self._misses = self.questions = 0
        self._missed.clear()
        for belief in self.beliefs.values():
            if belief.is_questioned and belief.states != {Known.PRESENT}:
                found = Known.PRESENT if belief.file is File.CHUNK else Known.ABSENT
                belief.is_scanning &= Known.PRESENT in belief.states
                belief.states = {state if state is Known.PRESENT else found for state in belief.states}
                if found is Known.ABSENT:
                    belief.absent_s = before_s, after_s
            belief.is_questioned = False

    def anything_happened(self, key: int, file: File, before_s: float, after_s: float) -> None:
        """Between these moments others changed the file and the engine used it; no question is open."""
        belief = self.beliefs[key]
        # What was found before may not have been looked at again.
        since_s = belief.absent_s[0] if Known.ABSENT in belief.states else before_s
        belief.states, belief.is_questioned = set(Known), False
        belief.absent_s = since_s, after_s
        self._missed.discard(key)
        belief.file, belief.file_since_s = file, after_s
        belief.foreign_since_s = after_s if file is File.CHUNK else None

    def check(self, look: Look, waiting_since_s: float | None = None) -> None:
        """Compare answers with what is possible, and learn from them.

        Args:
            look: The answers.
            waiting_since_s: Given where the disk is asked for what is not known; an absence that was found
                since then is believed.

        Raises:
            AssertionError: An answer that the contract does not allow; the message says what was possible.
        """
        if look.before.is_scanned:
            self.scanned()
        for answer in look.answers:
            self._check(answer, look.before, look.after, waiting_since_s)
            if waiting_since_s is not None and answer.verdict == RETRY:
                self.probed(answer.key)
        if look.after.is_scanned:
            self.scanned()

    def check_prefix(self, keys: list[int], count: int) -> None:
        """Compare a number of hits with what is possible."""
        possible = [{state is Known.PRESENT for state in self.beliefs[key].states} for key in keys]
        assert all(True in each for each in possible[:count]), f"{count} hits of {keys}: more than there are"
        assert count == len(keys) or False in possible[count], f"{count} hits of {keys}: there are more"

    def _learn(self, key: int, states: set[Known]) -> None:
        belief = self.beliefs[key]
        belief.states, belief.is_scanning = states, False
        self._missed.discard(key)

    def _check(self, answer: Answer, before: Status, after: Status, waiting_since_s: float | None) -> None:
        belief = self.beliefs[answer.key]
        if after.is_owner and before.is_scanned:
            knows_all = {True}
        elif before.is_owner and (after.is_scanned or self._may_trust_snapshot):
            knows_all = {True, False}
        else:
            knows_all = {False}
        allowed = {
            state: set().union(*(self._verdicts(belief, state, known, answer) for known in knows_all))
            for state in belief.states
        }
        if waiting_since_s is not None:
            allowed = {
                state: _asked(verdicts, belief, waiting_since_s) for state, verdicts in allowed.items()
            }
        said = f"key {answer.key} is a {NAMES[answer.verdict]}; the disk has {belief.file.value}"
        assert answer.verdict in set().union(*allowed.values()), f"{said}; possible: {_described(allowed)}"
        if answer.verdict == MISS:
            self._check_miss(belief, answer, before, said)
        if not belief.is_scanning:
            belief.states = {state for state in belief.states if answer.verdict in allowed[state]}

    def _check_miss(self, belief: Belief, answer: Answer, before: Status, said: str) -> None:
        self._misses += before.is_owner
        if belief.foreign_since_s is None:
            return
        if self._others_take_locks or not before.is_owner:
            late_s = answer.before_s - belief.foreign_since_s - max(_CONFIRMED_S, self._negative_ttl_s)
            assert late_s <= 0, f"{said}, stored by others {late_s:.3f} s longer ago than it may stay unseen"
        elif self._misses <= _CHECKS and not belief.is_scanning and Known.FORGOTTEN not in belief.states:
            self._missed.add(answer.key)

    def _verdicts(self, belief: Belief, state: Known, knows_all: bool, answer: Answer) -> set[int]:
        if state is Known.PRESENT:
            return {HIT}
        if state is not Known.ABSENT:
            return {MISS} if knows_all and not self._scan_will_find(belief) else {RETRY}
        if knows_all:
            return {MISS}
        verdicts: set[int] = set()
        if answer.before_s - belief.absent_s[1] <= self._negative_ttl_s:
            verdicts |= {MISS}
        if answer.after_s - belief.absent_s[0] >= self._negative_ttl_s - _TICKS_S:
            verdicts |= {EXPIRED}
        return verdicts

    def _scan_will_find(self, belief: Belief) -> bool:
        """Tell whether a chunk was there before the engine was, so that it must not be missed meanwhile.

        What a vLLM without kvfs stored after the snapshot the owner learns from the scan, or from a check.
        """
        if not belief.is_scanning or belief.file is not File.CHUNK or belief.file_since_s >= self._started_s:
            return False
        return self._others_take_locks or not self._may_trust_snapshot or belief.foreign_since_s is None


def _asked(verdicts: set[int], belief: Belief, waiting_since_s: float) -> set[int]:
    """Return the answers of a call that asks the disk where `lookup` gives these."""
    if EXPIRED not in verdicts:
        return verdicts
    verdicts = verdicts - {EXPIRED}
    if belief.absent_s[1] >= waiting_since_s - _TICKS_S:
        verdicts |= {MISS}
    if belief.absent_s[0] < waiting_since_s:
        verdicts |= {RETRY}
    return verdicts


def _described(allowed: Mapping[Known, set[int]]) -> str:
    each = (f"{state.value} ({', '.join(NAMES[verdict] for verdict in allowed[state])})" for state in allowed)
    return ", ".join(each)
