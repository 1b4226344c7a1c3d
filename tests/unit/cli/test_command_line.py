"""What all commands have in common: version, completion, the help."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import structlog
from forked import ForkedScript
from nonempty import nonempty

import dra_driver
from dra_driver.cli.common import configure_logging
from dra_driver.cli.display.helps import HelpFormatter
from dra_driver.cli.main import COMMANDS, GROUPS, kubectl_dra, main

PROGRAM = Path(sys.executable).parent / "dra-driver"


def test_the_version_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["api"]) == (dra_driver.__version__, "resource.k8s.io/v1")
    assert kubectl_dra(["version"]) == 0
    assert dra_driver.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_function(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "dra-driver" in capsys.readouterr().out


def completing(line: str, answer: Path) -> dict[str, str]:
    """Return the variables by which a shell asks for what completes the end of a line, into a file."""
    return {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
    }


def completions(line: str, folder: Path) -> list[str]:
    """Return what the shell is offered for a line whose end is completed."""
    answer = folder / "answer"
    script = "from dra_driver.cli.main import main; main()"
    ForkedScript(script, environment=completing(line, answer)).finish()
    return [word.strip() for word in answer.read_text().split("\n")]


def test_commands_and_flags_of_the_chosen_command_are_completed(tmp_path: Path) -> None:
    assert {"explain", "status"} <= set(completions("dra-driver ", tmp_path))
    assert completions("dra-driver explain --all-d", tmp_path) == ["--all-drivers"]
    assert completions("dra-driver status --by mo", tmp_path) == ["model"]


def test_simulated_machines_and_backends_are_offered(tmp_path: Path) -> None:
    assert completions("dra-driver demo --profile dgx-h", tmp_path) == [
        "dgx-h100",
        "dgx-h100-nics",
        "dgx-h200",
    ]
    assert completions("dra-driver devices --backend nvml=", tmp_path) == ["nvml=mig"]
    assert completions("dra-driver devices --backend simulated=l", tmp_path) == [
        "simulated=l4x4",
        "simulated=l4x8",
    ]


@pytest.mark.parametrize(
    ("words", "expected"), [(["status", "--by", "mo"], ["model"]), (["ex"], ["explain"])]
)
def test_kubectl_gets_completions_and_its_directive(words: list[str], expected: list[str]) -> None:
    script = "from dra_driver.cli.main import kubectl_complete; kubectl_complete()"
    lines = ForkedScript(script, *words, environment={}).finish()
    assert [line.strip() for line in lines] == [*expected, ":4"]


@pytest.mark.long
def test_the_installed_programs_complete(tmp_path: Path) -> None:
    program = PROGRAM.with_name("kubectl_complete-dra")
    run = subprocess.run([program, "ex"], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.splitlines() == ["explain", ":4"]
    answer = tmp_path / "answer"
    environment = os.environ | completing("dra-driver ex", answer)
    subprocess.run([PROGRAM], env=environment, check=True, timeout=60)
    assert answer.read_text().strip() == "explain"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "colours"), [("", True), ("1", False)])
def test_logs_have_colours_on_terminals_unless_nobody_wants_them(
    no_color: str, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    with contextlib.redirect_stderr(Terminal()) as terminal:
        configure_logging("info", "console")
        structlog.get_logger().info("here")
    assert "here" in terminal.getvalue()
    assert ("\x1b" in terminal.getvalue()) is colours


LINES = [
    *([name] for name in COMMANDS if name not in ("cdi", "bench", "sim")),
    *(["cdi", action] for action in ("list", "validate", "show")),
    ["bench", "allocator"],
    ["sim", "apiserver"],
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_the_help_of_every_command_reads_well(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 110
    # No value of Python, no list, and one way to say a default.
    for strange in ("None", "True", "False", "[]", "(default", ".0\n", "may be repeated"):
        assert strange not in out, strange
    # Names are not broken at their hyphens, so that they can be copied.
    assert not re.search(r"\w-\n", out)


def test_every_flag_says_what_it_takes_and_what_it_does() -> None:
    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(f"dra_driver.cli.{module}").add_arguments(parser)
        for action in nonempty(flags_of(parser)):
            assert action.help, (name, action.option_strings)
            assert action.nargs == 0 or action.choices or action.metavar, (name, action.option_strings)


def flags_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all options, those of subcommands too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from flags_of(sub)
        elif action.option_strings:
            yield action


def test_defaults_are_shown_as_people_type_them() -> None:
    parser = argparse.ArgumentParser(formatter_class=HelpFormatter)
    parser.add_argument("--on", action=argparse.BooleanOptionalAction, default=True, help="one")
    parser.add_argument("--off", action=argparse.BooleanOptionalAction, default=False, help="two")
    parser.add_argument("--flag", action="store_true", help="three")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="four")
    parser.add_argument("--part", default="5%", metavar="P", help="five %% of it")
    parser.add_argument("--said", default=1, metavar="N", help="six; the default is one")
    shown = " ".join(parser.format_help().split())
    for words in (
        "one; default: --on",
        "two; default: --no-off",
        "three --",
        "four; default: 60 ",
        "five % of it; default: 5% ",
    ):
        assert words in shown
    assert shown.endswith("six; the default is one")


def test_the_help_lists_every_command_in_one_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = sorted(name for names in GROUPS.values() for name in names)
    assert sorted([*listed, "bench", "fake-hardware", "sim"]) == sorted(COMMANDS)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "positional arguments" not in out
    assert not re.search(r"\w-\n", out)
    for name in listed:
        assert len(re.findall(rf"^    {name}(?:\s|$)", out, re.MULTILINE)) == 1, name


@pytest.mark.parametrize(("command", "prog"), [(main, "dra-driver"), (kubectl_dra, "kubectl dra")])
def test_a_command_without_arguments_says_what_there_is(
    command: Callable[[Sequence[str]], int], prog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: {prog} ")
    with pytest.raises(SystemExit):
        command(["status", "--help"])
    assert f"\n  {prog} status --by model" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "status", "cel", "plan"])
def test_what_people_ask_with_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    out = capsys.readouterr().out
    assert "\nlogging:\n" in out
    assert "\nexamples:\n  dra-driver " in out
