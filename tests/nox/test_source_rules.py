"""Each rule of the source tree must be able to fail."""

from pathlib import Path, PurePosixPath

import pytest

from harness.sessions import source_rules


def _native(room: str, line: str) -> list[str]:
    path = PurePosixPath("src/kvfs_ext", room, "some.cpp")
    return list(source_rules.upward_includes(path, f"// Purpose.\n{line}\n"))


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("fs", '#include "base/fd.hpp"'),
        ("fs", '#include "fs/file.hpp"'),
        ("layouts", '#include "fs/file.hpp"'),
        ("jobs", '#  include "layouts/files.hpp"'),
        ("python", '#include "jobs/engine.hpp"'),
        ("python", "#include <nanobind/nanobind.h>"),
        ("base", "#include <vector>"),
        ("base", '// #include "jobs/engine.hpp"'),
    ],
)
def test_upward_includes_arrow_down_is_allowed(room: str, line: str) -> None:
    assert _native(room, line) == []


@pytest.mark.parametrize(
    ("room", "line", "message"),
    [
        ("base", '#include "fs/file.hpp"', "base may not include fs/file.hpp"),
        ("fs", '#include "jobs/engine.hpp"', "fs may not include jobs/engine.hpp"),
        ("layouts", '#include "index/table.hpp"', "layouts may not include index/table.hpp"),
        ("jobs", '#include "python/errors.hpp"', "jobs may not include python/errors.hpp"),
        ("jobs", "#include <Python.h>", "only src/kvfs_ext/python may include Python.h"),
        ("fs", '#include "nanobind/nanobind.h"', "only src/kvfs_ext/python may include nanobind/nanobind.h"),
        ("jobs", '#include "../fs/file.hpp"', 'write "../fs/file.hpp" as "room/file.hpp"'),
        ("jobs", '#include "file.hpp"', 'write "file.hpp" as "room/file.hpp"'),
    ],
)
def test_upward_includes_other_arrow_is_reported_with_its_line(room: str, line: str, message: str) -> None:
    (breach,) = _native(room, line)
    assert breach.startswith(f"src/kvfs_ext/{room}/some.cpp:2: {message}")


def test_upward_includes_unknown_room_is_reported() -> None:
    (breach,) = _native("attic", "")
    assert "unknown room 'attic'" in breach


@pytest.mark.parametrize(
    "line", ["import harness.bench", "from harness import bench", "def f():\n    import os, harness"]
)
def test_banned_imports_harness_in_kvfs_is_reported(line: str) -> None:
    (breach,) = source_rules.banned_imports(PurePosixPath("kvfs/vllm_adapter/tier.py"), line)
    assert "kvfs may not import harness" in breach


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("kvfs/a.py", "import harnessed\nfrom . import harness\nfrom .harness import x"),
        ("tests/adapter/a.py", "import harness"),
        ("harness/a.py", "import harness.sessions"),
    ],
)
def test_banned_imports_other_import_is_allowed(path: str, line: str) -> None:
    assert list(source_rules.banned_imports(PurePosixPath(path), line)) == []


@pytest.mark.parametrize(
    ("name", "lines", "count"),
    [("a.py", 400, 0), ("a.py", 401, 1), ("a.cpp", 401, 1), ("a.hpp", 401, 1), ("a.md", 401, 0)],
)
def test_long_files_more_than_400_lines_of_code_are_reported(name: str, lines: int, count: int) -> None:
    assert len(list(source_rules.long_files(PurePosixPath(name), "x\n" * lines))) == count


def test_main_breach_in_tree_prints_it_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kvfs").mkdir()
    (tmp_path / "kvfs" / "a.py").write_text("import tests\n")
    monkeypatch.chdir(tmp_path)
    assert source_rules.main() == 1
    assert capsys.readouterr().out.startswith("kvfs/a.py:1: kvfs may not import tests")
    (tmp_path / "kvfs" / "a.py").write_text("import os\n")
    assert source_rules.main() == 0


def test_main_no_source_files_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_rules.main() == 1
