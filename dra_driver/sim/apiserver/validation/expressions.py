"""CEL expressions of selectors and derived attributes: checked by our own CEL implementation."""

from __future__ import annotations

import dataclasses

from dra_driver.cel import COST_LIMIT, MAX_EXPRESSION_LENGTH, Environment, compile_selector, validate_selector
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices

__all__ = ["ClaimExpressions", "check_selectors"]


def check_selectors(
    selectors: list[Raw], path: str, causes: Causes, environment: Environment, *, stored: bool = False
) -> None:
    """Check ``selectors`` of a request or class.

    Args:
        selectors: as in the object.
        path: of the field.
        causes: gets what is wrong.
        environment: what the expressions may use.
        stored: they were accepted before and are not refused.
    """

    def check(selector: Raw, here: str) -> None:
        cel = selector.get("cel")
        if cel is None:
            causes.required(f"{here}.cel")
        elif not stored:
            _check_expression(cel["expression"], f"{here}.cel.expression", causes, environment)

    devices.check_each(selectors, 32, path, causes, check)


def _check_expression(expression: str, path: str, causes: Causes, environment: Environment) -> bool:
    """Check an expression; return whether it can be compiled."""
    findings = validate_selector(expression, environment=environment)
    for finding in findings:
        match finding.reason:
            case "TooLong":
                causes.too_long(path, MAX_EXPRESSION_LENGTH)
            case "Invalid":
                causes.invalid(path, expression, finding.message)
            case "TooExpensive":
                causes.forbidden(path, finding.message)
    return all(finding.reason == "TooExpensive" for finding in findings)


class ClaimExpressions:
    """What the expressions of one claim have in common (KEP-6080).

    A derived attribute has to be used by a constraint of its request, and all of a claim share one budget.

    Attributes:
        environment: what the claim's selectors may use.
    """

    def __init__(self, claim: Raw, environment: Environment) -> None:
        self.environment = environment
        self._derived = dataclasses.replace(environment, derived=True)
        self._cost = 0
        # Request, request/subrequest, or empty for all → attributes that constraints compare of it.
        self._used: dict[str, set[str]] = {}
        for constraint in claim.get("constraints") or []:
            name = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
            for reference in constraint.get("requests") or [""]:
                self._used.setdefault(reference, set()).add(name)

    def check_derived(self, attributes: list[Raw], request: str, path: str, causes: Causes) -> None:
        """Check ``derivedAttributes`` of a request, which is ``name`` or ``name/subrequest``."""
        used: set[str] = set().union(
            *(self._used.get(r, ()) for r in ("", request, request.partition("/")[0]))
        )

        def check(attribute: Raw, here: str) -> None:
            name, expression = attribute["name"], attribute["expression"]
            if not name:
                causes.required(f"{here}.name")
            else:
                devices.check_fully_qualified(name, f"{here}.name", causes)
                if name not in used:
                    text = "must be referenced by a matchAttribute or distinctAttribute of this request"
                    causes.invalid(f"{here}.name", name, text)
            if not expression:
                causes.required(f"{here}.expression")
            elif _check_expression(expression, f"{here}.expression", causes, self._derived):
                self._cost += compile_selector(expression, environment=self._derived).max_cost

        devices.check_each(attributes, 32, path, causes, check)
        if len(attributes) <= 32:
            devices.check_unique((a["name"] for a in attributes), path, causes)

    def check_cost(self, path: str, causes: Causes) -> None:
        """Check what all derived attributes of the claim cost together."""
        if self._cost > COST_LIMIT:
            text = f"the estimated cost of all is {self._cost}; at most {COST_LIMIT} is allowed"
            causes.forbidden(path, f"derived attributes are too complex: {text}")
