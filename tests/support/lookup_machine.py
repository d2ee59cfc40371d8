"""An engine, those who use its namespace beside it, and all that may happen to them, in any order."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from lookup_model import NAMES, QUESTIONS, File, Model
from lookup_process import Nursery, Worker
from lookup_subject import CHUNK_SIZE_BYTES, DAMAGES, NUM_KEYS, Look, Status, damage, path_of, write_chunk

# Short, so that it can be waited for, and longer than the owner believes that it is alone.
NEGATIVE_TTL_S: Final = 0.1
ALL_KEYS: Final = tuple(range(NUM_KEYS))
TURBULENCE_S: Final = 0.03

KEYS: Final = st.lists(st.sampled_from(ALL_KEYS), min_size=1, max_size=4, unique=True)
WHILE_ASKED: Final = ["nothing", "store", "load", "load to nowhere", "delete", "store and delete"]
SEEDS: Final = st.integers(0, 2**16)
OTHER_SIZES: Final = st.sampled_from([0, 1, CHUNK_SIZE_BYTES - 1, CHUNK_SIZE_BYTES + 1, 2 * CHUNK_SIZE_BYTES])


@dataclasses.dataclass(frozen=True)
class Setting:
    """Who uses the namespace.

    Attributes:
        index_mode: The engine's.
        others: Who else stores: "nobody", "vllm" (plain files, no locks) or "kvfs" (another engine, which
            comes and goes). Files are deleted and cut by hand in any case.
    """

    index_mode: str
    others: str


class Lookups(RuleBasedStateMachine):
    """An engine in a process of its own, another process, and a model of what the engine may say."""

    # hypothesis makes the instances, so a subclass has what they need.
    nursery: ClassVar[Nursery]
    root: ClassVar[Path]
    setting: ClassVar[Setting]
    told: ClassVar[bool] = False
    # Verdicts that were compared with the model, all examples together.
    compared: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.base = tempfile.mkdtemp(prefix="namespace-", dir=self.root)
        self.model = Model(ALL_KEYS, NEGATIVE_TTL_S, others_take_locks=self.setting.others == "kvfs")
        self.history: list[str] = []
        self.engine: Worker = self.fork("engine")
        self.is_open = False
        self.other: Worker | None = None
        # Nobody has stored beside the engine, or since the one before it.
        self.is_alone = True
        self.is_owner = False
        # Since when somebody waits for what was last asked.
        self.waiting_since_s = math.inf

    def teardown(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, AssertionError) and not self.told:
            # What depends on the time that it took may not come again, so the first one is shown as it was.
            type(self).told = True
            sys.stderr.write("\n  ".join(["The first counterexample:", *self.history, str(error)]) + "\n")
        self.engine.kill()
        if self.other is not None:
            self.other.kill()
        shutil.rmtree(self.base)

    @property
    def may_ask(self) -> bool:
        """Whether questions about all keys stay collected until they are handed over."""
        return self.model.questions + len(ALL_KEYS) < QUESTIONS

    @initialize(is_large=st.sampled_from([False, False, False, True]))
    def begin(self, is_large: bool) -> None:
        if is_large:
            self.make_scans_long(200)
        self.start(may_trust_snapshot=False)

    # The engine's calls

    @rule(keys=KEYS)
    def store(self, keys: list[int]) -> None:
        self.take_stored(keys, self.engine.call("store", keys))

    @rule(keys=KEYS)
    def look_while_storing(self, keys: list[int]) -> None:
        look, outcomes = self.engine.call("store_and_look", keys)
        for key in keys:
            self.model.storing(key, time.monotonic())
        self.model.check(look)
        self.take_stored(keys, outcomes)

    @rule(keys=KEYS)
    def store_from_nowhere(self, keys: list[int]) -> None:
        outcomes = self.engine.call("store_from_nowhere", keys)
        assert all(outcomes), f"rows that do not exist were stored: {outcomes}"

    @rule(keys=KEYS)
    def load(self, keys: list[int]) -> None:
        before = {key: self.model.beliefs[key].file for key in keys}
        for key, (outcome, is_right) in zip(keys, self.engine.call("load", keys), strict=True):
            self.take_file(key)
            if outcome:
                assert before[key] is not File.CHUNK, f"the load of key {key} failed: {os.strerror(outcome)}"
                self.model.load_failed(key)
            else:
                assert before[key] is File.CHUNK, f"key {key} was loaded from {before[key].value}"
                assert is_right, f"the load of key {key} gave other bytes"
                self.model.loaded(key)

    @rule(keys=KEYS)
    def load_to_nowhere(self, keys: list[int]) -> None:
        outcomes = self.engine.call("load_to_nowhere", keys)
        assert all(outcomes), f"rows that do not exist were loaded: {outcomes}"
        for key in keys:
            self.model.load_failed(key)

    @precondition(lambda self: self.may_ask)
    @rule(keys=KEYS)
    def probe(self, keys: list[int]) -> None:
        self.engine.call("probe", keys)
        for key in keys:
            self.model.probed(key)

    @precondition(lambda self: self.may_ask)
    @rule(keys=KEYS, again=st.booleans())
    def ask(self, keys: list[int], again: bool) -> None:
        now_s = time.monotonic()
        waiting_since_s = self.waiting_since_s if again else math.inf
        self.model.check(self.engine.call("ask", keys, waiting_since_s), waiting_since_s)
        if not again:
            self.waiting_since_s = now_s

    @rule()
    def answer(self) -> None:
        before_s = time.monotonic()
        status: Status = self.engine.call("submit_probes")
        self.model.answered(before_s, time.monotonic(), status)

    @precondition(lambda self: self.may_ask)
    @rule(keys=KEYS, meanwhile=st.sampled_from(WHILE_ASKED))
    def probe_and_answer_later(self, keys: list[int], meanwhile: str) -> None:
        self.probe(keys)
        if meanwhile in ("store", "store and delete"):
            self.store(keys)
        if meanwhile == "load":
            self.load(keys)
        if meanwhile == "load to nowhere":
            self.load_to_nowhere(keys)
        if meanwhile in ("delete", "store and delete"):
            self.delete(keys)
        self.answer()

    @rule(keys=KEYS)
    def count_prefix(self, keys: list[int]) -> None:
        self.model.check_prefix(keys, self.engine.call("prefix", keys))

    @rule(keys=KEYS)
    def touch(self, keys: list[int]) -> None:
        self.engine.call("touch", keys)

    # The engine's life

    @rule(
        end=st.sampled_from(["close", "kill", "kill while storing"]),
        keys=KEYS,
        meanwhile=st.lists(
            st.tuples(st.sampled_from(["store", "delete", "resize"]), st.sampled_from(ALL_KEYS)), max_size=2
        ),
        harm=st.sampled_from([None, None, *DAMAGES]),
        seed=SEEDS,
        then=st.sampled_from(["nothing", "wait", "load to nowhere"]),
    )
    def restart(
        self,
        end: str,
        keys: list[int],
        meanwhile: list[tuple[str, int]],
        harm: str | None,
        seed: int,
        then: str,
    ) -> None:
        if end == "close":
            self.engine.call("close")
        else:
            if end == "kill while storing":
                self.engine.begin("begin_store", keys)
            self.engine.kill()
            self.engine = self.fork("engine")
            for key in keys:
                before = self.model.beliefs[key].file
                self.take_file(key)
                after = self.model.beliefs[key].file
                assert after in (before, File.CHUNK), f"a writer that was killed left {after.value}"
        self.is_open = False
        for what, key in meanwhile:
            if what == "store":
                self.store_by_others([key])
            elif what == "delete":
                self.delete([key])
            else:
                self.resize(key, 1)
        if harm is not None:
            self.history.append(f"the snapshot is damaged: {harm}")
            damage(Path(self.base, "kvfs.index"), harm, seed)
        self.is_alone = self.other is None and all(what != "store" for what, _ in meanwhile)
        # Another kvfs that came meanwhile was the owner, and left a snapshot, too.
        was_closed = end == "close" or (self.setting.others == "kvfs" and not self.is_alone)
        self.start(may_trust_snapshot=was_closed and harm is None)
        if then == "wait":
            self.wait_for_scan()
        if then == "load to nowhere":
            # What the scan sees after this is not news.
            self.load_to_nowhere(keys)

    @rule()
    def wait_for_scan(self) -> None:
        self.engine.call("wait_for_scan")

    @rule()
    def let_the_time_to_live_pass(self) -> None:
        self.history.append("the time to live passes")
        time.sleep(1.1 * NEGATIVE_TTL_S)

    # What others do

    @rule(keys=KEYS)
    def delete(self, keys: list[int]) -> None:
        for key in keys:
            self.history.append(f"key {key} is deleted")
            path_of(self.base, key).unlink(missing_ok=True)
            self.take_file(key)

    @rule(key=st.sampled_from(ALL_KEYS), size=OTHER_SIZES)
    def resize(self, key: int, size: int) -> None:
        if self.model.beliefs[key].file is not File.NONE:
            self.history.append(f"key {key} gets {size} bytes")
            os.truncate(path_of(self.base, key), size)
            self.take_file(key)

    @precondition(lambda self: self.setting.others != "nobody")
    @rule(keys=KEYS)
    def others_store(self, keys: list[int]) -> None:
        self.store_by_others(keys)

    @precondition(lambda self: self.setting.others == "kvfs" and self.other is None)
    @rule()
    def come(self) -> None:
        self.other = self.fork("other")
        self.is_alone = False
        status: Status = self.other.call("open", self.base, "auto", NEGATIVE_TTL_S)
        assert status.is_owner != self.is_open, f"the other of {1 + self.is_open} engines: {status}"

    @precondition(lambda self: self.other is not None)
    @rule(how=st.sampled_from(["close", "kill"]))
    def go(self, how: str) -> None:
        assert self.other is not None
        if how == "close":
            self.other.call("close")
        self.other.kill()
        self.other = None

    @precondition(lambda self: self.setting.others == "vllm" or self.other is not None)
    @rule(keys=KEYS, seed=SEEDS)
    def turbulence(self, keys: list[int], seed: int) -> None:
        before_s = time.monotonic()
        other = self.other or self.fork("other")
        self.is_alone = False
        other.begin("disturb", self.base, keys, TURBULENCE_S, seed)
        self.engine.begin("schedule", keys, TURBULENCE_S, seed, NEGATIVE_TTL_S)
        problems, status = self.engine.end()
        other.end()
        if self.other is None:
            other.kill()
        assert not problems, problems
        for key in keys:
            self.model.anything_happened(key, self.file(key), before_s, time.monotonic())
        # Whoever schedules has all questions answered at the end.
        self.model.answered(before_s, time.monotonic(), status)

    # What holds after each of them

    @invariant()
    def answers_are_possible(self) -> None:
        look: Look = self.engine.call("look", ALL_KEYS)
        self.model.check(look)
        self.compared.update(NAMES[answer.verdict] for answer in look.answers)
        if self.is_alone and self.is_owner:
            assert look.after.is_owner, "an owner that nobody stores beside gave the namespace up"
        assert self.is_owner or not look.after.is_owner, "an engine became the owner while it ran"
        self.is_owner = look.after.is_owner

    # Parts of the above

    def start(self, *, may_trust_snapshot: bool) -> None:
        self.model.start(time.monotonic(), may_trust_snapshot=may_trust_snapshot)
        status: Status = self.engine.call("open", self.base, self.setting.index_mode, NEGATIVE_TTL_S)
        self.is_open = True
        self.is_owner = status.is_owner
        assert self.is_owner == (self.setting.index_mode != "shared" and self.other is None), status

    def make_scans_long(self, directories: int) -> None:
        """Make directories to be read, so that more happens meanwhile."""
        for number in range(256, 256 + directories):
            Path(self.base, f"{number:03x}").mkdir()

    def store_by_others(self, keys: list[int]) -> None:
        visits = self.setting.others == "kvfs" and self.other is None
        if visits:
            self.come()
        self.is_alone = False
        if self.other is not None:
            outcomes = self.other.call("store", keys)
            assert not any(outcomes), f"a store by others failed: {outcomes}"
        else:
            for key in keys:
                self.history.append(f"key {key} is stored by others")
                write_chunk(self.base, key)
        for key in keys:
            self.take_file(key, by_others=True)
        if visits:
            self.go("close")

    def fork(self, name: str) -> Worker:
        return self.nursery.fork(name, self.history)

    def take_stored(self, keys: Sequence[int], outcomes: Sequence[int]) -> None:
        assert not any(outcomes), f"a store failed: {outcomes}"
        for key in keys:
            self.model.stored(key, time.monotonic())
            assert self.file(key) is File.CHUNK

    def take_file(self, key: int, *, by_others: bool = False) -> None:
        self.model.file_became(key, self.file(key), time.monotonic(), by_others=by_others)

    def file(self, key: int) -> File:
        try:
            size = path_of(self.base, key).stat().st_size
        except FileNotFoundError:
            return File.NONE
        return File.CHUNK if size == CHUNK_SIZE_BYTES else File.WRONG


def made_for(nursery: Nursery, root: Path, setting: Setting) -> type[Lookups]:
    """Return the machine for a setting, as hypothesis wants it: a class that needs no arguments."""
    own = {"nursery": nursery, "root": root, "setting": setting, "compared": Counter()}
    return type("Lookups", (Lookups,), own)
