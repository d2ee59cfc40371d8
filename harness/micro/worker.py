"""Serve runs of one arm: imports are done once, and each run is a child process forked from that state.

`python -m harness.micro.worker IO` reads requests from standard input, one JSON line each, and answers each
with one JSON line. Its parent forks the runs, one after the other, and never does I/O itself; so a run's
process has fresh memory and threads, and still does not pay for importing vLLM. With "lookup" for IO it
serves the lookups of all arms, which need the same imports.
"""

import ctypes
import faulthandler
import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final, cast

from harness.errors import HarnessError
from harness.micro import drivers, runs
from harness.micro.cases import LOOKUP
from harness.micro.channel import Channel, read_line
from harness.micro.requests import (
    BEGIN_MARK,
    DONE,
    END_MARK,
    READY,
    WorkerError,
    answer_line,
    parse_request,
)

_PR_SET_PTRACER: Final = 0x59616D61
_PR_SET_PTRACER_ANY: Final = -1
# A tracer stops every thread when it attaches; they have gone back to sleep after this.
_ATTACH_SETTLE_S: Final = 0.1


class _TraceStops(runs.Trace):
    """Stops for a tracer around the measured part and marks it with calls of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stopped = False

    def begin(self) -> None:
        # Where tracing is limited to descendants, this allows the session's tracer.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
        self._channel.say_status(READY, pid=os.getpid())
        read_line()
        time.sleep(_ATTACH_SETTLE_S)
        os.access(BEGIN_MARK, os.F_OK)

    def end(self) -> None:
        os.access(END_MARK, os.F_OK)
        self._channel.say_status(DONE)
        read_line()


def _importing(io: str, channel: Channel) -> Callable[[bytes], bytes]:
    """Import what runs of an I/O path need, or lookups; return what answers a request's line.

    Raises:
        ImportError: It needs something that is not installed.
    """
    if io == LOOKUP:
        module = importlib.import_module("harness.micro.lookup_runs")
        return cast("Callable[[bytes], bytes]", module.answer_line)
    drivers.module_of(io)

    def answer(line: bytes) -> bytes:
        request = parse_request(line)
        trace = _TraceStops(channel) if request.traced else runs.Trace()
        return answer_line(runs.run_request(request, trace))

    return answer


def _run_child(line: bytes, channel: Channel, answer: Callable[[bytes], bytes]) -> None:
    try:
        answered = answer(line)
    except (HarnessError, OSError, ValueError) as error:
        traceback.print_exc()
        channel.say_error(f"{error}")
    else:
        channel.say(answered)


def _fork_run(line: bytes, channel: Channel, answer: Callable[[bytes], bytes]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _run_child(line, channel, answer)
            status = 0
        except BaseException:  # noqa: BLE001 - a child must never return into the parent's loop
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        how = f"by signal {-code}" if code < 0 else "by a defect of its own"
        channel.say_error(f"the run's process was ended {how}; the log has its traceback")


def main(arguments: list[str]) -> int:
    """Serve until standard input ends."""
    channel = Channel()
    faulthandler.enable()
    if len(arguments) != 1:
        raise SystemExit("usage: python -m harness.micro.worker IO < requests")
    try:
        answer = _importing(arguments[0], channel)
    except (ImportError, WorkerError) as error:
        channel.say_error(f"{error}")
        return 1
    # As vLLM does before it serves: what is imported is not walked by the collector in the middle of a run.
    gc.collect()
    gc.freeze()
    channel.say_status(READY, pid=os.getpid())
    while line := read_line():
        _fork_run(line, channel, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
