"""What the pages for kinds of readers tell them to type prints what the pages show.

A block ``text`` after a block ``sh`` shows what it prints: each of its lines is there, in this order; ``…``
stands for anything on a line, and the width of gaps does not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from documented_commands import SCRIPTS, Block, fences
from documented_reader import kept_demo, reader_folder, requires_kubectl
from paths import PROJECT

pytestmark = [pytest.mark.sim, pytest.mark.long]

PROGRAMS = Path(sys.executable).parent
ON_THE_CLUSTER = ("ml-engineer", "platform-engineer", "operator")
WITHOUT = ("driver-author", "contributor")
SECONDS = 40.0
# By these a make that runs the tests would hand its own flags to the make that a page tells to run.
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")


@dataclass(frozen=True)
class Step:
    """Commands of a page, and lines of what they print."""

    commands: Block
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """Return the steps of a page in their order."""
    found: list[Step] = []
    for block in fences():
        if block.page != f"{SCRIPTS}{page}.md" or block.reason:
            continue
        if block.language == "sh":
            found.append(Step(block, ()))
        elif block.language == "text":
            found[-1] = Step(found[-1].commands, tuple(block.text.splitlines()))
    return found


def missing(shown: tuple[str, ...], output: str) -> str | None:
    """Return the first line that is not in the output after the lines before it; None: all are."""
    text = re.sub(r"[ \t]+", " ", output)
    at = 0
    for line in shown:
        parts = [re.escape(" ".join(part.split())) for part in line.split("…")]
        found = re.compile(r"[^\n]*?".join(p.replace(r"\ ", " ") for p in parts)).search(text, at)
        if found is None:
            return line
        at = found.end()
    return None


def follow(page: str, folder: Path, environment: dict[str, str]) -> None:
    """Do what a page says; what is not there yet is looked at again, as a reader would.

    All is typed in one terminal: what a step exports holds for those after it.
    """
    exported: list[str] = []
    for step in steps(page):
        deadline = time.monotonic() + SECONDS
        while True:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", "\n".join([*exported, step.commands.text])],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=240,
            )
            lacks = missing(step.shown, done.stdout)
            if (done.returncode == 0 and lacks is None) or time.monotonic() > deadline:
                break
            time.sleep(1)
        assert done.returncode == 0, f"{step.commands}\n{done.stdout}"
        assert lacks is None, f"{step.commands}: {lacks!r} is not in\n{done.stdout}"
        exported += re.findall(r"^export .*$", step.commands.text, re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    requires_kubectl()
    kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
    with kept_demo(PROGRAMS, kubeconfig):
        yield kubeconfig


@pytest.mark.parametrize("page", ON_THE_CLUSTER)
def test_a_reader_with_a_cluster_sees_what_the_page_shows(page: str, cluster: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    follow(page, reader_folder(tmp_path, PROGRAMS), environment)


@pytest.mark.parametrize("page", WITHOUT)
def test_a_reader_with_a_checkout_sees_what_the_page_shows(page: str) -> None:
    left_out = {"KUBECONFIG", *OF_MAKE}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Where the commands are is for the page to say.
    folders = [folder for folder in os.environ["PATH"].split(":") if Path(folder) != PROGRAMS]
    follow(page, PROJECT, {**environment, "PATH": ":".join(folders)})


def test_every_page_is_followed() -> None:
    written = {path.stem for path in (PROJECT / SCRIPTS).glob("*.md")} - {"index"}
    assert written == {*ON_THE_CLUSTER, *WITHOUT}
    assert all(len(steps(page)) > 2 for page in written)


def test_a_line_that_is_not_printed_is_missed() -> None:
    assert missing(("a … c", "d"), "x\na  b   c\nd") is None
    assert missing(("d", "a"), "a\nd") == "a"
    assert missing(("a … d",), "a b c\nd") == "a … d"
