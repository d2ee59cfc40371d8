"""Tests of what the micro benchmark measures: sizes, shapes, and the bounds of every run."""

import pytest

from harness.errors import UsageError
from harness.micro import arms, cases
from harness.micro.cases import LOAD, MIXED, STORE, Limits, Shape

KIB, MIB = 1 << 10, 1 << 20
LIMITS = Limits(max_bytes=768 * MIB, backlog_bytes=512 * MIB, backlog_chunks_max=2048)
SIZES = (64 * KIB, 512 * KIB, MIB, 3 * MIB, 8 * MIB)
SHAPES = (Shape(16, 16), Shape(1, 64))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64KiB", 64 * KIB), ("3 MiB", 3 * MIB), ("1GiB", 1 << 30), ("65536", 65536), ("4096B", 4096)],
)
def test_parse_size_reads_units(text: str, size_bytes: int) -> None:
    assert cases.parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "64KB", "-1MiB", "1.5MiB", "many"])
def test_parse_size_of_something_else_names_it(text: str) -> None:
    with pytest.raises(UsageError, match="is no size; write it like 64KiB"):
        cases.parse_size(text)


@pytest.mark.parametrize("text", ["0", "1000", "6KiB"])
def test_parse_chunk_that_is_not_whole_pages_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--chunk {text}: a chunk is a whole number of pages"):
        cases.parse_chunk(text)


@pytest.mark.parametrize("text", ["16", "16x", "0x16", "16*16"])
def test_parse_shape_of_something_else_names_it(text: str) -> None:
    with pytest.raises(UsageError, match="write JOBSxCHUNKS"):
        cases.parse_shape(text)


def test_size_text_uses_the_largest_whole_unit() -> None:
    assert [cases.size_text(size) for size in (*SIZES, 5000)] == [
        "64 KiB",
        "512 KiB",
        "1 MiB",
        "3 MiB",
        "8 MiB",
        "5000 B",
    ]


def test_plan_keeps_every_run_within_its_bounds() -> None:
    planned = cases.plan(cases.OPS, SIZES, (1, 4, 16), SHAPES, LIMITS, victim=True)
    for case in planned:
        assert case.chunks * case.chunk_bytes <= LIMITS.max_bytes, case
        assert case.backlog_jobs * case.chunks_per_job * case.chunk_bytes <= LIMITS.backlog_bytes, case
        assert case.backlog_jobs * case.chunks_per_job <= LIMITS.backlog_chunks_max, case
        assert case.op != STORE or case.victim or case.chunks <= 1024, case
        assert min(case.jobs, case.chunks_per_job, case.waves) >= 1, case
    measured = {(case.op, case.chunk_bytes, case.threads) for case in planned if not case.victim}
    assert measured == {(op, size, count) for op in cases.OPS for size in SIZES for count in (1, 4, 16)}
    # Files to load are written once for a chunk size.
    assert [case.chunk_bytes for case in planned] == sorted(case.chunk_bytes for case in planned)


def test_plan_has_the_shapes_that_were_asked_for_where_they_fit() -> None:
    planned = cases.plan((STORE, LOAD), (MIB, 3 * MIB), (16,), SHAPES, LIMITS, victim=False)
    assert {str(case.shape) for case in planned} == {"16x16", "1x64"}
    one_job = [case for case in planned if case.jobs == 1]
    assert all(case.waves >= 4 for case in one_job), "one latency a wave is too few"


def test_plan_measures_the_victim_at_the_largest_thread_count_alone() -> None:
    planned = cases.plan(cases.OPS, (MIB,), (16, 1, 4), SHAPES, LIMITS, victim=True)
    victims = [(case.op, case.threads, case.jobs) for case in planned if case.victim]
    assert victims == [(STORE, 16, 32), (LOAD, 16, 32)]


@pytest.mark.parametrize(
    ("shape", "chunk_bytes", "fitted"),
    [
        (Shape(16, 16), 3 * MIB, Shape(16, 16)),
        (Shape(16, 16), 8 * MIB, Shape(16, 6)),
        (Shape(1, 64), 64 * MIB, Shape(1, 12)),
        (Shape(16, 16), 512 * MIB, Shape(1, 1)),
    ],
    ids=["as-it-is", "smaller-jobs", "one-smaller-job", "one-chunk"],
)
def test_fit_shrinks_jobs_before_their_number(shape: Shape, chunk_bytes: int, fitted: Shape) -> None:
    assert cases.fit(shape, chunk_bytes, LIMITS) == fitted


def test_smoke_moves_one_mebibyte_a_run() -> None:
    limits = Limits(MIB, MIB, 1 << 62, smoke=True)
    planned = cases.plan(cases.OPS, (64 * KIB, MIB), (1, 16), SHAPES, limits, victim=True)
    assert all(case.chunks * case.chunk_bytes <= MIB for case in planned)
    assert all(case.waves == 1 for case in planned if not case.victim and case.op != MIXED)


def test_case_key_has_the_keys_of_the_suite() -> None:
    (case,) = cases.plan((LOAD,), (MIB,), (4,), (Shape(16, 16),), LIMITS, victim=False)
    assert case.key("psync", "ext4") == {
        "op": "load",
        "layout": "files",
        "io": "psync",
        "chunk_bytes": MIB,
        "threads": 4,
        "jobs": 16,
        "chunks_per_job": 16,
        "dir_fs": "ext4",
    }


def test_arms_have_the_stock_tier_at_both_ends_of_a_round() -> None:
    chosen = arms.choose(list(arms.NAMES), list(arms.IO_CHOICES))
    assert [arm.label for arm in chosen] == [
        "fs",
        "kvfs (uring)",
        "kvfs (psync)",
        "kvfs-fallback",
        "fio",
        "fs-aa",
    ]


def test_arm_without_checksums_runs_where_it_is_named_beside_the_same_io() -> None:
    chosen = arms.choose(["fs", "kvfs", "kvfs-unverified"], ["uring", "psync"])
    labels = ["kvfs (uring)", "kvfs (psync)", "kvfs-unverified (uring)", "kvfs-unverified (psync)"]
    assert [arm.label for arm in chosen] == ["fs", *labels, "fs-aa"]
    assert [arm.checksum for arm in chosen] == ["auto", "auto", "auto", "off", "off", "auto"]
    assert arms.wants_seals(chosen)
    # It loads in turns with its like, and with no other.
    beside = {arm.label: other.label for arm in chosen if (other := arms.beside(arm, chosen))}
    assert beside == {f"kvfs ({io})": f"kvfs-unverified ({io})" for io in ("uring", "psync")}
    assert arms.beside(chosen[1], chosen[:2]) is None
    assert not arms.wants_seals(arms.choose(list(arms.NAMES), list(arms.IO_CHOICES)))


def test_arms_take_only_the_io_that_is_asked_for() -> None:
    assert [arm.label for arm in arms.choose(["kvfs"], ["psync"])] == ["kvfs (psync)"]


@pytest.mark.parametrize(
    ("names", "io", "message"),
    [
        (
            ["fs", "nfs"],
            ["psync"],
            "--arms: 'nfs' is unknown; choose from fs,kvfs,kvfs-fallback,fio,kvfs-unverified",
        ),
        (["kvfs-unverified"], ["psync"], "--arms: kvfs-unverified is what kvfs is compared with"),
        (["kvfs"], ["aio"], "--io: 'aio' is unknown; choose from uring,psync"),
        (["fio"], ["psync"], "leave nothing to measure"),
    ],
    ids=["arm", "unverified-alone", "io", "fio-alone"],
)
def test_arms_that_cannot_be_are_refused(names: list[str], io: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arms.choose(names, io)
