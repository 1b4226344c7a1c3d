"""What all commands have in common: version, completion, the help."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

import dra_driver
from dra_driver.cli.common import configure_logging
from dra_driver.cli.main import kubectl_dra, main

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


def completions(line: str, folder: Path) -> list[str]:
    """Return what the shell is offered for a line whose end is completed."""
    answer = folder / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
    }
    subprocess.run([PROGRAM], env=environment, check=True, timeout=60)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_commands_and_flags_of_the_chosen_command_are_completed(tmp_path: Path) -> None:
    assert {"explain", "status"} <= set(completions("dra-driver ", tmp_path))
    assert completions("dra-driver explain --all-d", tmp_path) == ["--all-drivers"]
    assert completions("dra-driver status --by mo", tmp_path) == ["model"]


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


@pytest.mark.parametrize("command", ["explain", "status", "cel"])
def test_the_help_is_in_groups_and_fits_100_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "\nlogging:\n" in out
    assert "\nexamples:\n  dra-driver " in out
    assert "(default: None)" not in out
    assert max(map(len, out.splitlines())) <= 100
