"""CEL selectors: checked by our own CEL implementation."""

from __future__ import annotations

from dra_driver.cel import CelCompileError, Environment, compile_selector
from dra_driver.sim.apiserver.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices

__all__ = ["check_selectors"]

_LENGTH = 10 * 1024
_NEW = Environment(new=True)


def check_selectors(selectors: list[Raw], path: str, causes: Causes, *, stored: bool = False) -> None:
    """``selectors`` of a request or class; ``stored`` ones were accepted before and are not refused now."""

    def check(selector: Raw, here: str) -> None:
        cel = selector.get("cel")
        if cel is None:
            causes.required(f"{here}.cel")
        elif len(cel["expression"].encode()) > _LENGTH:
            causes.too_long(f"{here}.cel.expression", _LENGTH)
        elif not stored:
            _check_expression(cel["expression"], f"{here}.cel.expression", causes)

    devices.check_each(selectors, 32, path, causes, check)


def _check_expression(expression: str, path: str, causes: Causes) -> None:
    try:
        compile_selector(expression, environment=_NEW)
    except CelCompileError as e:
        causes.invalid(path, expression, f"compilation failed: {e}")
