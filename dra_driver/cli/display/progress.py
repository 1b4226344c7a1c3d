"""A line on stderr that says what takes so long; on a terminal only, and gone in the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from dra_driver.cli.display.report import printable

__all__ = ["AFTER", "Progress"]

AFTER: Final = 1.0
"""Seconds before anything is said."""
_BETWEEN: Final = 0.2


class Progress:
    """Says what is being done, a few times a second, once it takes longer than a second.

    Args:
        stream: where it is said; if None, stderr.
        clock: monotonic, in seconds.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._due = clock() + AFTER
        self._shown = False
        self._wanted = self._stream.isatty()

    def show(self, text: str) -> None:
        """Say what is being done now."""
        now = self._clock()
        if self._wanted and now >= self._due:
            self._due = now + _BETWEEN
            self._shown = True
            self._stream.write(f"\r\x1b[K… {printable(text)}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._shown = False
            self._stream.write("\r\x1b[K")
            self._stream.flush()
