"""The examples of docs/plan.md print what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dra_driver.cli.main import main

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "plan.md"
EXAMPLES = re.findall(r"```console\n\$ dra-driver ([^\n]*)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_prints_what_the_page_shows(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    # What is printed must not depend on the machine's load.
    main([*shlex.split(command), "--seconds", "3600"])
    printed = capsys.readouterr()
    assert printed.err + printed.out == shown
