"""Each command of the documentation is run by a test, or the page says why not.

What runs them: those of the driver and of kubectl ``test_documented_commands_run.py``, on a cluster; those of
Helm ``test_documented_installations.py``; those with output ``test_plan_page.py``. The targets of make are
what CI runs, so it is enough that there are such targets.
"""

from __future__ import annotations

import argparse
import importlib
import re

import pytest
from documented_commands import LANGUAGES, Command, blocks, commands, fences
from nonempty import nonempty
from paths import PROJECT

from dra_driver.cli.main import COMMANDS

RUN = [command for block in blocks() if not block.reason for command in commands(block)]
# Program → what runs it.
RUNNERS = {
    "dra-driver": "test_documented_commands_run",
    "kubectl": "test_documented_commands_run",
    "helm": "test_documented_installations",
    "make": "test_the_targets_of_make_are_there",
    "python": "test_the_tests_that_are_named_are_there",
}


def of(program: str) -> list[Command]:
    return [command for command in RUN if command.program == program]


def test_every_block_says_what_it_holds() -> None:
    """A block without a language would be looked at by nobody."""
    assert [str(block) for block in nonempty(fences()) if block.language not in LANGUAGES] == []


def test_no_commands_hide_in_text() -> None:
    known = re.compile(
        r"^\s*(\$ |sudo |(\.venv/bin/)?(dra-driver|kubectl|helm|make|docker|minikube|pip) )", re.M
    )
    texts = nonempty(b for b in fences() if b.language == "text")
    assert [str(b) for b in texts if known.search(b.text)] == []


def test_every_command_has_something_that_runs_it() -> None:
    assert len(RUN) > 60
    assert [(str(c.block), c.program) for c in RUN if not RUNNERS.get(c.program)] == []


def test_a_block_that_is_not_run_says_why_in_a_sentence() -> None:
    reasons = {str(block): block.reason for block in blocks() if block.reason}
    assert reasons
    assert [place for place, reason in reasons.items() if len(reason.split()) < 2] == []
    assert len(reasons) < len(blocks()) / 2


def test_the_tests_that_reasons_name_exist() -> None:
    files = {path.name for path in (PROJECT / "tests").rglob("test_*.py")}
    named = {(str(b), n) for b in blocks() for n in re.findall(r"\btest_\w+\.py\b", b.reason)}
    assert named
    assert sorted((place, name) for place, name in named if name not in files) == []


def test_the_targets_of_make_are_there() -> None:
    targets = sorted(
        {word for command in of("make") for word in command.words[1:] if re.fullmatch("[a-z-]+", word)}
    )
    assert {"demo", "test", "lint"} <= set(targets)
    text = (PROJECT / "Makefile").read_text()
    assert [target for target in targets if not re.search(rf"(?m)^{target}:", text)] == []


def test_the_tests_that_are_named_are_there() -> None:
    for command in nonempty(of("python")):
        assert command.words[1:3] == ("-m", "pytest"), command
        for word in command.words[3:]:
            path, _, name = word.partition("::")
            if path.startswith("tests"):
                assert (PROJECT / path).exists(), command
                assert not name or f"def {name}(" in (PROJECT / path).read_text(), command


@pytest.mark.parametrize("command", of("dra-driver"), ids=lambda c: c.text[:60])
def test_arguments_of_the_driver_are_understood(command: Command) -> None:
    """Quickly, before they are run."""
    name, *arguments = command.words[1:]
    module, _ = COMMANDS[name]
    parser = argparse.ArgumentParser(prog=name)
    importlib.import_module(f"dra_driver.cli.{module}").add_arguments(parser)
    parser.parse_args([a for a in arguments if a not in ("&", "…")])
