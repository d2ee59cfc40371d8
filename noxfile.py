"""Everything that is run on this repository: `python3 noxfile.py` with nothing installed, or `nox`."""
# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5.1"]
#
# [tool.nox]
# script-venv-backend = "virtualenv"
# ///

import shutil
import sys
from pathlib import Path

# This whole file keeps to syntax that Python 3.6 parses, so that an old one gets a sentence, too.
if sys.version_info < (3, 11):  # noqa: UP036  it is the user's interpreter that is asked
    raise SystemExit(
        f"noxfile.py: kvfs needs Python 3.11 or newer, this is {sys.version_info[0]}.{sys.version_info[1]} "
        f"({sys.executable}); run it with a newer one, for example: python3.11 noxfile.py"
    )

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from harness.sessions import (  # noqa: E402  needs ROOT
    bootstrap,
    fault_runs,
    sanitizers,
    stamps,
    sysdeps,
    vllm_env,
    wheels,
)

NOX_MINIMUM = "2025.5.1"
if __name__ == "__main__":
    bootstrap.require_nox(ROOT / "noxfile.py", NOX_MINIMUM, sys.argv[1:])

import nox  # noqa: E402  may have been installed a moment ago
from nox.command import CommandFailed  # noqa: E402

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
# Environments are reused, so each Python that runs this file has its own.
nox.options.envdir = str(bootstrap.environments_dir(ROOT))

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
# Nothing but the installed wheel may answer `import kvfs`: the current directory stays off sys.path.
INSTALLED_ONLY = {"PYTHONSAFEPATH": "1", "KVFS_EXPECT_INSTALLED": "1"}
EXTENSION = {**INSTALLED_ONLY, "KVFS_EXPECT_BACKEND": "extension"}
FALLBACK = {**INSTALLED_ONLY, "KVFS_EXPECT_BACKEND": "fallback"}
DISABLED = {**FALLBACK, "KVFS_DISABLE_EXT": "1"}


@nox.session
def lint(session: nox.Session) -> None:
    """Check rules and format of Python, C++, workflows and the tree; `-- --fix` repairs what it can."""
    install(session, session_python(session), dependency_group("lint"))
    fix = "--fix" in session.posargs
    rooms = (Path("src"), Path("tests/fuzz/native"))
    sources = sorted(str(path) for room in rooms for path in room.rglob("*.[ch]pp"))
    workflows = sorted(str(path) for path in Path(".github/workflows").glob("*.yml"))
    checks = [
        ["ruff", "check", *session.posargs],
        ["ruff", "format", *([] if fix else ["--diff"])],
        ["clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows],
        ["zizmor", "--offline", "--quiet", *workflows],
        ["python", "-m", "harness.sessions.source_rules"],
    ]
    run_all(session, [(check, {}) for check in checks])


@nox.session
def typing(session: nox.Session) -> None:
    """Check the types of everything in Python, strictly."""
    install(session, session_python(session), dependency_group("typing"))
    session.run("mypy", "kvfs", "harness", "tests", "noxfile.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Test the installed wheel, extension included; `-- tests/unit/test_x.py -k NAME` runs a part."""
    python = session_python(session)
    sysdeps.ensure("compile", python)
    install(session, python, dependency_group("tests"))
    install_wheel(session, python, pure=False)
    paths = ("tests/unit", "tests/ext", "tests/property", "tests/fuzz", "tests/nox")
    run_all(session, [(pytest(session, python, *paths), EXTENSION)])


@nox.session
def fallback(session: nox.Session) -> None:
    """Test the same behaviour without the extension: disabled, then from the pure-Python wheel."""
    python = session_python(session)
    pure_python = make_environment(session, Path(f"{session.virtualenv.location}-pure"))
    sysdeps.ensure("compile", python)
    for interpreter in (python, pure_python):
        install(session, interpreter, dependency_group("tests"))
    install_wheel(session, python, pure=False)
    install_wheel(session, pure_python, pure=True)
    disabled = (pytest(session, python, "tests/unit", "tests/property"), DISABLED)
    pure = (pytest(session, pure_python, "tests/unit", "tests/property"), FALLBACK)
    run_all(session, [disabled, pure])


@nox.session(venv_backend="none")
def adapter(session: nox.Session) -> None:
    """Test the vLLM adapter and the harness in the environment of `bench`, with the extension and without."""
    python = vllm_environment(session)
    # A Chromium that opens the report; without one those tests are skipped, and say so.
    sysdeps.ensure("browser", python)
    extension = (pytest(session, python, "tests/adapter", "tests/harness"), EXTENSION)
    disabled = (pytest(session, python, "tests/adapter"), DISABLED)
    run_all(session, [(command, {**env, **vllm_env.OFFLINE}) for command, env in (extension, disabled)])


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure vLLM with every tier, cold, from host memory and from disk; `-- --quick`, `-- --help`."""
    measure(session, vllm_environment(session), "harness.bench")


@nox.session(venv_backend="none", default=False)
def micro(session: nox.Session) -> None:
    """Measure what moving chunks costs, without a model, beside fio's limit; `-- --smoke`, `-- --help`."""
    python = vllm_environment(session)
    # fio and strace: what they would show is reported as missing where they cannot be had.
    sysdeps.ensure("micro", python)
    measure(session, python, "harness.micro")


@nox.session(venv_backend="none", default=False)
def sweep(session: nox.Session) -> None:
    """Sweep named workloads over streams, threads and arms, from disk; `-- --quick`, `-- --help`."""
    measure(session, vllm_environment(session), "harness.sweep")


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """Write report.html and report.md beside the records of any sessions; `-- --out DIR`."""
    python = session_python(session)
    install(session, python, dependency_group("report"))
    session.run(python, "-m", "harness.report", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session(venv_backend="none", default=False)
def accuracy(session: nox.Session) -> None:
    """Prove that answers from each tier are as right as without one; `-- --quick`, `-- --help`."""
    measure(session, vllm_environment(session), "harness.accuracy")


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Soak the engine with load, kills and damage; `-- --minutes N`, `-- --help`."""
    python = session_python(session)
    sysdeps.ensure("compile", python)
    # Of the large group only what the soak imports.
    wanted = [line for line in dependency_group("bench") if line.startswith(("psutil", "matplotlib"))]
    install(session, python, [*dependency_group("tests"), *wanted])
    install_wheel(session, python, pure=False)
    measure(session, python, "harness.soak")


@nox.session(default=False)
def gate(session: nox.Session) -> None:
    """Compare two revisions in turns: did it get slower? `-- --base REV`, `-- --aa`, `-- --help`."""
    python = session_python(session)
    sysdeps.ensure("compile", python)
    # Of the large group only what the gate imports; it builds and unpacks the wheels itself.
    wanted = [line for line in dependency_group("bench") if line.startswith(("psutil", "scipy"))]
    install(session, python, [*dependency_group("tests"), *wanted])
    try:
        # No wheel is installed here, so nothing hides behind the tree; its processes import the two wheels.
        measure(session, python, "harness.gate", PYTHONPATH=str(ROOT))
    except CommandFailed as error:
        # nox has one status for all that fails; this session's says which verdict it was.
        raise SystemExit(getattr(error, "return_code", None) or 1) from error


def measure(session: nox.Session, python: str, module: str, **env: str) -> None:
    """Run a benchmark of the harness with the arguments that the user gave, and variables of its own."""
    session.run(
        *(python, "-m", module, *session.posargs),
        env={**INSTALLED_ONLY, **env},
        external=True,
        # After Ctrl-C it ends what it started; nox would kill it after half a second.
        interrupt_timeout=30,
        terminate_timeout=30,
    )


@nox.session(default=False)
def sanitize(session: nox.Session) -> None:
    """Test the extension under AddressSanitizer and ThreadSanitizer, each with a build of its own."""
    sysdeps.ensure("compile", session_python(session))
    commands = []
    logs = []
    for sanitizer in sanitizers.SANITIZERS:
        python = make_environment(session, Path(f"{session.virtualenv.location}-{sanitizer.name}"))
        install(session, python, dependency_group("tests"))
        install_wheel(session, python, pure=False, sanitize=sanitizer.flags)
        libraries = [
            str(session.run("g++", f"-print-file-name={name}", silent=True, external=True, log=False)).strip()
            for name in sanitizer.libraries
        ]
        logs.append(Path(python).parents[1] / "report")
        # After the paths, which give way to those that the user names.
        command = [*pytest(session, python, *sanitizer.tests), "-m", "not uninstrumented"]
        env = {**EXTENSION, **sanitizer.environment(libraries, logs[-1])}
        commands.append(([*sanitizers.command_prefix(), *command], env))
    try:
        run_all(session, commands)
    finally:
        found = [report for log in logs for report in sanitizers.reports(log)]
        for report in found:
            session.log("%s", report)
    if found:
        session.error(f"the sanitizers made {len(found)} reports, see above")


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Test what full, slow, broken and lying disks do, calls that fail on request included; `-- --long`."""
    python = session_python(session)
    for need in ("compile", "faults"):
        sysdeps.ensure(need, python)
    install(session, python, dependency_group("tests"))
    install_wheel(session, python, pure=False, faults=True)
    arguments = fault_runs.parse(session.posargs)
    command = [python, "-m", "pytest", *arguments.paths, *arguments.rest]
    runs: list[tuple[str, list[str], dict[str, str]]] = [("extension", [], EXTENSION)]
    if arguments.concern_fallback:
        runs.append(("fallback", [f"--ignore={fault_runs.INJECTED}"], DISABLED))
    reports = [Path(python).parents[1] / f"faults-{name}.xml" for name, _, _ in runs]
    for report in reports:
        report.unlink(missing_ok=True)
    try:
        run_all(
            session,
            [
                ([*command, *options, f"--junitxml={report}"], {**env, **arguments.environment})
                for (_, options, env), report in zip(runs, reports, strict=True)
            ],
        )
    finally:
        for (name, _, _), report in zip(runs, reports, strict=True):
            for line in fault_runs.read_tally(report).lines():
                session.log("%s: %s", name, line)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz what kvfs reads from disk, with libFuzzer and atheris; `-- --seconds N`, `-- --help`."""
    python = session_python(session)
    for need in ("compile", "fuzz"):
        sysdeps.ensure(need, python)
    install(session, python, dependency_group("fuzz"))
    install_wheel(session, python, pure=False)
    session.run(python, "-m", "harness.fuzz", *session.posargs, env=EXTENSION)


def dependency_group(name: str) -> "list[str]":
    """Return the requirements of a dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def pytest(session: nox.Session, python: str, *paths: str) -> "list[str]":
    """Return the command that runs pytest on `paths`, or on the paths that the user named."""
    named = any(argument.startswith("tests/") for argument in session.posargs)
    return [python, "-m", "pytest", *([] if named else paths), *session.posargs]


def run_all(session: nox.Session, commands: "list[tuple[list[str], dict[str, str]]]") -> None:
    """Run each command with its variables and fail after the last: one run shows everything."""
    failed = []
    for arguments, env in commands:
        try:
            session.run(*arguments, env=env, external=True)
        except CommandFailed:
            failed.append(" ".join(arguments[:3]))
    if failed:
        session.error(f"{len(failed)} of {len(commands)} commands failed: {'; '.join(failed)}")


def session_python(session: nox.Session) -> str:
    """Return the interpreter of the session's own environment."""
    return str(Path(session.virtualenv.location, "bin", "python"))


def make_environment(session: nox.Session, directory: Path) -> str:
    """Make or reuse an environment beside the one that nox gives each session; return its interpreter."""
    # pip comes last: without it the making was interrupted.
    if not (directory / "bin" / "pip").exists():
        wanted = ["-p", session.python] if isinstance(session.python, str) else []
        command = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", *wanted]
        session.run_install(*command, str(directory), external=True)
    return str(directory / "bin" / "python")


def install(session: nox.Session, python: str, requirements: "list[str]") -> None:
    """Install requirements into an environment, unless these are there already."""
    stamp = stamps.Stamp(
        Path(python).parents[1] / "kvfs-requirements", stamps.digest_of_strings(requirements)
    )
    if not stamp.is_current():
        stamp.clear()
        if session.run_install(python, "-m", "pip", "install", "--quiet", *requirements, external=True):
            stamp.write()


def install_wheel(
    session: nox.Session, python: str, *, pure: bool, sanitize: str = "", faults: bool = False
) -> None:
    """Build this tree's wheel and install it into an environment, each unless it is done already."""
    program = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"
    printed = session.run_install(python, "-P", "-c", program, silent=True, external=True, log=False)
    # With `-R` nothing is installed, and nothing is returned.
    if not printed:
        return
    version, site_packages = str(printed).strip().split(" ", 1)
    build = wheels.WheelBuild(ROOT, version, pure, sanitize, faults)
    if not build.stamp.is_current():
        shutil.rmtree(build.directory, ignore_errors=True)
        command = [python, "-m", "pip", *build.pip_arguments]
        if not session.run_install(*command, env=build.environment, external=True):
            return
        build.check()
        build.stamp.write()
    installed = stamps.Stamp(Path(site_packages, "kvfs-wheel"), build.digest)
    if not installed.is_current():
        installed.clear()
        command = [python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]
        if session.run_install(*command, str(build.path()), external=True):
            # Last on sys.path, so that tests find the harness and yet the wheel answers `import kvfs`.
            Path(site_packages, "kvfs-harness.pth").write_text(f"{ROOT}\n")
            installed.write()


def vllm_environment(session: nox.Session) -> str:
    """Make or reuse the environment with vLLM; return its interpreter.

    nox gives each session an environment of its own; this one has 4 GB and serves several.
    """
    wanted = session.python if isinstance(session.python, str) else ""
    directory = vllm_env.directory(bootstrap.environments_dir(ROOT), wanted)
    python = make_environment(session, directory)
    for need in ("compile", "vllm"):
        sysdeps.ensure(need, python)
    steps = [
        ["install", *dependency_group("bench")],
        ["install", "--no-deps", *dependency_group("model")],
        ["uninstall", "--yes", *vllm_env.MISMATCHED],
    ]
    digest = stamps.digest_of_strings([argument for step in steps for argument in step])
    stamp = stamps.Stamp(directory / "kvfs-requirements", digest)
    if not stamp.is_current():
        stamp.clear()
        session.log("installing vLLM and the measuring tools into %s: about 4 GB, some minutes", directory)
        if all(pip_logged(session, python, directory / "pip.log", step) for step in steps):
            stamp.write()
    install_wheel(session, python, pure=False)
    return python


def pip_logged(session: nox.Session, python: str, log: Path, arguments: "list[str]") -> bool:
    """Run pip with its output in a file; return whether it ran.

    When it fails, the session ends with what there is to do.
    """
    with log.open("w") as output:
        try:
            return bool(session.run_install(python, "-m", "pip", *arguments, stdout=output, external=True))
        except CommandFailed:
            session.error(vllm_env.install_failure(log.read_text(), log))


if __name__ == "__main__":
    nox.main()
