"""The command blocks of the documentation, and the commands in them.

A block of commands is fenced as ``sh``, or as ``console`` where its output is shown too. A block that no test
runs has a comment before it, ``<!-- not run: the reason -->``, which readers of the page do not see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nonempty import nonempty
from paths import PROJECT

__all__ = ["LANGUAGES", "SCRIPTS", "Block", "Command", "blocks", "commands", "fences", "pages"]

# What fenced blocks hold; `text` is what is neither a command nor a document.
LANGUAGES: Final = ("sh", "console", "text", "yaml", "python", "toml", "json", "promql", "proto")
# test_written_paths.py runs what is on these pages.
SCRIPTS: Final = "docs/paths/"
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.M | re.S,
)
_MARK = re.compile(r"<!-- not run: (?P<reason>.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``reason`` says why no test runs it, empty: one does."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a block as it stands there, and its words."""

    block: Block
    text: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Name of what is run, without the folder of the virtual environment."""
        return self.words[0].removeprefix(".venv/bin/")


def pages() -> list[Path]:
    """Return all pages for people."""
    found = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    found += [p for p in (PROJECT / "deploy").rglob("*.md") if "node_modules" not in p.parts]
    return sorted(found)


def fences() -> Iterator[Block]:
    """Yield every fenced block of every page."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            before = text[: found.start()].rstrip("\n")
            mark = _MARK.search(before[before.rfind("\n") + 1 :])
            yield Block(
                page.relative_to(PROJECT).as_posix(),
                text.count("\n", 0, found.start()) + 1,
                found["language"].strip(),
                found["text"],
                mark["reason"] if mark is not None else "",
            )


def blocks() -> list[Block]:
    """Return every block of commands, but for the pages of which blocks run whole, as scripts."""
    return nonempty(
        block
        for block in fences()
        if block.language in ("sh", "console") and not block.page.startswith(SCRIPTS)
    )


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block without comments and prompts; assignments are not among the words."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield Command(block, line, tuple(words))
