"""ValidatingAdmissionPolicies of the manifests, judged by our own CEL."""

from __future__ import annotations

from typing import Any

from manifest_files import documents

from dra_driver.cel.policies import compile_policy
from dra_driver.sim.assets import deploy_directory


class Policy:
    """A policy that looks at nothing but ``object``; any of its variables can be another expression."""

    def __init__(self, name: str, **variables: str) -> None:
        (spec,) = (
            d["spec"]
            for d in documents(deploy_directory("manifests") / "60-admission-policies.yaml")
            if d["kind"] == "ValidatingAdmissionPolicy" and d["metadata"]["name"] == name
        )
        given = {v["name"]: variables.pop(v["name"], v["expression"]) for v in spec["variables"]}
        assert not variables, f"policy {name} has no such variables: {variables}"
        names = ("object", "variables")
        self._variables = {name: compile_policy(text, names) for name, text in given.items()}
        self._validations = [compile_policy(v["expression"], names) for v in spec["validations"]]

    def admits(self, body: dict[str, Any]) -> bool:
        """Whether no validation objects."""
        variables: dict[str, Any] = {}
        for name, expression in self._variables.items():
            variables[name] = expression.value({"object": body, "variables": variables})
        given = {"object": body, "variables": variables}
        return all(v.value(given) is True for v in self._validations)
