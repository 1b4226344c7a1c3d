"""The syntax tree. The checker fills in ``type`` and ``overloads``; everything else is set by the parser."""

from __future__ import annotations

from dra_driver.cel.values import types as _types

__all__ = [
    "Call",
    "Comprehension",
    "Expr",
    "Ident",
    "ListExpr",
    "Literal",
    "MapExpr",
    "Select",
    "StructExpr",
    "children",
]


class Expr:
    """A node of the tree.

    Attributes:
        position: offset in the text, for messages.
        type: set by the checker.
    """

    __slots__ = ("position", "type")

    def __init__(self, position: int) -> None:
        self.position = position
        self.type: _types.Type = _types.ERROR


class Literal(Expr):
    """A constant: bool, int, UInt, float, str, bytes or None."""

    __slots__ = ("value",)

    def __init__(self, position: int, value: object) -> None:
        super().__init__(position)
        self.value = value


class Ident(Expr):
    """A name. The checker turns a dotted chain that is one name into an Ident as well."""

    __slots__ = ("name",)

    def __init__(self, position: int, name: str) -> None:
        super().__init__(position)
        self.name = name


class Select(Expr):
    """``operand.field``; with ``test_only`` it is ``has(operand.field)``."""

    __slots__ = ("as_ident", "field", "operand", "test_only")

    def __init__(self, position: int, operand: Expr, field: str, test_only: bool = False) -> None:
        super().__init__(position)
        self.operand = operand
        self.field = field
        self.test_only = test_only
        self.as_ident: str | None = None


class Call(Expr):
    """A function or operator.

    Attributes:
        overloads: ids of the declarations that the arguments fit.
        target: the receiver of ``target.function(args)``; None once the checker knows that it is a namespace.
    """

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, position: int, function: str, args: list[Expr], target: Expr | None = None) -> None:
        super().__init__(position)
        self.function = function
        self.args = args
        self.target = target
        self.overloads: tuple[str, ...] = ()


class ListExpr(Expr):
    """``[a, ?b]``; ``optional`` holds the indices of the elements with a question mark."""

    __slots__ = ("elements", "optional")

    def __init__(self, position: int, elements: list[Expr], optional: frozenset[int] = frozenset()) -> None:
        super().__init__(position)
        self.elements = elements
        self.optional = optional


class MapExpr(Expr):
    """``{k: v, ?k: v}``."""

    __slots__ = ("entries", "optional")

    def __init__(
        self, position: int, entries: list[tuple[Expr, Expr]], optional: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(position)
        self.entries = entries
        self.optional = optional


class StructExpr(Expr):
    """``name{field: value}``."""

    __slots__ = ("fields", "name")

    def __init__(self, position: int, name: str, fields: list[tuple[str, Expr]]) -> None:
        super().__init__(position)
        self.name = name
        self.fields = fields


class Comprehension(Expr):
    """A fold: what ``all``, ``map`` and the like (and ``cel.bind``) expand to.

    ``accu_init`` is the initial accumulator; for each element, while ``condition`` holds, ``step`` computes
    the next one; ``result`` is computed from the last.
    """

    __slots__ = (
        "accu_init",
        "accu_var",
        "condition",
        "is_bind",
        "iter_range",
        "iter_var",
        "iter_var2",
        "result",
        "step",
    )

    def __init__(
        self,
        position: int,
        *,
        iter_range: Expr,
        iter_var: str,
        accu_init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
        accu_var: str,
        iter_var2: str = "",
        is_bind: bool = False,
    ) -> None:
        super().__init__(position)
        self.iter_range = iter_range
        self.iter_var = iter_var
        self.iter_var2 = iter_var2
        self.accu_var = accu_var
        self.accu_init = accu_init
        self.condition = condition
        self.step = step
        self.result = result
        self.is_bind = is_bind


def children(e: Expr) -> list[Expr]:
    """Return the nodes below a node."""
    match e:
        case Select():
            return [] if e.as_ident else [e.operand]
        case Call():
            return e.args if e.target is None else [e.target, *e.args]
        case ListExpr():
            return e.elements
        case MapExpr():
            return [x for entry in e.entries for x in entry]
        case StructExpr():
            return [value for _, value in e.fields]
        case Comprehension():
            return [e.iter_range, e.accu_init, e.condition, e.step, e.result]
        case _:
            return []
