"""What can go wrong with a selector."""

from __future__ import annotations

from dra_driver.errors import DraError, InvalidInput

__all__ = ["CelCompileError", "CelPanic", "CelRuntimeError", "no_such_key", "no_such_overload"]

# Characters of a key in a message: expressions make texts of any size.
_KEY = 128


class CelCompileError(InvalidInput):
    """The expression is no selector: syntax, types, or not a bool. The text says where.

    Attributes:
        position: offset in the expression, -1 where the whole is meant.
    """

    def __init__(self, message: str, position: int = -1, expression: str = "") -> None:
        self.position = position
        if position >= 0:
            line = expression.count("\n", 0, position) + 1
            column = position - (expression.rfind("\n", 0, position) + 1) + 1
            message = f"{line}:{column}: {message}"
        super().__init__(message)


class CelRuntimeError(DraError):
    """The expression has no value for this device: an absent attribute, an overflow.

    ``&&`` and ``||`` absorb it where the other side decides, as CEL says.
    """


class CelPanic(CelRuntimeError):
    """A runtime error that nothing absorbs: the limits of an evaluation, and where the original panics."""


def no_such_key(key: object) -> CelRuntimeError:
    """The error of a lookup that finds nothing."""
    # Anything else may be a list that holds another twice, and so on: its text would be endless.
    text = str(key) if isinstance(key, str | int | float) else type(key).__name__
    return CelRuntimeError(f"no such key: {text[:_KEY]}")


def no_such_overload() -> CelRuntimeError:
    """The error of a function that gets a value of a type that it does not take."""
    return CelRuntimeError("no such overload")
