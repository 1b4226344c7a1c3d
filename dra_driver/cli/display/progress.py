"""A line on stderr that says what takes so long; on a terminal only, and gone in the end."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from dra_driver.cli.display.report import printable

__all__ = ["AFTER", "Progress", "shown_if_long"]

AFTER: Final = 1.0
"""Seconds before anything is said."""
_BETWEEN: Final = 0.2


class Progress:
    """Says what is being done, a few times a second, once it takes longer than a second.

    Args:
        stream: where it is said; if None, stderr.
        clock: monotonic, in seconds.

    Attributes:
        wanted: whether anybody can see it.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._due = clock() + AFTER
        self._shown = False
        self.wanted = self._stream.isatty()

    def show(self, text: str) -> None:
        """Say what is being done now."""
        now = self._clock()
        if self.wanted and now >= self._due:
            self._due = now + _BETWEEN
            self._shown = True
            # What does not fit a line could not be removed again.
            room = shutil.get_terminal_size().columns - 3
            self._stream.write(f"\r\x1b[K… {printable(text)[:room]}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._shown = False
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@contextlib.contextmanager
def shown_if_long(text: str, line: Progress | None = None) -> Iterator[None]:
    """Show what is being done, once it takes longer than a second, also where it never awaits.

    Args:
        text: what is being done.
        line: where it is shown; if None, on stderr.
    """
    shown = line or Progress()
    if not shown.wanted:
        yield
        return
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(AFTER / 4):
            shown.show(text)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shown.clear()
