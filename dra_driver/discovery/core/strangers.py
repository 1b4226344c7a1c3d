"""Calls to code of third parties: whatever it raises is an error of ours, with a text that can be told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from dra_driver.errors import DraError, PrepareError

__all__ = ["guarded", "told"]

_T = TypeVar("_T")
_CHARACTERS: Final = 400
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")

log = structlog.get_logger(__name__)


def guarded(about: str, work: Callable[..., _T], *args: object) -> _T:
    """Call a stranger's code.

    Args:
        about: what the text of an error begins with: the device, or the backend.
        work: what is called.
        args: its arguments.

    Raises:
        PrepareError: whatever it has raised.
    """
    try:
        return work(*args)
    except PrepareError as e:
        # A class of a stranger's own need not have called the constructor of ours.
        may_pass = getattr(e, "retryable", False) is True
        raise PrepareError(f"{about}: {told(e)}", retryable=may_pass) from e
    except DraError as e:
        raise PrepareError(f"{about}: {told(e)}") from e
    except BaseException as e:  # also SystemExit: nothing that a backend raises ends the agent
        log.exception("a backend has failed", about=about)
        raise PrepareError(f"{about}: {type(e).__name__}: {told(e)}") from e


def told(error: BaseException) -> str:
    """Return the text of an exception for the Event of a pod: one line, of bounded length, in any case."""
    try:
        text = _CONTROL.sub(" ", str(error))
    except BaseException as e:  # its text is a stranger's code as well
        text = f"its text cannot be told ({type(e).__name__})"
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…"
