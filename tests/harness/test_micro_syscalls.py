"""Tests of how the micro benchmark counts system calls in a trace, and of what it says without a tracer."""

from pathlib import Path

import pytest

from harness.micro import syscalls

BEGIN = '77 access("/kvfs-micro-begin", F_OK) = -1 ENOENT'
END = '77 access("/kvfs-micro-end", F_OK) = -1 ENOENT'


def test_count_calls_counts_what_began_between_the_marks() -> None:
    lines = [
        "78 futex(0x1, FUTEX_WAIT, 0, NULL <unfinished ...>",
        BEGIN,
        '78 openat(5, "ab", O_RDONLY|O_DIRECT <unfinished ...>',
        '79 pread64(6, "x", 65536, 0) = 65536',
        "78 <... openat resumed>) = 7",
        "79 --- SIGCHLD {si_signo=SIGCHLD} ---",
        "79 +++ exited with 0 +++",
        '78 pread64(7, "x", 65536, 0) = 65536',
        END,
        '77 write(3, "done", 4) = 4',
    ]
    assert syscalls.count_calls(lines) == {"openat": 1, "pread64": 2}


def test_count_calls_leaves_out_the_wait_that_the_run_adds() -> None:
    sleep = "77 clock_nanosleep(CLOCK_MONOTONIC, 0, {...}, NULL) = 0"
    assert syscalls.count_calls([BEGIN, sleep, END]) == {}
    assert syscalls.count_calls([BEGIN, sleep, sleep, END]) == {"clock_nanosleep": 1}


@pytest.mark.parametrize("lines", [[], [BEGIN], [END][:0]], ids=["nothing", "no-end", "neither"])
def test_count_calls_without_both_marks_is_an_error(lines: list[str]) -> None:
    with pytest.raises(syscalls.TraceError, match="does not hold the marks"):
        syscalls.count_calls(lines)


def test_unavailable_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install strace" in syscalls.unavailable()
