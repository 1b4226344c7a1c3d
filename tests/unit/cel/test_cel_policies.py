"""Expressions of admission policies: plain data of any type under several names."""

from __future__ import annotations

import pytest

from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.policies import compile_policy

NAMES = ("object", "oldObject", "variables")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("object.spec.replicas + 1", 3),
        ("(has(object.spec.nothing) ? object.spec.nothing : []) == object.spec.gates.filter(g, false)", True),
        ("oldObject == null", True),
        ("dyn(object.spec).all(k, k in ['replicas', 'gates'])", True),
        ("object.spec.gates.filter(g, g.name != 'b').map(g, g.name)", ["a"]),
        ("variables.names.exists(n, n in object.metadata.labels)", True),
        ("'x' + string(object.spec.replicas)", "x2"),
        ("object.?spec.?nothing.orValue('none')", "none"),
    ],
)
def test_expressions_have_values_of_any_type(expression: str, value: object) -> None:
    labels = {"app": "a"}
    spec = {"replicas": 2, "gates": [{"name": "a"}, {"name": "b"}]}
    given = {
        "object": {"metadata": {"labels": labels}, "spec": spec},
        "oldObject": None,
        "variables": {"names": ["app"]},
    }
    assert compile_policy(expression, NAMES).value(given) == value


def test_a_name_that_was_not_given_cannot_be_compiled() -> None:
    with pytest.raises(CelCompileError, match="params"):
        compile_policy("params.spec.x", NAMES)


def test_a_field_that_is_not_there_is_an_error_of_the_evaluation() -> None:
    expression = compile_policy("variables.missing", NAMES)
    with pytest.raises(CelRuntimeError, match="missing"):
        expression.value({"object": None, "oldObject": None, "variables": {}})
