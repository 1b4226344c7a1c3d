"""``x-kubernetes-validations``: CEL rules in the schemas of custom resources, by our own CEL."""

from __future__ import annotations

from typing import Any

from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.rules import ValidationRule, compile_rule
from dra_driver.sim.apiserver.objects.status import Causes, Raw

__all__ = ["check_definitions", "check_rules"]

_MOST_COMPILED = 1024
# Keyed by the identity of the schema; the schema is kept, so that no other object gets its identity.
_compiled: dict[tuple[int, int], tuple[Raw, list[ValidationRule]]] = {}


def _rules(schema: Raw, *, root: bool) -> list[ValidationRule]:
    given = schema.get("x-kubernetes-validations") or ()
    key = (id(schema), len(given))
    known = _compiled.get(key)
    if known is None:
        rules = [
            compile_rule(r["rule"], schema, root=root, optional_old=bool(r.get("optionalOldSelf")))
            for r in given
        ]
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        known = _compiled[key] = (schema, rules)
    return known[1]


def check_definitions(schema: Raw, path: str, causes: Causes, *, root: bool = True) -> None:
    """Refuse rules that cannot be compiled, at this level of a schema and below."""
    for i, given in enumerate(schema.get("x-kubernetes-validations") or ()):
        where = f"{path}.x-kubernetes-validations[{i}].rule"
        rule = given.get("rule") or ""
        if not rule.strip():
            causes.required(where, "rule is not specified")
            continue
        try:
            compile_rule(rule, schema, root=root, optional_old=bool(given.get("optionalOldSelf")))
        except CelCompileError as e:
            causes.invalid(where, rule, f"compilation failed: {e}")
    for name, inner in (schema.get("properties") or {}).items():
        check_definitions(inner, f"{path}.properties[{name}]", causes, root=False)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            check_definitions(schema[name], f"{path}.{name}", causes, root=False)


def check_rules(schema: Raw, value: Any, old: Any, path: str, causes: Causes, *, root: bool = False) -> None:
    """Check the rules of this level and below; rules about ``oldSelf`` only if there is an old value."""
    given = schema.get("x-kubernetes-validations")
    for raw, rule in zip(given, _rules(schema, root=root), strict=True) if given else ():
        if rule.about_changes and old is None and not raw.get("optionalOldSelf"):
            continue
        try:
            if not rule.holds(value, old):
                _complain(raw, value, path, "", causes)
        except CelRuntimeError as e:
            _complain(raw, value, path, f"rule evaluation error: {e}", causes)
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        properties: Raw = schema.get("properties") or {}
        additional = schema.get("additionalProperties")
        for name, item in value.items():
            inner = properties.get(name) or additional
            if isinstance(inner, dict):
                before = old.get(name) if isinstance(old, dict) else None
                check_rules(inner, item, before, prefix + name, causes)
    elif isinstance(value, list):
        _check_items(schema, value, old, path, causes)


def _check_items(schema: Raw, value: list[Any], old: Any, path: str, causes: Causes) -> None:
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    before = {}
    if keys and schema.get("x-kubernetes-list-type") == "map" and isinstance(old, list):
        before = {_key(item, keys): item for item in old if isinstance(item, dict)}
    for i, item in enumerate(value):
        # Items of lists without keys have no old value.
        was = before.get(_key(item, keys)) if before and isinstance(item, dict) else None
        check_rules(schema.get("items") or {}, item, was, f"{path}[{i}]", causes)


def _key(item: Raw, keys: Any) -> str:
    return repr([item.get(k) for k in keys])


def _complain(rule: Raw, value: Any, path: str, error: str, causes: Causes) -> None:
    where = path + (rule.get("fieldPath") or "")
    text = error or rule.get("message") or f"failed rule: {rule['rule']}"
    match rule.get("reason") if not error else None:
        case "FieldValueForbidden":
            causes.forbidden(where, text)
        case "FieldValueRequired":
            causes.required(where, text)
        case "FieldValueDuplicate":
            causes.duplicate(where, text)
        case _:
            causes.invalid(where, value if not isinstance(value, dict | list) else "object", text)
