"""Results of CEL selectors on devices; each is evaluated once per distinct content that it can see."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dra_driver import cel
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.pools import DeviceEntry
from dra_driver.structured.model.types import Features

__all__ = ["SelectorCache"]

# Anyone who may create claims writes expressions, so the cache is bounded: 64 MiB of compiled selectors,
# which are thousands of ordinary ones, and as much of results, at some 250 bytes each.
_MAX_BYTES: Final = 64 << 20
_MAX_RESULTS: Final = 1 << 18
# Measured against a step of 2 to 7 µs: a unit of CEL cost takes 0.2 µs at worst to evaluate, a character of
# an expression 5 µs to compile.
_COST_PER_STEP: Final = 25
_STEPS_TO_COMPILE: Final = 20


class _Known:
    """An expression with its selector (or why it does not compile) and its results.

    Attributes:
        selector: compiled, or the error.
        weight: estimated size in bytes.
        results: by what the selector can see of a device.
        outcomes: equal outcomes as one object: there are few, for however many devices.
    """

    __slots__ = ("outcomes", "results", "selector", "weight")

    def __init__(self, selector: cel.Selector | str, weight: int) -> None:
        self.selector = selector
        self.weight = weight
        self.results: dict[Hashable, cel.Outcome] = {}
        self.outcomes: dict[cel.Outcome, cel.Outcome] = {}


class SelectorCache:
    """Compiled expressions and their results, shared by all snapshots of a cluster. Both are bounded."""

    def __init__(
        self, features: Features, *, most_bytes: int = _MAX_BYTES, most_results: int = _MAX_RESULTS
    ) -> None:
        """Create an empty cache.

        Args:
            features: decide what expressions may use.
            most_bytes: of compiled selectors.
            most_results: of all selectors together.
        """
        self._most_bytes = most_bytes
        self._most_results = most_results
        self._lists = features.list_type_attributes
        self._environment = cel.Environment(
            list_type_attributes=features.list_type_attributes,
            consumable_capacity=features.consumable_capacity,
        )
        self._known: dict[str, _Known] = {}
        self._weight = 0
        self._results = 0

    def matches(self, expression: str, entry: DeviceEntry, budget: Budget | None = None) -> bool | str:
        """Return whether the device is selected, or the error (does not compile, an attribute is absent …).

        Args:
            expression: CEL.
            entry: the device.
            budget: pays for the evaluation; if None, it is free (for DeviceClasses outside of any question:
                admins write them).

        Raises:
            BudgetExhausted: no steps or no time are left. The result is cached all the same.
        """
        return self.evaluate(expression, entry, budget).value

    def evaluate(self, expression: str, entry: DeviceEntry, budget: Budget | None = None) -> cel.Outcome:
        """Return the result with its cost, which the first evaluation charges. As for ``matches``."""
        known = self._known.get(expression)
        if known is None:
            known = self._compile(expression, budget)
        selector = known.selector
        if isinstance(selector, str):
            return cel.Outcome(selector, 1)
        view = self.view(entry)
        if view.error is not None:
            return cel.Outcome(view.error, 1)
        key = selector.projection_key(view)
        outcome = known.results.get(key)
        if outcome is None:
            outcome = selector.evaluate(view)
            # Kept before it is paid for: a question that has no steps left gets further when it is asked
            # again.
            self._keep(known, key, known.outcomes.setdefault(outcome, outcome))
            if budget is not None:
                budget.spend(1 + outcome.cost // _COST_PER_STEP)
        return outcome

    def _keep(self, known: _Known, key: Hashable, outcome: cel.Outcome) -> None:
        if self._results >= self._most_results:
            # Of the expressions compiled first, and half of all at once: making room is rare.
            for other in self._known.values():
                if self._results <= self._most_results // 2:
                    break
                self._forget(other)
        known.results[key] = outcome
        self._results += 1

    def _forget(self, known: _Known) -> None:
        self._results -= len(known.results)
        known.results = {}
        known.outcomes = {}

    def _compile(self, expression: str, budget: Budget | None) -> _Known:
        selector: cel.Selector | str
        try:
            selector = cel.compile_selector(expression, environment=self._environment)
        except cel.CelCompileError as e:
            selector = f"does not compile: {e}"
        weight = selector.weight if isinstance(selector, cel.Selector) else 1024 + 4 * len(expression)
        known = _Known(selector, weight)
        self._weight += weight
        while self._weight > self._most_bytes and self._known:
            oldest = next(iter(self._known))
            self._weight -= self._known[oldest].weight
            self._forget(self._known.pop(oldest))
        self._known[expression] = known
        if budget is not None:
            budget.spend(_STEPS_TO_COMPILE + len(expression))
        return known

    def references(self, expression: str, budget: Budget | None = None) -> cel.References | None:
        """Return what of a device the result depends on; None if the expression does not compile.

        Raises:
            BudgetExhausted: as for ``matches``.
        """
        known = self._known.get(expression) or self._compile(expression, budget)
        return None if isinstance(known.selector, str) else known.selector.references

    def view(self, entry: DeviceEntry) -> cel.DeviceView:
        """Return what selectors see of the device."""
        view = entry.content
        if view is None:
            view = entry.content = cel.DeviceView(entry.id.driver, entry.device, list_attributes=self._lists)
        return view
