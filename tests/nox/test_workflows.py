"""The workflows: their steps call sessions that exist, with options that these know, and trust no input."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What else a step may do: prepare what sessions need, and publish what they wrote.
OTHER_COMMANDS = (
    re.compile(r'sudo "\$\(command -v python3\)" -B -m harness\.sessions\.sysdeps'),
    re.compile(r'cp -- "bench-out/wheels/\$THRESHOLDS" harness/gates\.toml'),
    re.compile(r'cat bench-out/[a-z]+/[a-z]+\.md >> "\$GITHUB_STEP_SUMMARY"'),
)
IN_ITS_OWN_MODULE = {"faults": ("harness/sessions/fault_runs.py",)}


def sessions() -> set[str]:
    """Return the sessions that noxfile.py defines."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def options_of(session: str) -> set[str]:
    """Return what looks like an option in the code that reads a session's arguments."""
    rooms = IN_ITS_OWN_MODULE.get(session, (f"harness/{session}.py", f"harness/{session}"))
    files = [file for room in rooms for file in [ROOT / room, *(ROOT / room).rglob("*.py")] if file.is_file()]
    words = (
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {part for word in words for part in word.split("/") if part.startswith("--")}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.stem}, {name}", job


def commands() -> list[tuple[str, str]]:
    """Return what all steps run, each with where it stands."""
    return [
        (where, " ".join(step["run"].split()))
        for where, job in jobs()
        for step in job.get("steps", [])
        if "run" in step
    ]


def arguments_of(command: str) -> list[str]:
    """Return the arguments of noxfile.py in a command; those that are given only at times among them."""
    given = re.sub(r"\$\{\w+:\+(--[\w-]+) (\"\$\w+\")\}", r"\1 \2", command)
    return shlex.split(given.partition("noxfile.py ")[2])


SESSION_COMMANDS = [(where, command) for where, command in commands() if "noxfile.py" in command]


@pytest.mark.parametrize(
    ("where", "command"), SESSION_COMMANDS, ids=[command for _, command in SESSION_COMMANDS]
)
def test_workflow_step_calls_a_session_that_there_is_with_options_that_it_knows(
    where: str, command: str
) -> None:
    flag, session, *rest = arguments_of(command)
    assert flag == "-s", where
    assert session in sessions(), where
    if rest:
        assert rest[0] == "--", where
        wanted = {argument for argument in rest[1:] if argument.startswith("--")}
        assert wanted <= options_of(session), where


def test_workflow_steps_do_nothing_else() -> None:
    others = [pair for pair in commands() if pair not in SESSION_COMMANDS]
    assert others
    strange = [pair for pair in others if not any(known.fullmatch(pair[1]) for known in OTHER_COMMANDS)]
    assert not strange


def test_workflow_commands_hold_no_expression() -> None:
    # An expression is put into the script as text, so that whoever names a branch could write commands.
    assert not [pair for pair in commands() if "${{" in pair[1]]


def test_workflows_pin_actions_and_ask_for_little() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {}, path.name
        for action, pin in re.findall(r"uses: ([\w./-]+)@(\S+ # v[\d.]+)$", path.read_text(), re.MULTILINE):
            pins.setdefault(action, set()).add(pin)
    assert all(len(versions) == 1 for versions in pins.values()), pins
    for where, job in jobs():
        assert job["permissions"] == {"contents": "read"}, where
        assert "timeout-minutes" in job or job["uses"].startswith("./"), where
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), where
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, where


def test_options_that_no_session_knows_are_found() -> None:
    assert "--minutes" in options_of("soak")
    assert "--hours" not in options_of("soak")
    assert options_of("faults") >= {"--long"}
    assert arguments_of('python3 noxfile.py -s gate -- --base "$BASE" ${HEAD:+--head "$HEAD"}') == [
        *("-s", "gate", "--", "--base", "$BASE", "--head", "$HEAD")
    ]
