"""Work that does not depend on the machine: calls of functions, in Python and in C."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["calls", "calls_elsewhere"]


def calls(run: Callable[[], object]) -> int:
    """Return how many functions a run calls in this thread."""
    found = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@contextlib.contextmanager
def calls_elsewhere(*folders: str) -> Iterator[Callable[[], int]]:
    """Count the functions in Python that are called within the block, but for those in some folders."""
    found = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal found
        if event == "call" and not any(folder in frame.f_code.co_filename for folder in folders):
            found += 1

    sys.setprofile(count)
    try:
        yield lambda: found
    finally:
        sys.setprofile(None)
