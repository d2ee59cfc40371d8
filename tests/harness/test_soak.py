"""The soak: half a minute of it for real, and made-up samples that must fail each of its checks."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import records
from harness.errors import EXIT_USAGE
from harness.soak import report
from harness.soak.__main__ import main
from harness.soak.checks import SAMPLES_MIN, Sample, Seen, failures

ROOT = Path(__file__).resolve().parents[2]
CAPACITY = 64 << 20
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from harness.soak.__main__ import main; "
    "main(prog_name='soak')"
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-c", _PROGRAM, str(ROOT), *arguments]


def sample(at_s: float) -> Sample:
    return Sample(at_s, 100 << 20, 20, 6, CAPACITY - 4096, 100.0, 50.0, 1.0, 10.0, 2.0, 20.0, 3)


def good() -> Seen:
    """Return a soak that nothing is wrong with."""
    counts = Counter(loads=1000, stores=500, damaged=3)
    return Seen(
        CAPACITY,
        [sample(10.0 * i) for i in range(40)],
        counts,
        damages=6,
        damaged={f"space/{i}" for i in range(6)},
        found={"space/0", "space/5"},
        kills=2,
        restarts=1,
    )


def late(seen: Seen, **changes: int) -> None:
    """Change the second half of the samples."""
    half = len(seen.samples) // 2
    changed = [dataclasses.replace(each, **changes) for each in seen.samples[half:]]
    seen.samples[half:] = changed


def test_soak_without_anything_wrong_passes() -> None:
    assert failures(good()) == []


def test_growth_in_the_first_quarter_is_warming_up() -> None:
    seen = good()
    seen.samples[:10] = [
        dataclasses.replace(each, rss_bytes=1 << 20, threads=1) for each in seen.samples[:10]
    ]
    assert failures(seen) == []


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        pytest.param(
            lambda seen: seen.counts.update(wrong=1), "1 chunks were served with wrong bytes", id="wrong"
        ),
        pytest.param(
            lambda seen: seen.counts.update({"final wrong": 2}),
            "2 chunks were served with wrong bytes",
            id="wrong-at-the-last-start",
        ),
        pytest.param(lambda seen: seen.counts.update(errors=4), "4 loads or stores failed", id="errors"),
        pytest.param(
            lambda seen: late(seen, physical_bytes=CAPACITY + 1),
            f"the capacity of {CAPACITY} bytes was exceeded in 20 of 40 samples",
            id="capacity",
        ),
        pytest.param(
            lambda seen: seen.found.add("other/5"),
            "loads of 1 chunks failed as damaged whose files nobody damaged; the first is other/5",
            id="damage-that-is-none",
        ),
        pytest.param(
            lambda seen: seen.found.clear(),
            "none of 6 damaged files was found",
            id="damage-missed",
        ),
        pytest.param(
            lambda seen: late(seen, rss_bytes=125 << 20), "memory grew from 104.9 to 131.1", id="rss"
        ),
        pytest.param(
            lambda seen: late(seen, descriptors=29), "open descriptors grew from 20 to 29", id="descriptors"
        ),
        pytest.param(lambda seen: late(seen, threads=9), "threads grew from 6 to 9", id="threads"),
        pytest.param(
            lambda seen: late(seen, physical_bytes=CAPACITY // 3),
            "what lies on disk went from ",
            id="room-that-gets-lost",
        ),
        pytest.param(
            lambda seen: late(seen, stores_per_s=4),
            "stores went from 50.0 to 4.0 a second",
            id="stores-that-end",
        ),
        pytest.param(
            lambda seen: late(seen, loads_per_s=0),
            "loads went from 100.0 to 0.0 a second",
            id="loads-that-end",
        ),
        pytest.param(
            lambda seen: setattr(seen, "left_temporaries", 1),
            "1 temporaries of dead writers",
            id="temporaries",
        ),
        pytest.param(
            lambda seen: seen.deaths.append("soak-0-1 ended by itself with status 1"),
            "soak-0-1 ended by itself",
            id="death",
        ),
        pytest.param(
            lambda seen: seen.counts.subtract(stores=500), "nothing was stored and loaded", id="idle"
        ),
        pytest.param(
            lambda seen: seen.samples.__delitem__(slice(SAMPLES_MIN - 1, None)),
            "7 samples say nothing about growth",
            id="short",
        ),
    ],
)
def test_each_thing_that_must_not_be_fails_the_soak(spoil: Callable[[Seen], None], sentence: str) -> None:
    seen = good()
    spoil(seen)
    (found,) = failures(seen)
    assert found.startswith(sentence)


def test_picture_and_table_show_the_samples(tmp_path: Path) -> None:
    seen = good()
    report.draw(seen, tmp_path / "soak.png", "made up")
    assert (tmp_path / "soak.png").stat().st_size > 1000
    assert ["most on disk, of the capacity", "100.0%"] in report.grid(seen).rows


def test_capacity_for_few_chunks_is_refused() -> None:
    result = CliRunner().invoke(main, ["--capacity-mib", "8", "--chunk-kib", "1024"])
    assert result.exit_code == EXIT_USAGE
    assert "room for less than 64 chunks of 1024 KiB" in " ".join(result.output.split())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_half_a_minute_finds_nothing_wrong(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        command("--minutes", "0.5", "--out", str(out), "--capacity-mib", "16", "--chunk-kib", "32"),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was wrong, and nothing grew" in done.stdout
    found = {record.metric: record for record in records.read(out / "records.jsonl")}
    assert len(found) == 10
    counts = found["rss_bytes"].env["counts"]
    assert isinstance(counts, dict)
    assert all(counts[name] > 0 for name in ("loads", "stores", "evicted_chunks", "final loads"))
    assert int(str(found["rss_bytes"].env["kills"])) > 0
    assert max(found["physical_bytes"].values) <= 16 << 20
    assert re.search(r"left +[\d,]+ loads", done.stdout)
    assert (out / "soak.png").stat().st_size > 1000
    assert not list(out.glob("kvfs-soak-*")), "data is left on the disk"


def test_interruption_leaves_no_process_and_no_data(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command("--minutes", "1", "--out", str(out)), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            # It works, since there has been a look.
            for line in process.stdout:
                if "loads" in line:
                    break
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert not list(out.glob("kvfs-soak-*"))


def test_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "kvfs_ext.py").write_text("def Engine(*_, **__):\n    raise OSError('made to fail')\n")
    done = subprocess.run(
        command("--minutes", "1", "--out", str(tmp_path / "out")),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "made to fail" in done.stderr
    assert not list((tmp_path / "out").glob("kvfs-soak-*"))
