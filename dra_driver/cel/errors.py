"""Errors of selectors: at compile time and at run time."""

from __future__ import annotations

from dra_driver.errors import DraError, InvalidInput

__all__ = ["CelCompileError", "CelPanic", "CelRuntimeError", "no_such_key", "no_such_overload"]

# Characters of a key that a message shows: expressions can make texts of any size.
_KEY = 128
# Characters of a message about a selector: types and names in it can be as long as the selector, or longer.
_MESSAGE = 400


class CelCompileError(InvalidInput):
    """An expression that is not a selector: syntax, types, or not a bool. The message says where.

    Attributes:
        position: offset in the expression; -1 if the error is not at one position.
    """

    def __init__(self, message: str, position: int = -1, expression: str = "") -> None:
        self.position = position
        message = message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]}…"
        if position >= 0:
            line = expression.count("\n", 0, position) + 1
            column = position - (expression.rfind("\n", 0, position) + 1) + 1
            message = f"{line}:{column}: {message}"
        super().__init__(message)


class CelRuntimeError(DraError):
    """A failed evaluation: an absent attribute, an overflow.

    ``&&`` and ``||`` absorb it if the other operand decides, as the CEL language definition says.
    """


class CelPanic(CelRuntimeError):
    """A runtime error that no operator absorbs: a limit of the evaluation, or a panic of cel-go."""


def no_such_key(key: object) -> CelRuntimeError:
    """Return the error of a lookup without a result."""
    # A list that contains another twice, and so on, would have an exponentially long text.
    text = str(key) if isinstance(key, str | int | float) else type(key).__name__
    return CelRuntimeError(f"no such key: {text[:_KEY]}")


def no_such_overload() -> CelRuntimeError:
    """Return the error of a function called with a value of a type that it does not accept."""
    return CelRuntimeError("no such overload")
