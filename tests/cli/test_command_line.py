"""The `topics` command as a user meets it: a real process, its streams and its exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import topics
from tests.support import cli_reference
from tests.support.tiers import quick_first
from topics.cli import exits, main
from topics.cli.commands import COMMANDS, loaded
from topics.errors import TopicNotFound, Unreachable


def run(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "topics", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_version_is_one_line() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"topics {topics.__version__}\n", "")


@pytest.mark.slow
def test_the_version_command_says_what_a_bug_report_needs() -> None:
    done = run("version")
    assert done.returncode == exits.OK
    assert done.stdout.startswith(f"topics {topics.__version__}\npython 3.")


@pytest.mark.parametrize("option", quick_first(["--help", "-h"], 1))
def test_help_names_every_command_and_the_exit_codes(option: str) -> None:
    done = run(option)
    assert done.returncode == exits.OK
    assert "Exit codes" in done.stdout
    for command in COMMANDS:
        assert command in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_a_command_says_of_itself(name: str) -> None:
    """And every command teaches with an example."""
    command = loaded(name)
    assert command.help.partition("\n")[0] == COMMANDS[name]
    leaves = getattr(command, "commands", {name: command}).values()
    for leaf in leaves:
        assert "Example: topics " in leaf.help or "| topics " in leaf.help, leaf.name


@pytest.mark.parametrize(
    "arguments", quick_first([["no-such-command"], ["--no-such-option"], []], 1)
)
def test_a_usage_error_exits_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == exits.USAGE
    assert "Traceback" not in done.stderr


def test_python_without_assertions_is_refused() -> None:
    done = run("--version", python=("-O",))
    assert done.returncode == exits.NOT_SO
    assert "python -O" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (TopicNotFound("no topic\n'a'; see `topics list`"), 1, "no topic 'a'; see `topics list`"),
        (Unreachable("no answer from the server"), 3, "no answer from the server"),
        (ConnectionRefusedError(111, "Connection refused"), 3, "Connection refused"),
        (TimeoutError(), 3, "TimeoutError"),
        (PermissionError(13, "Permission denied", "data"), 1, "Permission denied"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(main.app, "registered_commands", [*main.app.registered_commands])
        main.app.command("fail")(fail)
        patch.setattr(sys, "argv", ["topics", "fail"])
        with pytest.raises(SystemExit) as exited:
            main.command()
    captured = capsys.readouterr()
    assert exited.value.code == code
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == (1 if message else 0)


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main.app, "registered_commands", [*main.app.registered_commands])
    main.app.command("fail")(fail)
    monkeypatch.setattr(sys, "argv", ["topics", "fail"])
    with pytest.raises(ZeroDivisionError):
        main.command()


def test_an_interrupted_command_exits_130_wherever_it_was() -> None:
    """In the middle of an import too, after which Python would end by the signal."""
    program = """
import sys
from topics.cli import main
def fail():
    print("so far")
    exec("raise KeyboardInterrupt")
main.app.command("fail")(fail)
sys.argv = ["topics", "fail"]
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.INTERRUPTED, "so far\n", "")


def test_the_reference_is_what_the_commands_say() -> None:
    """docs/cli.md is made from them: `python -m tests.support.cli_reference`."""
    assert cli_reference.PAGE.read_text() == cli_reference.generated()
