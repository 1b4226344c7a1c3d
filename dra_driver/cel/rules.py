"""Validation rules of custom resources (``x-kubernetes-validations``) in the same environment.

``self`` and ``oldSelf`` have the types that the structural schema gives them. Costs are not estimated; an
evaluation has the same limits as one of a selector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dra_driver.cel.checking import checker as _checker
from dra_driver.cel.checking import declarations as _declarations
from dra_driver.cel.cost.tracking import TrackingCompiler
from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.evaluation.closures import Closure, Frame
from dra_driver.cel.library import validators as _validators
from dra_driver.cel.syntax import parser as _parser
from dra_driver.cel.values import time as _time
from dra_driver.cel.values import types as _types
from dra_driver.cel.values.types import Type
from dra_driver.cel.values.values import NONE, Optional, Value

__all__ = ["ValidationRule", "compile_closure", "compile_rule", "evaluate"]

Schema = Mapping[str, Any]

_SIMPLE = {"string": _types.STRING, "integer": _types.INT, "number": _types.DOUBLE, "boolean": _types.BOOL}
_FORMATS = {"date-time": _types.TIMESTAMP, "date": _types.TIMESTAMP, "duration": _types.DURATION}
_RESERVED = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
    "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED = re.compile(r"__|[.\-/]")
_ROOT = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
_METADATA = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}


def _escape(name: str) -> str:
    if name in _RESERVED:
        return f"__{name}__"
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], name)


class _Device(NamedTuple):
    """An empty device: a frame has one, rules see none."""

    driver: str = ""
    attributes: Mapping[str, Any] = {}
    capacity: Mapping[str, Any] = {}
    allow_multiple_allocations: bool = False


class ValidationRule:
    """A compiled rule. Immutable.

    Attributes:
        expression: the text.
        about_changes: whether it uses ``oldSelf`` (a transition rule).
    """

    __slots__ = ("_closure", "_optional", "_schema", "_slots", "about_changes", "expression")

    def __init__(
        self, expression: str, closure: Closure, slots: int, schema: Schema, *, optional: bool
    ) -> None:
        self.expression = expression
        self.about_changes = re.search(r"\boldSelf\b", expression) is not None
        self._closure = closure
        self._slots = slots
        self._schema = schema
        self._optional = optional

    def holds(self, value: object, old: object = None) -> bool:
        """Return whether the value obeys the rule.

        Args:
            value: plain data that fits the schema.
            old: the value before; None if there was none.

        Raises:
            CelRuntimeError: the evaluation failed.
        """
        before: Value = _value(self._schema, old) if old is not None else None
        if self._optional:
            before = NONE if old is None else Optional(True, before)
        return evaluate(self._closure, self._slots, (_value(self._schema, value), before)) is True


def compile_rule(
    expression: str, schema: Schema, *, root: bool = False, optional_old: bool = False
) -> ValidationRule:
    """Compile a rule of one level of a structural schema.

    Args:
        expression: ``rule``.
        schema: of the value that ``self`` is.
        root: whether that is the whole object, with ``apiVersion``, ``kind`` and ``metadata``.
        optional_old: ``optionalOldSelf``: ``oldSelf`` is an optional.

    Raises:
        CelCompileError: it is not a rule; says why and where.
    """
    if root:
        properties = {**(schema.get("properties") or {}), **_ROOT, "metadata": _METADATA}
        schema = {**schema, "type": "object", "properties": properties}
    fields: dict[str, dict[str, Type]] = {}
    type_of_self = _type(schema, fields)
    old = _types.optional_of(type_of_self) if optional_old else type_of_self
    closure, slots, type_ = compile_closure(expression, {"self": type_of_self, "oldSelf": old}, fields)
    if type_ != _types.BOOL:
        raise CelCompileError(f"must evaluate to a bool, not {type_}")
    return ValidationRule(expression, closure, slots, schema, optional=optional_old)


def compile_closure(
    expression: str, variables: Mapping[str, Type], fields: Mapping[str, Mapping[str, Type]]
) -> tuple[Closure, int, Type]:
    """Compile an expression; return its closure, the number of slots of its frame, and its type.

    Args:
        expression: the text.
        variables: types by name; their values are the first slots, in this order.
        fields: fields of struct types, by the name of the type.

    Raises:
        CelCompileError: it cannot be compiled; says why and where.
    """
    tree = _parser.parse(expression)
    functions = _declarations.functions(True)
    _checker.check(tree, expression, functions, variables, fields)
    _validators.validate(tree, expression)
    compiler = TrackingCompiler(expression, functions)
    compiler.scope, compiler.slots = {name: i for i, name in enumerate(variables)}, len(variables)
    try:
        closure = compiler.branch(tree)
    except RecursionError as e:
        raise CelCompileError("the expression is nested too deeply") from e
    return closure, compiler.slots, tree.type


def evaluate(closure: Closure, slots: int, values: Sequence[Value]) -> Value:
    """Evaluate a compiled expression.

    Args:
        closure: as ``compile_closure`` returns it.
        slots: likewise.
        values: of the variables, in their order.

    Raises:
        CelRuntimeError: the evaluation failed.
    """
    frame = Frame(_Device(), slots)
    frame.locals[: len(values)] = values
    try:
        return closure(frame)
    except RecursionError as e:
        raise CelRuntimeError("the expression is nested too deeply") from e
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise CelRuntimeError(f"internal error: {type(e).__name__}: {str(e)[:200]}") from e


def _type(schema: Schema, fields: dict[str, dict[str, Type]]) -> Type:
    """Return the type of a schema's values, and add the types of its structs to ``fields``."""
    if schema.get("x-kubernetes-int-or-string"):
        return _types.DYN
    kind = schema.get("type")
    if kind == "array":
        return _types.list_of(_type(schema.get("items") or {}, fields))
    if kind == "object":
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            return _types.map_of(_types.STRING, _type(additional, fields))
        properties = schema.get("properties")
        if not properties:
            return _types.DYN
        name = f"object{len(fields)}"
        fields[name] = {}
        fields[name].update({_escape(k): _type(v, fields) for k, v in properties.items()})
        return Type("struct", name)
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), _types.STRING)
    return _SIMPLE.get(kind or "", _types.DYN)


def _value(schema: Schema, raw: object) -> Value:
    """Return plain data as a value of the type that its schema has."""
    if isinstance(raw, dict):
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            return {k: _value(additional, v) for k, v in raw.items()}
        properties = schema.get("properties") or {}
        if not properties:
            return raw
        return {_escape(k): _value(properties.get(k) or {}, v) for k, v in raw.items()}
    if isinstance(raw, list):
        items = schema.get("items") or {}
        return [_value(items, v) for v in raw]
    match schema.get("type"):
        case "number" if isinstance(raw, int):
            return float(raw)
        case "integer" if isinstance(raw, float):
            return int(raw)
        case "string" if isinstance(raw, str) and schema.get("format") in _FORMATS:
            if schema["format"] == "duration":
                return _time.parse_duration(raw)
            return _time.parse_timestamp(raw if "T" in raw else f"{raw}T00:00:00Z")
        case _:
            return raw
