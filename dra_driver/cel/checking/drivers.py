"""The drivers whose devices a selector can match at all."""

from __future__ import annotations

from dra_driver.cel.syntax.ast import Call, Expr, Ident, ListExpr, Literal, Select

__all__ = ["find_drivers"]


def find_drivers(e: Expr) -> frozenset[str] | None:
    """Return the only drivers for whose devices the expression can be true; None where it names none.

    What is plain counts: comparisons of ``device.driver`` with constants, joined by ``&&`` and ``||``. All
    else may be true for any driver. So a driver that is not in the answer has no device that is selected.
    """
    if isinstance(e, Literal):
        return frozenset() if e.value is False else None
    if not isinstance(e, Call):
        return None
    match e.function:
        case "_&&_":
            known = [found for a in e.args if (found := find_drivers(a)) is not None]
            return frozenset.intersection(*known) if known else None
        case "_||_":
            either: frozenset[str] = frozenset()
            for a in e.args:
                found = find_drivers(a)
                if found is None:
                    return None
                either |= found
            return either
        case "_==_":
            left, right = e.args
            constant = right if _is_driver(left) else left if _is_driver(right) else None
            return _constants([constant]) if constant is not None else None
        case "@in":
            element, container = e.args
            if _is_driver(element) and isinstance(container, ListExpr) and not container.optional:
                return _constants(container.elements)
        case _:
            pass
    return None


def _is_driver(e: Expr) -> bool:
    """Return whether the node is ``device.driver``; macros, which can rebind the name, are not inspected."""
    if not isinstance(e, Select) or e.test_only or e.field != "driver":
        return False
    return isinstance(e.operand, Ident) and e.operand.name == "device"


def _constants(items: list[Expr]) -> frozenset[str] | None:
    names = [i.value for i in items if isinstance(i, Literal) and isinstance(i.value, str)]
    return frozenset(names) if len(names) == len(items) else None
