"""The gate as its users run it: real wheels in real processes, judging again, mistakes, and Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from gate_records import changed, comparison

import harness
import kvfs
from harness import records
from harness.errors import EXIT_INTERRUPTED, EXIT_USAGE
from harness.gate.__main__ import COMMAND
from harness.gate.cases import ARMS, CASES, METRICS
from harness.gate.comparison import Blocks, Plan
from harness.gate.judge import judge, read_rules
from harness.gate.wheels import build_revision, commit_of, unpack
from harness.micro.requests import WorkerError
from harness.records import Record, RecordLog
from harness.verdicts import EXIT_STATUS, INCONCLUSIVE, INVALID, PASS, REGRESSION

ROOT = Path(harness.__file__).resolve().parents[1]
WAIT_S = 60.0
POLL_S = 0.05


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the installed kvfs as a wheel."""
    package = Path(kvfs.__file__).parent
    path = tmp_path_factory.mktemp("wheel") / "kvfs-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (*package.rglob("*.py"), *package.parent.glob("kvfs_ext*.so")):
            archive.write(file, file.relative_to(package.parent))
    return path


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "harness.gate", "--out", str(out), *options]


def invoke(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(COMMAND, list(options))
    return result.exit_code, result.output


def write(directory: Path, found: Sequence[Record]) -> str:
    directory.mkdir(exist_ok=True)
    log = RecordLog(directory)
    log.extend(found)
    return str(log.path)


@pytest.fixture(scope="module")
def measured(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return where a short comparison of equal wheels left its results, and its exit status."""
    out = tmp_path_factory.mktemp("measured")
    options = ("--base-wheel", str(wheel), "--head-wheel", str(wheel), "--smoke", "--blocks", "3")
    place = tmp_path_factory.mktemp("place")
    # Relative, as users write it: the processes that import the wheels work elsewhere.
    done = subprocess.run(
        command(Path("here"), *options, "--dir", str(place)),
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not list(place.iterdir()), done.stderr
    return out / "here", done.returncode


def test_comparison_of_equal_wheels_measures_every_line_of_both_with_proof(
    measured: tuple[Path, int],
) -> None:
    out, status = measured
    found = records.read(out / "records.jsonl")
    blocks = len({record.case["block"] for record in found})
    assert blocks == 3
    assert len(found) == blocks * len(CASES) * len(METRICS) * len(ARMS)
    verdict = judge(found, read_rules())
    # Bursts of a smoke run are too short to tell much, but everything in it is in order.
    assert all("absurd spread" in problem for problem in verdict.problems)
    assert status == EXIT_STATUS[verdict.answer]
    assert {record.env["wheel"]["backend"] for record in found} == {"extension"}  # type: ignore[index]
    assert f"# Gate: {verdict.answer}" in (out / "gate.md").read_text()


def test_judging_the_records_again_gives_the_same_verdict(measured: tuple[Path, int], tmp_path: Path) -> None:
    out, status = measured
    again, _ = invoke("--records", str(out / "records.jsonl"), "--out", str(tmp_path))
    assert again == status
    assert (tmp_path / "gate.md").read_text() == (out / "gate.md").read_text()


@pytest.mark.parametrize(
    ("effect", "spread", "answer"),
    [
        pytest.param(0.0, 0.01, PASS, id="pass"),
        pytest.param(0.10, 0.01, REGRESSION, id="regression"),
        pytest.param(0.0, 0.15, INCONCLUSIVE, id="inconclusive"),
        pytest.param(0.0, 0.50, INVALID, id="invalid"),
    ],
)
def test_exit_status_is_the_verdicts(tmp_path: Path, effect: float, spread: float, answer: str) -> None:
    path = write(tmp_path, comparison(12, effect, spread))
    status, output = invoke("--records", path, "--out", str(tmp_path))
    assert status == EXIT_STATUS[answer]
    assert f"{answer}. Compared" in output
    assert (tmp_path / "gate.md").read_text().startswith(f"# Gate: {answer}\n")


def test_truncated_records_are_invalid(tmp_path: Path) -> None:
    path = Path(write(tmp_path, comparison(12)))
    content = path.read_text()
    path.write_text(content[: len(content) * 9 // 10])
    status, output = invoke("--records", str(path), "--out", str(tmp_path))
    assert status == EXIT_STATUS[INVALID]
    assert "not JSON" in output


def test_records_of_another_suite_are_invalid(tmp_path: Path) -> None:
    path = write(tmp_path, [changed(record, suite="bench") for record in comparison(12)])
    status, output = invoke("--records", path, "--out", str(tmp_path))
    assert status == EXIT_STATUS[INVALID]
    assert "no records of a gate" in output


def test_series_of_comparisons_ends_with_the_tally_and_the_worst_verdict(tmp_path: Path) -> None:
    path = write(tmp_path, [*comparison(12), *comparison(12, 0.2, number=2), *comparison(12, number=3)])
    status, output = invoke("--records", path, "--out", str(tmp_path))
    assert status == EXIT_STATUS[REGRESSION]
    report = (tmp_path / "gate.md").read_text()
    assert "| PASS | 2 of 3 | 67% | 1, 3 |" in report
    assert "| REGRESSION | 1 of 3 | 33% | 2 |" in report
    assert "2 of 3" in output


def test_stored_baseline_is_judged_without_measuring(tmp_path: Path) -> None:
    baseline = write(tmp_path / "old", comparison(12))
    slower = write(tmp_path / "new", comparison(12, 0.2, seed=2))
    options = ("--baseline", baseline, "--records", slower, "--out", str(tmp_path))
    status, output = invoke(*options)
    assert status == EXIT_STATUS[REGRESSION]
    assert "at different times" in " ".join(output.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param([], "name one of --base", id="nothing"),
        pytest.param(["--aa", "--base", "HEAD"], "got --base and --aa", id="two-ways"),
        pytest.param(["--slowdown", "10", "--head", "HEAD"], "leave --head", id="slowdown-of-a-revision"),
        pytest.param(["--aa", "--head", "HEAD", "--head-wheel", "x.whl"], "one of them", id="two-heads"),
        pytest.param(["--aa", "--baseline", "x.jsonl"], "--baseline needs --records", id="baseline-alone"),
        pytest.param(["--base", "no-such-revision"], "no revision", id="unknown-revision"),
        pytest.param(["--base-wheel", "x.whl", "--head-wheel", "x.whl"], "x.whl is no file", id="no-wheel"),
        pytest.param(["--records", "x.jsonl"], "cannot read records", id="no-records"),
        pytest.param(["--aa", "--dir", "/proc/nowhere"], "name another directory", id="no-directory"),
        pytest.param(["--aa", "--out", "/proc/nowhere"], "cannot write there", id="no-place-for-results"),
    ],
)
def test_mistakes_are_one_line_and_status_2(tmp_path: Path, options: list[str], says: str) -> None:
    status, output = invoke("--out", str(tmp_path / "out"), *options)
    assert status == EXIT_USAGE
    assert says in output.splitlines()[-1]
    assert "Traceback" not in output


def test_zip_without_kvfs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other/__init__.py", "")
    status, output = invoke("--base-wheel", str(path), "--head-wheel", str(path), "--out", str(tmp_path))
    assert status == EXIT_USAGE
    assert "no wheel of kvfs" in output


def test_wheel_whose_extension_does_not_load_is_refused(wheel: Path, tmp_path: Path) -> None:
    broken = unpack(wheel, tmp_path / "wheels" / "broken", "broken")
    for extension in broken.directory.glob("kvfs_ext*.so"):
        extension.write_bytes(b"no library")
    place = tmp_path / "place"
    place.mkdir()
    plan = Plan(dict.fromkeys(ARMS, broken), 2, (3,), None, [CASES[0].smaller()])
    with pytest.raises(harness.errors.HarnessError, match="does not load the wheel's extension"):
        Blocks(plan, place, tmp_path).measure(1, 0)


def test_wheel_that_serves_wrong_bytes_ends_the_comparison(wheel: Path, tmp_path: Path) -> None:
    lying = unpack(wheel, tmp_path / "wheels" / "lying", "lying")
    engine = lying.directory / "kvfs" / "engine.py"
    # Chunks of a job change places, and are reported as loaded.
    engine.write_text(
        engine.read_text().replace(
            "self._native.submit_load(job_id, *_packed(keys), list(chunk_ids))",
            "self._native.submit_load(job_id, *_packed(keys), list(chunk_ids)[::-1])",
        )
    )
    place = tmp_path / "place"
    place.mkdir()
    plan = Plan(dict.fromkeys(ARMS, lying), 2, (3,), None, [CASES[0].smaller()])
    with pytest.raises(WorkerError, match="hold wrong bytes"):
        Blocks(plan, place, tmp_path).measure(1, 0)


def test_slowdown_of_a_wheel_without_the_switch_is_refused(wheel: Path, tmp_path: Path) -> None:
    if any(
        b"kvfs_faults_add" in path.read_bytes()
        for path in Path(kvfs.__file__).parents[1].glob("kvfs_ext*.so")
    ):
        pytest.fail("the installed wheel has the switch, which no wheel for users may have")
    plain = unpack(wheel, tmp_path / "wheels" / "plain", "plain")
    place = tmp_path / "place"
    place.mkdir()
    plan = Plan(dict.fromkeys(ARMS, plain), 2, (3,), 0.1, [CASES[0].smaller()])
    with pytest.raises(WorkerError, match="built without faults"):
        Blocks(plan, place, tmp_path).measure(1, 0)


@pytest.mark.timeout(300)
def test_interrupted_series_leaves_nothing_and_goes_on_where_it_was(wheel: Path, tmp_path: Path) -> None:
    out, place = tmp_path / "out", tmp_path / "place"
    wheels = ("--base-wheel", str(wheel), "--head-wheel", str(wheel), "--smoke")
    options = (*wheels, "--blocks", "3", "--repeat", "1", "--dir", str(place))
    with subprocess.Popen(
        command(out, *options), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        path = out / "records.jsonl"
        deadline = time.monotonic() + WAIT_S
        while not path.is_file() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_INTERRUPTED, errors
    assert errors.splitlines()[-1].startswith("gate: interrupted")
    assert not [child for child in started if child.is_running()]
    assert not list(place.iterdir())
    kept = path.read_text()
    assert kept
    again = subprocess.run(command(out, *options), cwd=ROOT, capture_output=True, text=True, check=False)
    assert path.read_text().startswith(kept)
    assert len({(each.case["comparison"], each.case["block"]) for each in records.read(path)}) == 3, (
        again.stderr
    )
    # With everything there, nothing is measured any more.
    size = path.stat().st_size
    invoke(*options, "--out", str(out))
    assert path.stat().st_size == size
    # Other wheels do not go on with it.
    longer = tmp_path / "longer.whl"
    shutil.copy(wheel, longer)
    with zipfile.ZipFile(longer, "a") as archive:
        archive.writestr("kvfs/more.py", "")
    others = ("--base-wheel", str(longer), "--head-wheel", str(longer), *options[4:])
    status, output = invoke(*others, "--out", str(out))
    assert status == EXIT_USAGE
    assert "of other wheels or another plan" in output


def test_directory_with_too_little_room_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.gate.series._NEEDED_BYTES", 1 << 62)
    options = ("--base-wheel", str(wheel), "--head-wheel", str(wheel), "--dir", str(tmp_path))
    status, output = invoke(*options, "--out", str(tmp_path / "out"))
    assert status == EXIT_USAGE
    assert "name another directory with --dir" in output.replace("\n", " ")


def test_revision_is_taken_from_git_and_not_from_the_working_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "repository"
    (root / "kvfs").mkdir(parents=True)
    (root / "pyproject.toml").write_text("committed")
    git = ("git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    (root / "pyproject.toml").write_text("changed")
    monkeypatch.setattr("harness.gate.wheels.build_tree", lambda tree: tree / "a.whl")
    wheel, name = build_revision("HEAD", commit_of("HEAD", root), root)
    assert (wheel.parent / "pyproject.toml").read_text() == "committed"
    assert name.startswith("HEAD (")
