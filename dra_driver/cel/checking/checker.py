"""The type checker: resolves names and overloads, and refuses types that do not fit.

Source: the CEL language definition, chapter "Gradual type checking", and results recorded of ``cel-go``.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.cel.checking.declarations import Overload
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
    StructExpr,
    children,
)
from dra_driver.cel.values import types as _types
from dra_driver.cel.values.types import (
    BOOL,
    DYN,
    INT,
    NULL,
    STRING,
    Type,
    list_of,
    map_of,
    optional_of,
)
from dra_driver.cel.values.values import UInt

__all__ = ["WRAPPERS", "check"]

_CONSTANT_TYPES: dict[type, Type] = {
    bool: BOOL,
    int: INT,
    UInt: _types.UINT,
    float: _types.DOUBLE,
    str: STRING,
    bytes: _types.BYTES,
    type(None): NULL,
}
_PARAM_A, _PARAM_B = Type("param", "A"), Type("param", "B")
_TYPE_NAMES = {
    **{t.name: t for t in (BOOL, INT, _types.UINT, _types.DOUBLE, STRING, _types.BYTES, NULL)},
    **{t.name: t for t in (_types.DURATION, _types.TIMESTAMP, _types.TYPE)},
    "list": list_of(_PARAM_A),
    "map": map_of(_PARAM_A, _PARAM_B),
}
WRAPPERS = {
    f"google.protobuf.{name}Value": t
    for name, t in {
        "Bool": BOOL,
        "Bytes": _types.BYTES,
        "Double": _types.DOUBLE,
        "Float": _types.DOUBLE,
        "Int32": INT,
        "Int64": INT,
        "String": STRING,
        "UInt32": _types.UINT,
        "UInt64": _types.UINT,
    }.items()
}


def check(
    root: Expr,
    expression: str,
    functions: Mapping[str, tuple[Overload, ...]],
    variables: Mapping[str, Type],
    fields: Mapping[str, Mapping[str, Type]],
) -> None:
    """Set ``type`` and ``overloads`` of every node.

    Args:
        root: the tree; namespaces (``optional.of``) are folded into the names of calls.
        expression: its text, for messages.
        functions: declarations by name.
        variables: types by name.
        fields: fields of struct types, by the name of the type.

    Raises:
        CelCompileError: an unknown name, or types that do not fit.
    """
    checker = _Checker(expression, functions, variables, fields)
    try:
        checker.check(root)
        checker.finish(root)
    except RecursionError as e:
        raise CelCompileError("the expression is nested too deeply") from e


class _Checker:
    def __init__(
        self,
        expression: str,
        functions: Mapping[str, tuple[Overload, ...]],
        variables: Mapping[str, Type],
        fields: Mapping[str, Mapping[str, Type]],
    ) -> None:
        self.text = expression
        self.functions = functions
        self.fields = fields
        self.scopes: list[Mapping[str, Type]] = [variables]
        self.types = _types.Substitution()

    def error(self, message: str, expr: Expr) -> CelCompileError:
        return CelCompileError(message, expr.position, self.text)

    def lookup(self, name: str) -> Type | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        known = _TYPE_NAMES.get(name)
        if known is None and name in WRAPPERS:
            known = _wrapper(name)
        return None if known is None else _types.type_of(known)

    def check(self, e: Expr) -> Type:
        match e:
            case Literal():
                e.type = _CONSTANT_TYPES[type(e.value)]
            case Ident():
                found = self.lookup(e.name)
                if found is None:
                    raise self.error(f"undeclared reference to {e.name!r}", e)
                e.type = found
            case Select():
                e.type = self.select(e)
            case Call():
                e.type = self.call(e)
            case ListExpr():
                e.type = self.list_literal(e)
            case MapExpr():
                e.type = self.map_literal(e)
            case StructExpr():
                e.type = self.struct_literal(e)
            case Comprehension():
                e.type = self.comprehension(e)
            case _:
                raise AssertionError(e)
        return e.type

    def select(self, e: Select) -> Type:
        name = _qualified(e)
        if name and not e.test_only:
            found = self.lookup(name)
            if found is not None:
                e.as_ident = name
                return found
        result = self.field(e, e.operand, e.field, optional=False)
        return BOOL if e.test_only else self.types.resolve(result)

    def field(self, e: Expr, operand: Expr, field: str, optional: bool) -> Type:
        operand_type = self.types.resolve(self.check(operand))
        target, is_optional = _unwrap_optional(operand_type)
        if target.kind == "map":
            result = target.params[1]
        elif target.kind == "struct":
            known = self.fields.get(target.name, {}).get(field)
            if known is None:
                raise self.error(f"undefined field {field!r} of {target}", e)
            result = known
        elif target.kind == "param":
            self.types.assignable(target, DYN)
            result = DYN
        elif target.kind in ("dyn", "any", "error"):
            result = DYN
        else:
            raise self.error(f"type {str(target)!r} does not support field selection", e)
        return optional_of(result) if is_optional or optional else result

    def call(self, e: Call) -> Type:
        if e.function == "_?._":
            field = e.args[1]
            assert isinstance(field, Literal)
            e.overloads = ("select_optional_field",)
            return self.types.resolve(self.field(e, e.args[0], str(field.value), optional=True))
        arg_types = [self.check(a) for a in e.args]
        if e.target is None:
            overloads = self.functions.get(e.function)
            if overloads is None:
                raise self.error(f"undeclared reference to {e.function!r}", e)
            return self.resolve(e, overloads, False, arg_types)
        namespace = _qualified(e.target)
        overloads = self.functions.get(f"{namespace}.{e.function}") if namespace else None
        if overloads is not None and self.shadowing(namespace) is None:
            e.function, e.target = f"{namespace}.{e.function}", None
            return self.resolve(e, overloads, False, arg_types)
        target = self.check(e.target)
        overloads = self.functions.get(e.function)
        if overloads is None:
            raise self.error(f"undeclared reference to {e.function!r}", e)
        return self.resolve(e, overloads, True, [target, *arg_types])

    def shadowing(self, namespace: str) -> Type | None:
        """Return the local variable that hides a namespace: ``cel.bind(sets, [1], sets.contains(…))``."""
        root = namespace.partition(".")[0]
        return next((s[root] for s in reversed(self.scopes[1:]) if root in s), None)

    def resolve(self, e: Call, overloads: tuple[Overload, ...], member: bool, arg_types: list[Type]) -> Type:
        if e.function in ("_&&_", "_||_"):
            return self.logical(e, arg_types)
        args = tuple(self.types.resolve(t) for t in arg_types)
        matched: list[str] = []
        result: Type | None = None
        for overload in overloads:
            if overload.is_member != member or len(overload.args) != len(args):
                continue
            *params, declared = self.types.instantiate((*overload.args, overload.result))
            if not self.types.all_assignable(args, tuple(params)):
                continue
            matched.append(overload.id)
            resolved = self.types.resolve(declared)
            if result is None:
                result = resolved
            elif result.kind != "dyn" and resolved != result:
                result = DYN
        if result is None:
            shown = ", ".join(str(self.types.resolve(t, finish=True)) for t in args)
            raise self.error(f"found no matching overload for {e.function!r} applied to ({shown})", e)
        e.overloads = tuple(matched)
        return result

    def logical(self, e: Call, arg_types: list[Type]) -> Type:
        for t in arg_types:
            if not self.types.assignable(self.types.resolve(t), BOOL):
                shown = ", ".join(str(self.types.resolve(a, finish=True)) for a in arg_types)
                raise self.error(f"found no matching overload for {e.function!r} applied to ({shown})", e)
        e.overloads = ("logical_and" if e.function == "_&&_" else "logical_or",)
        return BOOL

    def list_literal(self, e: ListExpr) -> Type:
        element: Type | None = None
        for i, item in enumerate(e.elements):
            t = self.check(item)
            if i in e.optional:
                t = self.optional_item(item, t)
            element = self.join(element, t)
        return list_of(element if element is not None else self.types.fresh())

    def map_literal(self, e: MapExpr) -> Type:
        key_type: Type | None = None
        value_type: Type | None = None
        for i, (key, value) in enumerate(e.entries):
            key_type = self.join(key_type, self.check(key))
            t = self.check(value)
            if i in e.optional:
                t = self.optional_item(value, t)
            value_type = self.join(value_type, t)
        if key_type is None or value_type is None:
            return map_of(self.types.fresh(), self.types.fresh())
        return map_of(key_type, value_type)

    def optional_item(self, item: Expr, t: Type) -> Type:
        unwrapped, is_optional = _unwrap_optional(self.types.resolve(t))
        if not is_optional and unwrapped.kind not in ("dyn", "any"):
            raise self.error(f"expected type 'optional_type({t})' but found {str(t)!r}", item)
        return unwrapped

    def join(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self.types.assignable(previous, current):
            return _types.most_general(self.types.resolve(previous), self.types.resolve(current))
        return DYN

    def struct_literal(self, e: StructExpr) -> Type:
        wrapped = WRAPPERS.get(e.name.removeprefix("."))
        if wrapped is None:
            raise self.error(f"undeclared reference to {e.name!r}", e)
        for field, value in e.fields:
            if field != "value":
                raise self.error(f"undefined field {field!r} of {e.name}", e)
            t = self.check(value)
            if not self.types.assignable(wrapped, t):
                raise self.error(f"expected type {str(wrapped)!r} but found {str(t)!r}", value)
        return _wrapper(e.name.removeprefix("."))

    def comprehension(self, e: Comprehension) -> Type:
        self.check(e.iter_range)
        accu = self.check(e.accu_init)
        range_type = self.types.resolve(e.iter_range.type)
        first = second = DYN
        if range_type.kind == "list":
            first = second = range_type.params[0]
            if e.iter_var2:
                first = INT
        elif range_type.kind == "map":
            first, second = range_type.params
        elif range_type.kind in ("dyn", "error", "param"):
            self.types.assignable(DYN, range_type)
        else:
            raise self.error(
                f"expression of type {str(range_type)!r} cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
                e.iter_range,
            )
        self.scopes.append({e.accu_var: accu})
        names = {e.iter_var: first}
        if e.iter_var2:
            names[e.iter_var2] = second
        self.scopes.append(names)
        self.expect(BOOL, e.condition)
        self.expect(accu, e.step)
        self.scopes.pop()
        result = self.check(e.result)
        self.scopes.pop()
        return self.types.resolve(result)

    def expect(self, wanted: Type, e: Expr) -> None:
        found = self.check(e)
        if not self.types.assignable(wanted, found):
            raise self.error(
                f"expected type {str(self.types.resolve(wanted, finish=True))!r} "
                f"but found {str(self.types.resolve(found, finish=True))!r}",
                e,
            )

    def finish(self, root: Expr) -> None:
        """Replace type parameters that are still unknown by dyn, in all nodes."""
        todo = [root]
        while todo:
            e = todo.pop()
            e.type = self.types.resolve(e.type, finish=True)
            todo += children(e)


def _wrapper(name: str) -> Type:
    return Type("struct", f"wrapper:{name}", (WRAPPERS[name],))


def _unwrap_optional(t: Type) -> tuple[Type, bool]:
    return (t.params[0], True) if t.name == "optional_type" else (t, False)


def _qualified(e: Expr) -> str:
    fields: list[str] = []
    while isinstance(e, Select) and not e.test_only:
        fields.append(e.field)
        e = e.operand
    return ".".join([e.name, *reversed(fields)]) if isinstance(e, Ident) else ""
