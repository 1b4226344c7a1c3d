"""Calls to code of third parties: whatever it raises is an error of ours, with a text that can be reported.

What it returns is checked: a constructor takes any values, and a record with one of another type could be
written and never be read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from dra_driver.api import codec
from dra_driver.cdi import ContainerEdits
from dra_driver.errors import DraError, PrepareError
from dra_driver.hardware import DiscoveredDevice, GpuInstance

__all__ = ["error_text", "guarded", "rebuilt"]

_T = TypeVar("_T")
_CHARACTERS: Final = 400
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")

# What third parties return. It is checked in their threads.
codec.build(ContainerEdits, DiscoveredDevice, GpuInstance)

log = structlog.get_logger(__name__)


def guarded(about: str, work: Callable[..., _T], *args: object) -> _T:
    """Call a third party's code.

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
        # A third party's own class need not have called the constructor of ours.
        may_pass = getattr(e, "retryable", False) is True
        raise PrepareError(f"{about}: {error_text(e)}", retryable=may_pass) from e
    except DraError as e:
        raise PrepareError(f"{about}: {error_text(e)}") from e
    except BaseException as e:  # also SystemExit: nothing that a backend raises ends the agent
        log.exception("a backend has failed", about=about)
        raise PrepareError(f"{about}: {type(e).__name__}: {error_text(e)}") from e


def rebuilt(kind: type[_T], value: object) -> _T:
    """Return a value that a third party has made, with every part of it of the type that it has to have.

    Raises:
        PrepareError: it is another kind of value, or a part of it is.
    """
    if not isinstance(value, kind):
        raise PrepareError(f"expected {kind.__name__}, got {type(value).__name__}")
    try:
        return codec.decode(kind, codec.encode(value))
    except (DraError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise PrepareError(f"it cannot be written down and read again: {error_text(e)}") from e


def error_text(error: BaseException) -> str:
    """Return the text of an exception for the Event of a pod: one line, of bounded length, in any case."""
    try:
        text = _CONTROL.sub(" ", str(error))
    except BaseException as e:  # its text is made by code of the third party as well
        text = f"its text cannot be made ({type(e).__name__})"
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…"
