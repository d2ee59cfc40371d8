"""The FUSE file system of the tests, as a process: it shows a directory and misbehaves as it is told.

`python fuse_server.py MOUNT_POINT DIRECTORY CONTROL_FD PARENT_PID` mounts and answers until it is unmounted.
It dies with the process that started it, and a request that it holds then fails, so nothing hangs for ever.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import fuse_wire as wire
from fuse_passthrough import Passthrough
from fuse_wire import Op, Request

_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_PR_SET_PDEATHSIG: Final = 1
# A test that forgot what it holds, or is stuck because of it, gets it back.
_HELD_S_MAX: Final = 60.0
# Requests without which the kernel could not even tell that others are to end.
_NEVER_TOUCHED: Final = frozenset({Op.INIT, Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT, Op.DESTROY})


@dataclass
class Rule:
    """One way to misbehave; the first that fits a request decides.

    Attributes:
        ops: Names of requests, in small letters; none means all.
        action: "fail" with `code`; "short": at most `code` bytes; "hold" until `clear`.
        code: An errno, or a number of bytes.
        skip: So many fitting requests pass first.
        times: So many are hit then; 0 means all that follow.
        every: Of those, each n-th alone.
        direct: Whether it takes O_DIRECT to fit.
        name: Only requests about files whose path has this in it.
        interruptible: Whether a held request ends with EINTR when its caller gets a signal.
    """

    ops: list[str]
    action: str
    code: int = 0
    skip: int = 0
    times: int = 0
    every: int = 1
    direct: bool = False
    name: str = ""
    interruptible: bool = False
    seen: int = 0

    def hits(self, request: Request, path: str) -> bool:
        """Count a request about the file at `path` if it fits, and tell whether it is hit."""
        fits = not self.ops or Op(request.op).name.lower() in self.ops
        if not fits or (self.direct and not request.flags & os.O_DIRECT):
            return False
        if self.name and self.name not in path and self.name.encode() not in request.body:
            return False
        self.seen += 1
        past = self.seen - self.skip
        return past > 0 and past % self.every == 0 and (not self.times or past <= self.times * self.every)


@dataclass
class Held:
    """A request that waits for `clear`."""

    request: Request
    interruptible: bool
    since: float = field(default_factory=time.monotonic)


class Server:
    """Answers the kernel and the test, in one thread, until the file system is unmounted."""

    def __init__(self, device: int, files: Passthrough, control: socket.socket) -> None:
        self._device = device
        self._files = files
        self._control = control
        self._rules: list[Rule] = []
        self._held: dict[int, Held] = {}
        self._seen: Counter[str] = Counter()

    def serve(self) -> None:
        """Answer until the file system is unmounted or the test is gone."""
        control = self._control.fileno()
        while True:
            ready, _, _ = select.select([self._device, control], [], [], 1.0)
            if control in ready and not self._obey():
                return
            if self._device in ready and not self._answer_next():
                return
            now = time.monotonic()
            if any(now - held.since > _HELD_S_MAX for held in self._held.values()):
                self._clear()

    def _obey(self) -> bool:
        line = self._control.recv(65536)
        if not line:
            return False
        command: dict[str, Any] = json.loads(line)
        match command.pop("do"):
            case "rule":
                self._rules.append(Rule(**command))
            case "clear":
                self._clear()
            case "uncached":
                self._files.uncached = bool(command["on"])
        held = Counter(Op(each.request.op).name.lower() for each in self._held.values())
        self._control.send(json.dumps({"held": held, "seen": self._seen}).encode())
        return True

    def _clear(self) -> None:
        self._rules.clear()
        held, self._held = self._held, {}
        for each in held.values():
            self._answer(each.request)

    def _answer_next(self) -> bool:
        try:
            request = wire.parse(os.read(self._device, wire.MAX_REQUEST_BYTES))
        except OSError as error:
            # ENOENT: the request was taken back before we read it. ENODEV: unmounted.
            return error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN)
        if request.op == Op.INTERRUPT:
            self._interrupt(int(wire.U64.unpack_from(request.body)[0]))
            return True
        known = request.op in Op.__members__.values()
        if known:
            self._seen[Op(request.op).name.lower()] += 1
        rule = None
        if known and request.op not in _NEVER_TOUCHED:
            path = self._files.path_of(request.node) if self._rules else ""
            rule = next((each for each in self._rules if each.hits(request, path)), None)
        if rule is None:
            self._answer(request)
        elif rule.action == "hold":
            self._held[request.unique] = Held(request, rule.interruptible)
        elif rule.action == "short":
            self._answer(_shortened(request, rule.code))
        else:
            self._reply(request, -rule.code, b"")
        return True

    def _interrupt(self, unique: int) -> None:
        held = self._held.get(unique)
        if held is not None and held.interruptible:
            del self._held[unique]
            self._reply(held.request, -errno.EINTR, b"")

    def _answer(self, request: Request) -> None:
        try:
            body = self._files.answer(request)
        except OSError as error:
            self._reply(request, -(error.errno or errno.EIO), b"")
            return
        if body is not None:
            self._reply(request, 0, body)

    def _reply(self, request: Request, error: int, body: bytes) -> None:
        length = wire.OUT_HEADER.size + len(body)
        try:
            os.writev(self._device, [wire.OUT_HEADER.pack(length, error, request.unique), body])
        except OSError as failure:
            # The caller was killed meanwhile, or the file system is gone, which the next read tells.
            if failure.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM):
                raise


def _shortened(request: Request, size_bytes: int) -> Request:
    """Return the same transfer of fewer bytes."""
    fields = list(wire.READ.unpack_from(request.body))
    fields[2] = min(fields[2], size_bytes)
    return request._replace(body=wire.READ.pack(*fields) + request.body[wire.READ.size :])


def _mount(device: int, mount_point: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    data = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
    done = libc.mount(
        b"kvfs-tests", os.fsencode(mount_point), b"fuse.kvfs-tests", _MS_NOSUID | _MS_NODEV, data.encode()
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), mount_point)


def main() -> None:
    """Mount, say so, serve."""
    mount_point, directory, control = sys.argv[1], sys.argv[2], socket.socket(fileno=int(sys.argv[3]))
    parent = int(sys.argv[4])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # Ctrl-C is for the tests, which unmount.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    os.umask(0)
    files = Passthrough(directory)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    _mount(device, mount_point)
    control.send(b"mounted")
    Server(device, files, control).serve()


if __name__ == "__main__":
    main()
