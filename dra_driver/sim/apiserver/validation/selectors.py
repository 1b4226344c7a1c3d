"""CEL selectors: checked by our own CEL implementation."""

from __future__ import annotations

from dra_driver.cel import MAX_EXPRESSION_LENGTH, NEW, NEW_WITH_LISTS, validate_selector
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices

__all__ = ["check_selectors"]


def check_selectors(
    selectors: list[Raw], path: str, causes: Causes, *, lists: bool, stored: bool = False
) -> None:
    """Check ``selectors`` of a request or class.

    Args:
        selectors: as in the object.
        path: of the field.
        causes: gets what is wrong.
        lists: whether attributes may be treated as lists.
        stored: they were accepted before and are not refused.
    """

    def check(selector: Raw, here: str) -> None:
        cel = selector.get("cel")
        if cel is None:
            causes.required(f"{here}.cel")
        elif not stored:
            _check_expression(cel["expression"], f"{here}.cel.expression", causes, lists=lists)

    devices.check_each(selectors, 32, path, causes, check)


def _check_expression(expression: str, path: str, causes: Causes, *, lists: bool) -> None:
    for finding in validate_selector(expression, environment=NEW_WITH_LISTS if lists else NEW):
        match finding.reason:
            case "TooLong":
                causes.too_long(path, MAX_EXPRESSION_LENGTH)
            case "Invalid":
                causes.invalid(path, expression, finding.message)
            case "TooExpensive":
                causes.forbidden(path, finding.message)
