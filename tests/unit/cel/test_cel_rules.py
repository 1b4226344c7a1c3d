"""Rules of custom resources: types from schemas, old values, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.rules import compile_rule

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": STRING,
        "count": INTEGER,
        "ratio": {"type": "number"},
        "since": {"type": "string", "format": "date-time"},
        "wait": {"type": "string", "format": "duration"},
        "port": {"x-kubernetes-int-or-string": True},
        "labels": {"type": "object", "additionalProperties": STRING},
        "items": {"type": "array", "items": {"type": "object", "properties": {"key": STRING, "n": INTEGER}}},
        "namespace": STRING,
        "dash-ed": STRING,
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self.count > 1", {"count": 2}, True),
        ("self.ratio > 0.5", {"ratio": 1}, True),
        ("!has(self.name) || self.name != 'bad'", {}, True),
        ("self.name != 'bad'", {"name": "bad"}, False),
        ("quantity(self.name).isGreaterThan(quantity('1Gi'))", {"name": "2Gi"}, True),
        ("self.since < timestamp('2026-01-01T00:00:00Z')", {"since": "2025-12-31T00:00:00Z"}, True),
        ("self.wait == duration('90s')", {"wait": "1m30s"}, True),
        ("type(self.port) == int ? self.port < 5 : self.port == 'http'", {"port": "http"}, True),
        ("type(self.port) == int ? self.port < 5 : self.port == 'http'", {"port": 7}, False),
        ("self.labels.all(k, self.labels[k].startsWith(k))", {"labels": {"a": "ab"}}, True),
        ("self.items.exists_one(i, i.n > 1)", {"items": [{"key": "a", "n": 1}, {"key": "b", "n": 2}]}, True),
        ("self.__namespace__ == 'x' && self.dash__dash__ed == 'y'", {"namespace": "x", "dash-ed": "y"}, True),
        ("self.free.a.b == 3", {"free": {"a": {"b": 3}}}, True),
        ("self.items.map(i, i.key).join('') == 'ab'", {"items": [{"key": "a"}, {"key": "b"}]}, True),
    ],
)
def test_rules_see_values_as_their_schema_says(rule: str, value: dict[str, Any], holds: bool) -> None:
    assert compile_rule(rule, SCHEMA).holds(value) is holds


def test_rules_about_changes_see_the_old_value() -> None:
    rule = compile_rule("self.name == oldSelf.name", SCHEMA)
    assert rule.about_changes
    assert rule.holds({"name": "a"}, {"name": "a"})
    assert not rule.holds({"name": "a"}, {"name": "b"})
    optional = compile_rule("oldSelf.hasValue() || self.count == 0", SCHEMA, optional_old=True)
    assert optional.holds({"count": 0})
    assert not optional.holds({"count": 1})
    assert optional.holds({"count": 1}, {"count": 5})


def test_the_root_has_a_name() -> None:
    rule = compile_rule("self.metadata.name.startsWith(self.count == 1 ? 'one' : 'many')", SCHEMA, root=True)
    assert rule.holds({"metadata": {"name": "one-x"}, "count": 1})


@pytest.mark.parametrize(
    "rule",
    ["self.nam == 'x'", "self.name > 1", "self.count", "self.", "device.driver == 'x'", "self.items.n"],
)
def test_what_does_not_fit_the_schema_is_refused(rule: str) -> None:
    with pytest.raises(CelCompileError):
        compile_rule(rule, SCHEMA)


def test_a_missing_field_is_an_error_of_the_rule() -> None:
    with pytest.raises(CelRuntimeError, match="no such key"):
        compile_rule("self.name == 'x'", SCHEMA).holds({})
