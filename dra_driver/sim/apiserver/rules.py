"""``x-kubernetes-validations``: CEL rules in the schemas of custom resources.

Evaluated by the CEL library without types: Kubernetes' own functions (``quantity`` …) are not there, and a
rule that cannot be compiled is skipped. The real server is stricter; the CRDs that we ship keep to what works
in both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dra_driver.sim.apiserver.status import Causes, Raw

__all__ = ["check_rules"]


@lru_cache(maxsize=256)
def _compiled(rule: str) -> Any:
    from cel_expr_python import cel

    env = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
    try:
        return env.compile(rule)
    except Exception:
        return None


def check_rules(schema: Raw, value: Any, old: Any, path: str, causes: Causes) -> None:
    """Checks the rules of this level and below; rules about ``oldSelf`` only where there is an old value."""
    for rule in schema.get("x-kubernetes-validations") or ():
        transition = "oldSelf" in rule["rule"]
        if transition and old is None and not rule.get("optionalOldSelf"):
            continue
        if not _holds(rule["rule"], value, old):
            _complain(rule, value, path, causes)
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
        for i, item in enumerate(value):
            # Items of lists without keys have no old value.
            check_rules(schema.get("items") or {}, item, None, f"{path}[{i}]", causes)


def _holds(rule: str, value: Any, old: Any) -> bool:
    compiled = _compiled(rule)
    if compiled is None:
        return True
    try:
        return compiled.eval(data={"self": value, "oldSelf": old}).value() is True
    except Exception:
        return False


def _complain(rule: Raw, value: Any, path: str, causes: Causes) -> None:
    where = path + (rule.get("fieldPath") or "")
    text = rule.get("message") or f"failed rule: {rule['rule']}"
    match rule.get("reason"):
        case "FieldValueForbidden":
            causes.forbidden(where, text)
        case "FieldValueRequired":
            causes.required(where, text)
        case "FieldValueDuplicate":
            causes.duplicate(where, text)
        case _:
            causes.invalid(where, value if not isinstance(value, dict | list) else "object", text)
