"""Tests that a tier's lookup says what its engine says, whatever it remembers of a request's last step."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rig import Rig
from tier_lookup import Request, TierLookup

from kvfs import backend
from kvfs.jobs import HIT

KEYS = 4
# So that a key which is not there has to be asked about again and again.
TTL_S = 0.001


@dataclass(frozen=True)
class Asks:
    """A request asks about keys in turn and stops where vLLM does; then its step may end."""

    name: str
    keys: tuple[int, ...]
    ends: bool


@dataclass(frozen=True)
class Stores:
    """Chunks are stored."""

    keys: tuple[int, ...]


@dataclass(frozen=True)
class Loses:
    """A chunk is removed by somebody, and its load fails."""

    key: int


@dataclass(frozen=True)
class Finishes:
    """A request is done."""

    name: str


# The last key is never stored.
_key = st.integers(0, KEYS - 2)
_prompt = st.just(tuple(range(KEYS)))
_keys = st.one_of(_prompt, _prompt, st.lists(st.integers(0, KEYS - 1), max_size=2 * KEYS).map(tuple))
_name = st.sampled_from("ab")
_event = st.one_of(
    st.builds(Asks, _name, _keys, st.booleans()),
    st.builds(Asks, st.just("a"), _prompt, st.just(value=True)),
    st.builds(Stores, _key.map(lambda last: tuple(range(last + 1)))),
    st.builds(Loses, _key),
    st.builds(Finishes, _name),
)


@settings(max_examples=60)
@given(events=st.lists(_event, max_size=40))
def test_tier_never_says_hit_where_its_engine_does_not(
    events: list[Asks | Stores | Loses | Finishes],
) -> None:
    with tempfile.TemporaryDirectory(prefix="kvfs-tests-") as base:
        rig = Rig(backend.load(), Path(base) / "ns", index_mode="shared", negative_ttl_s=TTL_S)
        try:
            assert rig.await_stats(scan_complete=1)
            tier = TierLookup(rig)
            prompt = [rig.key(number) for number in range(KEYS)]
            for event in events:
                _happen(tier, prompt, event)
        finally:
            rig.engine.close()


def _happen(tier: TierLookup, prompt: list[bytes], event: Asks | Stores | Loses | Finishes) -> None:
    rig = tier.rig
    match event:
        case Asks(name, keys, ends):
            request = Request.of(prompt, name)
            for number in keys:
                key = prompt[number]
                answer = tier.ask(key, request)
                assert (answer == "hit") <= (rig.engine.lookup(key) == HIT)
                if answer == "miss":
                    break
            if ends:
                tier.end_step()
        case Stores(keys):
            rig.store([rig.key(number) for number in keys], list(range(len(keys))))
        case Loses(number):
            rig.path(rig.key(number)).unlink(missing_ok=True)
            rig.load([rig.key(number)], [1])
        case Finishes(name):
            tier.lookups.forget(name)
