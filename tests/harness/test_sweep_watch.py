"""Tests of sampling disk and CPUs while something runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.sweep.watch import Watch, device_under

INTERVAL_S = 0.05
DEADLINE_S = 20.0
WRITTEN = 8 << 20


def write_through(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, os.urandom(WRITTEN))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_watch_sees_what_is_written_and_how_the_directory_grows(tmp_path: Path) -> None:
    device = device_under(tmp_path)
    if device is None:
        pytest.skip("the temporary directory is on no block device")
    deadline = time.monotonic() + DEADLINE_S
    with Watch(device, tmp_path, INTERVAL_S) as watch:
        samples = watch.samples
        while time.monotonic() < deadline:
            write_through(tmp_path / "chunk")
            # On a slow disk all of the first samples may be of an empty directory.
            used = samples.disk_used_bytes
            if len(used) > 3 and max(samples.disk_write_mb_per_s) > 0 and max(used) >= WRITTEN:
                break
    assert max(samples.disk_write_mb_per_s) > 0
    assert max(samples.disk_busy_percent) > 0
    assert max(samples.disk_used_bytes) >= WRITTEN
    lengths = {len(values) for values in vars(samples).values()}
    assert len(lengths) == 1, "one value of each for every interval"
    assert all(0 <= value <= 100 for value in samples.disk_busy_percent)


def test_watch_without_device_and_directory_samples_the_cpus_alone() -> None:
    deadline = time.monotonic() + DEADLINE_S
    with Watch(None, None, INTERVAL_S) as watch:
        while not watch.samples.cpu_percent and time.monotonic() < deadline:
            time.sleep(INTERVAL_S)
    assert watch.samples.cpu_percent
    assert watch.samples.disk_read_mb_per_s == watch.samples.disk_used_bytes == []


def test_memory_file_system_has_no_device() -> None:
    assert device_under(Path("/dev/shm")) is None
