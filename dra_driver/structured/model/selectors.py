"""Results of CEL selectors on devices; each is evaluated once per distinct content that it can see."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Final

from dra_driver import cel
from dra_driver.caches import BoundedCache
from dra_driver.cel.selector import Derived
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.pools import DeviceEntry
from dra_driver.structured.model.types import Features

__all__ = ["SelectorCache"]

# Anyone who may create claims writes expressions, so the cache is bounded: an ordinary expression takes 10 kB
# compiled, its results on 40,000 devices 8 MB if all of them differ.
_MOST_BYTES: Final = 48 << 20
# Bytes, measured: an entry of a dict with the outcome that equal results share, and a value in the key.
_PER_RESULT, _PER_VALUE = 200, 80
# Measured against a step of 2 to 7 µs: a unit of CEL cost takes 0.2 µs at worst to evaluate, a character of
# an expression 5 µs to compile, a value of a key 0.2 µs to look up.
_COST_PER_STEP: Final = 25
_STEPS_TO_COMPILE: Final = 20
_VALUES_PER_STEP: Final = 16


_Result = cel.Outcome | Derived


class _Known:
    """An expression with its selector (or why it does not compile) and its results.

    Attributes:
        selector: compiled, or the error.
        weight: estimated size in bytes, without results.
        per_result: estimated size of a result in bytes.
        results: by what the selector can see of a device.
        outcomes: equal outcomes as one object: there are few, for however many devices.
    """

    __slots__ = ("outcomes", "per_result", "results", "selector", "steps", "weight")

    def __init__(self, selector: cel.Selector | str, weight: int) -> None:
        values = 0 if isinstance(selector, str) else selector.references.size
        self.selector = selector
        self.weight = weight
        in_key = values if values <= cel.References.LONGEST_KEY else 1
        self.per_result = _PER_RESULT + _PER_VALUE * in_key
        # Of a look-up besides the one that every look at a device costs.
        self.steps = values // _VALUES_PER_STEP
        self.results: dict[Hashable, _Result] = {}
        self.outcomes: dict[_Result, _Result] = {}


class SelectorCache:
    """Compiled expressions and their results, shared by all snapshots of a cluster, in bounded memory.

    Args:
        features: decide what expressions may use.
        most_bytes: of compiled selectors and results together.
        derived: whether the expressions are those of derived attributes.
    """

    def __init__(self, features: Features, *, most_bytes: int = _MOST_BYTES, derived: bool = False) -> None:
        self._features = features
        self._lists = features.list_type_attributes
        self._environment = cel.Environment(
            list_type_attributes=features.list_type_attributes,
            consumable_capacity=features.consumable_capacity,
            derived=derived,
        )
        self._known: BoundedCache[str, _Known] = BoundedCache(most_bytes)

    @property
    def weight(self) -> int:
        """Bytes of everything that is kept, as estimated."""
        return self._known.weight

    def matches(self, expression: str, entry: DeviceEntry, budget: Budget | None = None) -> bool | str:
        """Return whether the device is selected, or the error (does not compile, an attribute is absent …).

        Args:
            expression: CEL.
            entry: the device.
            budget: pays for the evaluation; if None, it is free (for DeviceClasses outside of any question:
                admins write them).

        Raises:
            BudgetExhausted: no steps or no time are left. The result is cached all the same, unless its
                evaluation was ended before there was one.
        """
        return self.evaluate(expression, entry, budget).value

    def derive(
        self, expression: str, entry: DeviceEntry, budget: Budget | None = None
    ) -> frozenset[tuple[str, object]] | str:
        """Return the attribute that an expression gives of a device, or the error. As for ``matches``."""
        found = self._attributes._result(expression, entry, budget).value
        assert not isinstance(found, bool)
        return found

    @cached_property
    def _attributes(self) -> SelectorCache:
        return SelectorCache(self._features, most_bytes=_MOST_BYTES // 3, derived=True)

    def evaluate(self, expression: str, entry: DeviceEntry, budget: Budget | None = None) -> cel.Outcome:
        """Return the result with its cost, which the first evaluation charges. As for ``matches``."""
        found = self._result(expression, entry, budget)
        assert isinstance(found, cel.Outcome)
        return found

    def _result(self, expression: str, entry: DeviceEntry, budget: Budget | None) -> _Result:
        known = self._known.get(expression)
        if known is None:
            known = self._compile(expression, budget)
        selector = known.selector
        if isinstance(selector, str):
            return cel.Outcome(selector, 1)
        view = self.view(entry)
        if view.error is not None:
            return cel.Outcome(view.error, 1)
        if known.steps and budget is not None:
            budget.spend(known.steps)
        key = selector.projection_key(view)
        outcome = known.results.get(key)
        if outcome is None:
            outcome = self._evaluate(selector, view, expression, known, key, budget)
        return outcome

    def _evaluate(
        self,
        selector: cel.Selector,
        view: cel.DeviceView,
        expression: str,
        known: _Known,
        key: Hashable,
        budget: Budget | None,
    ) -> _Result:
        evaluate = selector.derive if self._environment.derived else selector.evaluate
        outcome: _Result
        if budget is None:
            outcome = evaluate(view)
        else:
            paid = 0

            def pay(units: int) -> None:
                nonlocal paid
                paid += units // _COST_PER_STEP
                budget.spend_ahead(units // _COST_PER_STEP)

            outcome = evaluate(view, pay)
        outcome = known.outcomes.setdefault(outcome, outcome)
        # Kept before the rest is paid for: a question that has no steps left gets further when it is asked
        # again.
        self._keep(expression, known, key, outcome)
        if budget is not None:
            budget.spend(max(1, 1 + outcome.cost // _COST_PER_STEP - paid))
        return outcome

    def _keep(self, expression: str, known: _Known, key: Hashable, outcome: _Result) -> None:
        size = known.per_result
        if known.weight + len(known.results) * size > self._known.most // 2:
            # One expression alone must not take the place of all others.
            self._known.grow(expression, -len(known.results) * size)
            known.results, known.outcomes = {}, {}
        known.results[key] = outcome
        self._known.grow(expression, size)

    def _compile(self, expression: str, budget: Budget | None) -> _Known:
        if budget is not None:
            budget.spend(_STEPS_TO_COMPILE)
        selector: cel.Selector | str
        try:
            selector = cel.compile_selector(expression, environment=self._environment)
        except cel.CelCompileError as e:
            selector = f"does not compile: {e}"
        text = 1024 + 8 * len(expression)
        known = _Known(selector, selector.weight if isinstance(selector, cel.Selector) else text)
        self._known.put(expression, known, known.weight)
        if budget is not None:
            budget.spend(len(expression))
        return known

    def references(self, expression: str, budget: Budget | None = None) -> cel.References | None:
        """Return what of a device the result depends on; None if the expression does not compile.

        Raises:
            BudgetExhausted: as for ``matches``.
        """
        known = self._known.get(expression)
        if known is None:
            known = self._compile(expression, budget)
        return None if isinstance(known.selector, str) else known.selector.references

    def view(self, entry: DeviceEntry) -> cel.DeviceView:
        """Return what selectors see of the device."""
        view = entry.content
        if view is None:
            view = entry.content = cel.DeviceView(entry.id.driver, entry.device, list_attributes=self._lists)
        return view
