"""Checks of literals beyond their types, as the environment makes them at compile time."""

from __future__ import annotations

from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.library import format as _format
from dra_driver.cel.syntax.ast import Call, Expr, ListExpr, Literal, MapExpr, children
from dra_driver.cel.values import regex as _regex
from dra_driver.cel.values import time as _time
from dra_driver.cel.values.types import Type

__all__ = ["MAX_PATTERNS", "MAX_PATTERN_SIZE", "validate"]

# A pattern that a selector keeps takes up to 100 kB, a long one 1 MB (``values.regex``).
MAX_PATTERNS = 64
MAX_PATTERN_SIZE = 16_384

_ACCEPTED = {
    "s": frozenset(
        "string bool bytes int uint double map list type duration timestamp null_type dyn error".split()  # noqa: SIM905
    ),
    "d": frozenset({"int", "uint", "dyn", "error"}),
    "f": frozenset({"double", "string", "dyn", "error"}),
    "e": frozenset({"double", "string", "dyn", "error"}),
    "b": frozenset({"int", "uint", "bool", "dyn", "error"}),
    "x": frozenset({"int", "uint", "string", "bytes", "dyn", "error"}),
    "X": frozenset({"int", "uint", "string", "bytes", "dyn", "error"}),
    "o": frozenset({"int", "uint", "dyn", "error"}),
}


def validate(root: Expr, expression: str) -> None:
    """Check durations, timestamps, patterns and format strings, and that lists and maps are uniform.

    Raises:
        CelCompileError: the first error.
    """
    todo = [(root, False)]
    patterns: dict[str, int] = {}
    while todo:
        e, exempt = todo.pop()
        try:
            if isinstance(e, Call):
                _check_call(e, patterns)
                exempt = exempt or e.function == "format"
            elif not exempt and isinstance(e, ListExpr):
                _check_uniform(e.elements, e.optional)
            elif not exempt and isinstance(e, MapExpr):
                _check_uniform([k for k, _ in e.entries], frozenset())
                _check_uniform([v for _, v in e.entries], e.optional)
        except CelCompileError as error:
            raise CelCompileError(str(error), error.position, expression) from None
        todo += [(c, exempt) for c in reversed(children(e))]


def _check_uniform(items: list[Expr], optional: frozenset[int]) -> None:
    first: Type | None = None
    for i, item in enumerate(items):
        t = item.type.params[0] if i in optional and item.type.name == "optional_type" else item.type
        if first is None:
            first = t
        elif t != first:
            raise CelCompileError(f"expected type '{first}' but found '{t}'", item.position)


def _check_call(e: Call, patterns: dict[str, int]) -> None:
    if e.function in ("duration", "timestamp") and len(e.args) == 1:
        parse = _time.parse_duration if e.function == "duration" else _time.parse_timestamp
        arg = e.args[0]
        if isinstance(arg, Literal) and isinstance(arg.value, str):
            _attempt(parse, arg, f"invalid {e.function} argument")
    elif e.function == "matches":
        arg = e.args[-1]
        if isinstance(arg, Literal) and isinstance(arg.value, str):
            _attempt(lambda text: _check_pattern(text, patterns), arg, "invalid matches argument")
    elif e.function == "format" and e.target is not None:
        _check_format(e, e.target)


def _check_pattern(text: str, patterns: dict[str, int]) -> None:
    """Refuse what RE2 does not accept, and more than a selector may keep; ``patterns``: the sizes so far."""
    if text in patterns:
        return
    if len(patterns) == MAX_PATTERNS:
        raise CelRuntimeError(f"a selector may have {MAX_PATTERNS} regular expressions, this one has more")
    patterns[text] = _regex.compile_pattern(text).size
    size = sum(patterns.values())
    if size > MAX_PATTERN_SIZE:
        raise CelRuntimeError(
            f"the regular expressions up to this one come to {size} instructions, "
            f"a selector may have {MAX_PATTERN_SIZE}"
        )


def _attempt(parse: object, arg: Literal, message: str) -> None:
    assert callable(parse)
    try:
        parse(arg.value)
    except CelRuntimeError as error:
        raise CelCompileError(f"{message}: {error}", arg.position) from None


def _parts(e: Expr) -> list[Expr]:
    """Iterate over a node and the nodes below it, as far as they are literals of lists and maps."""
    found, todo = [], [e]
    while todo:
        part = todo.pop()
        found.append(part)
        if isinstance(part, ListExpr | MapExpr):
            todo += children(part)
    return found


def _check_format(e: Call, target: Expr) -> None:
    args = e.args[0]
    if not (isinstance(target, Literal) and isinstance(target.value, str) and isinstance(args, ListExpr)):
        return
    try:
        letters = [c.letter for c in _format.clauses(target.value) if c.letter]
    except CelRuntimeError as error:
        raise CelCompileError(str(error), target.position) from None
    for i, letter in enumerate(letters):
        if i >= len(args.elements):
            raise CelCompileError(f"index {i} out of range", e.position)
        item = args.elements[i]
        for part in _parts(item) if letter == "s" else [item]:
            if part.type.kind not in _ACCEPTED[letter]:
                raise CelCompileError(
                    f"error during formatting: %{letter} cannot be used on {part.type}", part.position
                )
    if len(letters) < len(args.elements):
        raise CelCompileError(
            f"too many arguments supplied to string.format: {len(args.elements)} for {len(letters)} clauses",
            e.position,
        )
