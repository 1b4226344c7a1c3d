"""CEL selectors on devices, evaluated once per distinct content that the expression can see."""

from __future__ import annotations

from collections.abc import Hashable

from dra_driver import cel
from dra_driver.structured.budget import Budget
from dra_driver.structured.pools import DeviceEntry
from dra_driver.structured.types import Features

__all__ = ["SelectorCache"]

# Claims bring their own expressions: what the cache holds is bounded, whoever writes them.
_MOST_EXPRESSIONS = 4096


class SelectorCache:
    """Compiled expressions and their results. Shared by all snapshots of a cluster."""

    def __init__(self, features: Features) -> None:
        self._lists = features.list_type_attributes
        self._environment = cel.Environment(
            list_type_attributes=features.list_type_attributes,
            consumable_capacity=features.consumable_capacity,
        )
        # The selector, or why it does not compile; and its results by what it can see of a device.
        self._known: dict[str, tuple[cel.Selector | str, dict[Hashable, bool | str]]] = {}

    def matches(self, expression: str, entry: DeviceEntry, budget: Budget | None = None) -> bool | str:
        """Return the result, or why there is none (it does not compile, or an attribute is absent …).

        Args:
            expression: CEL.
            entry: the device.
            budget: of the question that pays for an evaluation; if None, it is free (classes, which admins
                write, are judged without a question).

        Raises:
            BudgetExhausted: the question that pays for the evaluation has no steps or no time left.
        """
        known = self._known.get(expression)
        if known is None:
            known = self._compile(expression)
        selector, results = known
        if isinstance(selector, str):
            return selector
        view = self.view(entry)
        if view.error is not None:
            return view.error
        key = selector.projection_key(view)
        result = results.get(key)
        if result is None:
            if budget is not None:
                budget.spend()
            result = results[key] = _evaluate(selector, view)
        return result

    def _compile(self, expression: str) -> tuple[cel.Selector | str, dict[Hashable, bool | str]]:
        if len(self._known) >= _MOST_EXPRESSIONS:
            self._known.clear()
        selector: cel.Selector | str
        try:
            selector = cel.compile_selector(expression, environment=self._environment)
        except cel.CelCompileError as e:
            selector = f"does not compile: {e}"
        known = self._known[expression] = (selector, {})
        return known

    def references(self, expression: str) -> cel.References | None:
        """What of a device the result depends on; None where the expression does not compile."""
        known = self._known.get(expression) or self._compile(expression)
        return None if isinstance(known[0], str) else known[0].references

    def view(self, entry: DeviceEntry) -> cel.DeviceView:
        """What selectors see of the device."""
        view = entry.content
        if view is None:
            view = entry.content = cel.DeviceView(entry.id.driver, entry.device, list_attributes=self._lists)
        return view


def _evaluate(selector: cel.Selector, view: cel.DeviceView) -> bool | str:
    try:
        return selector.matches(view)
    except cel.CelRuntimeError as e:
        return str(e)
