"""Macros: calls that the parser replaces by folds and conditions."""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.cel.errors import CelCompileError
from dra_driver.cel.syntax.ast import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
)

__all__ = ["ACCUMULATOR", "expand"]

# Not an identifier of the language, so no expression can use it.
ACCUMULATOR = "@result"
_UNUSED = "#unused"


def expand(position: int, function: str, args: list[Expr], target: Expr | None) -> Expr | None:
    """Return what a macro call expands to, or None for an ordinary call.

    Raises:
        CelCompileError: the call is a macro's, its arguments are not.
    """
    if target is None:
        return _has(position, args) if function == "has" and len(args) == 1 else None
    if function == "bind" and len(args) == 3 and isinstance(target, Ident) and target.name == "cel":
        if not isinstance(args[0], Ident):
            raise CelCompileError("cel.bind() variable names must be simple identifiers", args[0].position)
        return _bind(position, args[0].name, args[1], args[2])
    macro = _MACROS.get((function, len(args)))
    return macro(position, target, args) if macro else None


def _has(position: int, args: list[Expr]) -> Expr:
    select = args[0]
    if not isinstance(select, Select):
        raise CelCompileError("invalid argument to has() macro", select.position)
    return Select(position, select.operand, select.field, test_only=True)


def _bind(position: int, name: str, value: Expr, result: Expr) -> Expr:
    return Comprehension(
        position,
        iter_range=ListExpr(position, []),
        iter_var=_UNUSED,
        accu_var=name,
        accu_init=value,
        condition=Literal(position, False),
        step=Ident(position, name),
        result=result,
        is_bind=True,
    )


def _name(arg: Expr) -> str:
    if not isinstance(arg, Ident):
        raise CelCompileError("argument must be a simple name", arg.position)
    return arg.name


def _names(args: list[Expr], two: bool) -> tuple[str, str]:
    first = _name(args[0])
    if not two:
        return first, ""
    second = _name(args[1])
    if first == second:
        raise CelCompileError(f"duplicate variable name: {first}", args[1].position)
    return first, second


class _Fold:
    """The parts of a fold at one position in the text."""

    def __init__(self, position: int, target: Expr, args: list[Expr], two: bool) -> None:
        self.at = position
        self.target = target
        self.names = _names(args, two)

    @property
    def accu(self) -> Expr:
        return Ident(self.at, ACCUMULATOR)

    def call(self, function: str, *args: Expr) -> Expr:
        return Call(self.at, function, list(args))

    def build(self, init: Expr, condition: Expr, step: Expr, result: Expr | None = None) -> Expr:
        return Comprehension(
            self.at,
            iter_range=self.target,
            iter_var=self.names[0],
            iter_var2=self.names[1],
            accu_var=ACCUMULATOR,
            accu_init=init,
            condition=condition,
            step=step,
            result=result if result is not None else self.accu,
        )


_Macro = Callable[[int, Expr, list[Expr]], Expr]


def _all(position: int, target: Expr, args: list[Expr]) -> Expr:
    fold = _Fold(position, target, args, len(args) == 3)
    return fold.build(
        Literal(position, True),
        fold.call("@not_strictly_false", fold.accu),
        fold.call("_&&_", fold.accu, args[-1]),
    )


def _exists(position: int, target: Expr, args: list[Expr]) -> Expr:
    fold = _Fold(position, target, args, len(args) == 3)
    return fold.build(
        Literal(position, False),
        fold.call("@not_strictly_false", fold.call("!_", fold.accu)),
        fold.call("_||_", fold.accu, args[-1]),
    )


def _exists_one(position: int, target: Expr, args: list[Expr]) -> Expr:
    fold = _Fold(position, target, args, len(args) == 3)
    plus_one = fold.call("_+_", fold.accu, Literal(position, 1))
    return fold.build(
        Literal(position, 0),
        Literal(position, True),
        fold.call("_?_:_", args[-1], plus_one, fold.accu),
        fold.call("_==_", fold.accu, Literal(position, 1)),
    )


def _collect(position: int, target: Expr, args: list[Expr], two: bool) -> Expr:
    """Return the fold of ``map`` or ``transformList``, with or without a filter before the last argument."""
    fold = _Fold(position, target, args, two)
    step = fold.call("_+_", fold.accu, ListExpr(position, [args[-1]]))
    if len(args) == 3 + two:
        step = fold.call("_?_:_", args[-2], step, fold.accu)
    return fold.build(ListExpr(position, []), Literal(position, True), step)


def _filter(position: int, target: Expr, args: list[Expr]) -> Expr:
    fold = _Fold(position, target, args, two=False)
    plus = fold.call("_+_", fold.accu, ListExpr(position, [args[0]]))
    step = fold.call("_?_:_", args[1], plus, fold.accu)
    return fold.build(ListExpr(position, []), Literal(position, True), step)


def _transform_map(position: int, target: Expr, args: list[Expr], entry: bool) -> Expr:
    fold = _Fold(position, target, args, two=True)
    insert = [fold.accu, args[-1]] if entry else [fold.accu, Ident(position, fold.names[0]), args[-1]]
    step = fold.call("cel.@mapInsert", *insert)
    if len(args) == 4:
        step = fold.call("_?_:_", args[2], step, fold.accu)
    return fold.build(MapExpr(position, []), Literal(position, True), step)


def _opt_map(position: int, target: Expr, args: list[Expr], flat: bool) -> Expr:
    bound = _bind(position, _name(args[0]), Call(position, "value", [], target), args[1])
    return Call(
        position,
        "_?_:_",
        [
            Call(position, "hasValue", [], target),
            bound if flat else Call(position, "optional.of", [bound]),
            Call(position, "optional.none", []),
        ],
    )


def _sort_by(position: int, target: Expr, args: list[Expr]) -> Expr:
    if not isinstance(target, Select | Ident | ListExpr | Comprehension | Call):
        raise CelCompileError(
            "sortBy can only be applied to a list, identifier, comprehension, call or select", position
        )
    name = "@__sortBy_input__"
    keys = _collect(position, Ident(position, name), args, two=False)
    return _bind(
        position, name, target, Call(position, "@sortByAssociatedKeys", [keys], Ident(position, name))
    )


_MACROS: dict[tuple[str, int], _Macro] = {
    ("all", 2): _all,
    ("all", 3): _all,
    ("exists", 2): _exists,
    ("exists", 3): _exists,
    ("exists_one", 2): _exists_one,
    ("exists_one", 3): _exists_one,
    ("existsOne", 3): _exists_one,
    ("filter", 2): _filter,
    ("map", 2): lambda p, t, a: _collect(p, t, a, two=False),
    ("map", 3): lambda p, t, a: _collect(p, t, a, two=False),
    ("transformList", 3): lambda p, t, a: _collect(p, t, a, two=True),
    ("transformList", 4): lambda p, t, a: _collect(p, t, a, two=True),
    ("transformMap", 3): lambda p, t, a: _transform_map(p, t, a, entry=False),
    ("transformMap", 4): lambda p, t, a: _transform_map(p, t, a, entry=False),
    ("transformMapEntry", 3): lambda p, t, a: _transform_map(p, t, a, entry=True),
    ("transformMapEntry", 4): lambda p, t, a: _transform_map(p, t, a, entry=True),
    ("optMap", 2): lambda p, t, a: _opt_map(p, t, a, flat=False),
    ("optFlatMap", 2): lambda p, t, a: _opt_map(p, t, a, flat=True),
    ("sortBy", 2): _sort_by,
}
