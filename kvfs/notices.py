"""What users are told of a running engine: once each, in the log."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from kvfs import permissions
from kvfs.config import TierConfig
from kvfs.jobs import SHED, SUCCESS, CompletionLike
from kvfs.paths import Namespace
from kvfs.sizes import format_size

_logger = logging.getLogger("kvfs")

# Counting everything takes longer than a poll; what there is to say can wait so long.
_LOOK_PERIOD_S: Final = 1.0
# What makes an engine pause stores, see docs/capacity.md.
_PAUSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def warn_of_the_place(namespace: Namespace, config: TierConfig, *, sealed: bool) -> None:
    """Say what there is no protection against where the chunks lie. Blocks."""
    if config.checksum == "auto" and not sealed:
        _logger.warning(
            "%s has no extended attributes of users, so chunks get no checksums and damaged ones are not "
            "noticed. Use another file system, or set checksum to 'off' to silence this.",
            namespace.base_path,
        )
    open_path = permissions.writable_by_others(namespace.root_dir, namespace.base_path)
    if open_path is not None:
        _logger.warning(
            "%s can be written by others than its owner, who could replace chunks. Take those rights away "
            "(chmod go-w).",
            open_path,
        )


def warn_without_limit(namespace: Namespace, config: TierConfig) -> None:
    """Say that nothing keeps the directory from filling its file system. Blocks."""
    if config.capacity_bytes is None and config.min_free_bytes is None:
        _logger.warning(
            "%s grows until its file system is full (%s are free now), since no limit is set. Set "
            "capacity_bytes to what it may take, or min_free_bytes to what is to be left free, for example "
            'to "200GiB".',
            namespace.root_dir,
            _free_space(namespace.base_path),
        )


class Notices:
    """What there is to say of one engine's completions and counts. For the thread that polls.

    Args:
        namespace: Where the chunks lie.
        config: The tier's options.
        max_queued_store_bytes: The limit in force.
        stats: The engine's counts; asked for once a second at most, and at the first stores that are shed.
    """

    def __init__(
        self,
        namespace: Namespace,
        config: TierConfig,
        max_queued_store_bytes: int,
        stats: Callable[[], dict[str, int]],
    ) -> None:
        self._namespace = namespace
        self._config = config
        self._max_queued_store_bytes = max_queued_store_bytes
        self._stats = stats
        self.alone = bool(stats()["owner"])
        self._look_at = 0.0
        self._warned: set[str] = set()
        self._paused = False

    def take(self, completions: Sequence[CompletionLike]) -> None:
        """Look at jobs that have ended, and say what is new."""
        shed = False
        for completion in completions:
            if completion.kind == "store":
                shed = self._look_at_store(completion) or shed
        now = time.monotonic()
        news = shed and not {"shed_stores", "capacity_sheds"} <= self._warned
        if news or now >= self._look_at:
            self._look_at = now + _LOOK_PERIOD_S
            self._look(self._stats())

    def _look_at_store(self, completion: CompletionLike) -> bool:
        """Note what pauses stores or lets them go on; return whether some were shed."""
        if not completion.detail:
            if completion.bytes_moved and self._paused:
                self._go_on()
            return False
        outcomes = completion.outcomes
        pausing = next((code for code in outcomes if code in _PAUSING), None)
        if pausing is not None:
            self._pause(pausing)
        elif completion.bytes_moved and self._paused and SUCCESS in outcomes:
            self._go_on()
        return SHED in outcomes

    def _pause(self, code: int) -> None:
        if self._paused:
            return
        self._paused = True
        # A disk that is full again and again says so once.
        _logger.log(
            logging.INFO if "paused" in self._warned else logging.WARNING,
            "%s takes no stores now (%s), so they pause and are tried again after a second, then two, four, "
            "up to a minute; loads go on. stats()['paused_stores'] counts what is not stored meanwhile.",
            self._namespace.base_path,
            os.strerror(code),
        )
        self._warned.add("paused")

    def _go_on(self) -> None:
        self._paused = False
        _logger.info("%s takes stores again", self._namespace.base_path)

    def _look(self, stats: dict[str, int]) -> None:
        base_path = self._namespace.base_path
        if self._is_first(stats, "direct_fallbacks"):
            _logger.warning(
                "O_DIRECT was refused at %s or does not fit the chunk size; kvfs goes on through the page "
                "cache. Set use_o_direct to false to silence this.",
                base_path,
            )
        if self._is_first(stats, "shed_stores"):
            _logger.warning(
                "%s does not keep up with stores: %d bytes of them may wait, and what comes on top is not "
                "stored. stats()['shed_stores'] counts them; a larger max_queued_store_bytes lets more wait.",
                base_path,
                self._max_queued_store_bytes,
            )
        if self._is_first(stats, "capacity_sheds"):
            _logger.warning(
                "%s has no room for more chunks (%s), and what finds none is not stored, until evicting has "
                "made some. stats()['capacity_sheds'] counts them.",
                self._namespace.root_dir,
                self._room(stats),
            )
        if self.alone and not stats["owner"]:
            self.alone = False
            _logger.warning(
                "%s has other writers by now; what kvfs does not know there it asks the disk from now on. "
                "Set index_mode to 'shared' to do so from the start.",
                base_path,
            )

    def _is_first(self, stats: dict[str, int], name: str) -> bool:
        if not stats[name] or name in self._warned:
            return False
        self._warned.add(name)
        return True

    def _room(self, stats: dict[str, int]) -> str:
        parts = []
        if self._config.capacity_bytes is not None:
            used, capacity = stats["used_bytes"], self._config.capacity_bytes
            parts.append(f"{format_size(used)} of capacity_bytes {format_size(capacity)} are taken")
        if self._config.min_free_bytes is not None:
            free, least = stats["free_bytes"], self._config.min_free_bytes
            parts.append(f"{format_size(free)} are free, min_free_bytes is {format_size(least)}")
        if not stats["space_counted"]:
            parts.append("what lies there is still being counted")
        return "; ".join(parts)


def _free_space(path: str) -> str:
    try:
        found = os.statvfs(path)
    except OSError:
        return "an unknown number of bytes"
    return format_size(found.f_bavail * found.f_frsize)
