"""ValidatingAdmissionPolicies of the manifests, judged by our own CEL."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dra_driver.cel.rules import ValidationRule, compile_rule
from dra_driver.sim.assets import deploy_directory


class Policy:
    """A policy that looks at nothing but ``object``.

    Variables are written out where they are used, and the object is what rules call ``self``: of any type, as
    for the API server, which evaluates one expression for several kinds.
    """

    def __init__(self, name: str, **variables: str) -> None:
        text = (deploy_directory("manifests") / "gating.yaml").read_text(encoding="utf-8")
        (spec,) = (
            d["spec"]
            for d in yaml.safe_load_all(text)
            if d["kind"] == "ValidatingAdmissionPolicy" and d["metadata"]["name"] == name
        )
        self._variables: dict[str, str] = {}
        for variable in spec["variables"]:
            expression = variables.pop(variable["name"], variable["expression"])
            self._variables[variable["name"]] = self._written_out(expression)
        assert not variables, f"policy {name} has no such variables: {variables}"
        self._rules: list[ValidationRule] = [
            compile_rule(self._written_out(v["expression"]), {}) for v in spec["validations"]
        ]

    def _written_out(self, expression: str) -> str:
        inner = re.sub(r"\bvariables\.(\w+)", lambda m: f"({self._variables[m[1]]})", expression)
        return re.sub(r"(?<![\w.'\"])object\b(?=[.)])", "self", inner)

    def admits(self, body: dict[str, Any]) -> bool:
        """Whether no validation objects."""
        return all(rule.holds(body) for rule in self._rules)
