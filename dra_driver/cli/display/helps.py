"""How ``--help`` reads: options with their defaults, paragraphs, and lists that keep their lines."""

from __future__ import annotations

import argparse
import textwrap

__all__ = ["HelpFormatter", "help_of"]


class HelpFormatter(argparse.HelpFormatter):
    """A help formatter that shows defaults which the help does not name, and keeps indented lines."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return help_of(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names of flags, files and objects stay whole, so that they can be copied.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(p if "\n  " in p else filled(p, width, indent) for p in paragraphs)


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
