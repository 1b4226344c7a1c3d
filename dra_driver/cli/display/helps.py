"""How ``--help`` reads: options with their defaults, paragraphs, and lists that keep their lines."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence

__all__ = ["CommandsFormatter", "HelpFormatter", "help_of"]


class HelpFormatter(argparse.HelpFormatter):
    """A help formatter that shows defaults which the help does not name, and keeps indented lines."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return help_of(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names of flags, files and objects stay whole, so that they can be copied.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        def filled(paragraph: str) -> str:
            words = " ".join(paragraph.split())
            return textwrap.fill(
                words,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
            )

        return "\n\n".join(p if "\n  " in p else filled(p) for p in text.split("\n\n"))


class CommandsFormatter(HelpFormatter):
    """A help formatter that lists subcommands in groups.

    Args:
        prog: name of the program.
        groups: title → names of subcommands; a group of which the parser has none is left out.
    """

    def __init__(self, prog: str, groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__(prog)
        self._groups = groups

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        commands = {command.dest: command for command in action._get_subactions()}
        parts = []
        for title, names in self._groups.items():
            if own := [commands[name] for name in names if name in commands]:
                parts.append(f"{'':{self._current_indent}}{title}:\n")
                self._indent()
                parts += [self._format_action(command) for command in own]
                self._dedent()
        return self._join_parts(parts)


def help_of(action: argparse.Action) -> str:
    """Return the help of an argument with its default, as argparse expects it: ``%%`` is a percent sign."""
    text = action.help or ""
    shown = _default(action)
    if not shown or not text or "default" in text:
        return text
    return f"{text}; default: {shown.replace('%', '%%')}"


def _default(action: argparse.Action) -> str:
    """Return an option's default as people would type it; if there is none to speak of, an empty text."""
    if not action.option_strings or action.default in (None, "", [], (), argparse.SUPPRESS):
        return ""
    if isinstance(action.default, bool):
        # Of ``--x, --no-x`` the one that holds; a flag that can only be given is off, as everybody expects.
        if not isinstance(action, argparse.BooleanOptionalAction):
            return ""
        return next(o for o in action.option_strings if o.startswith("--no-") is not action.default)
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
