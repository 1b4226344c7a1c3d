"""Label and field selectors, with the errors of the real parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dra_driver.sim.apiserver.objects.formats import label_value_errors, qualified_name_errors
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = ["Selector", "field_selector", "label_selector"]

Selector = Callable[[Raw], bool]


class _Requirement(NamedTuple):
    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case _:
                return value is not None and _compare(self.operator, value, self.values[0])


def _compare(operator: str, value: str, bound: str) -> bool:
    try:
        return int(value) > int(bound) if operator == "gt" else int(value) < int(bound)
    except ValueError:
        return False


_TOKEN = re.compile(r"\s*(==|!=|=|!|,|\(|\)|>|<|[^\s=!,()<>]+|$)")


class _Lexer:
    def __init__(self, text: str) -> None:
        self.tokens = [t for t in _TOKEN.findall(text) if t] + [""]
        self.at = 0

    @property
    def next(self) -> str:
        return str(self.tokens[self.at])

    def take(self) -> str:
        token = str(self.tokens[self.at])
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token


_SYMBOLS = frozenset({"==", "!=", "=", "!", ",", "(", ")", ">", "<", ""})


def label_selector(text: str) -> Selector | None:
    """Parse ``labelSelector``; None selects everything.

    Raises:
        StatusError: 400, with what was found and what was expected.
    """
    if not text.strip():
        return None
    lexer = _Lexer(text)
    requirements = []
    while True:
        requirements.append(_requirement(lexer))
        if lexer.next == "":
            break
        if lexer.next != ",":
            raise StatusError.bad_request(f"found '{lexer.next}', expected: ',' or 'end of string'")
        lexer.take()
        if lexer.next in _SYMBOLS - {"!"}:
            raise StatusError.bad_request(f"found '{lexer.next}', expected: identifier after ','")

    def matches(raw: Raw) -> bool:
        labels = raw["metadata"].get("labels") or {}
        return all(r.matches(labels) for r in requirements)

    return matches


def _requirement(lexer: _Lexer) -> _Requirement:
    negated = lexer.next == "!"
    if negated:
        lexer.take()
    key = lexer.take()
    if key in _SYMBOLS:
        raise StatusError.bad_request(f"found '{key}', expected: !, identifier, or 'end of string'")
    for error in qualified_name_errors(key):
        raise StatusError.bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {error}')
    if negated:
        return _Requirement(key, "!", ())
    if lexer.next in ("", ","):
        return _Requirement(key, "exists", ())
    operator = lexer.take()
    if operator in ("in", "notin"):
        return _Requirement(key, operator, _checked(key, _values(lexer)))
    if operator in ("=", "==", "!=", ">", "<", "gt", "lt"):
        value = "" if lexer.next in _SYMBOLS else lexer.take()
        if operator in (">", "<", "gt", "lt"):
            if not re.fullmatch(r"-?\d+", value):
                raise StatusError.bad_request(
                    f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": '
                    "for 'Gt', 'Lt' operators, the value must be an integer"
                )
            return _Requirement(key, "gt" if operator in (">", "gt") else "lt", (value,))
        return _Requirement(key, "notin" if operator == "!=" else "in", _checked(key, (value,)))
    raise StatusError.bad_request(
        f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, gt, lt"
    )


def _values(lexer: _Lexer) -> tuple[str, ...]:
    if lexer.take() != "(":
        raise StatusError.bad_request(f"found '{lexer.next}', expected: '('")
    values = []
    expect_value = True
    while True:
        word = lexer.take()
        if word == ")":
            if expect_value:
                values.append("")
            return tuple(values)
        if word == ",":
            if expect_value:
                values.append("")
            expect_value = True
        elif word in _SYMBOLS or not expect_value:
            raise StatusError.bad_request(f"found '{word}', expected: ',', ')' or identifier")
        else:
            values.append(word)
            expect_value = False


def _checked(key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    for i, value in enumerate(values):
        for error in label_value_errors(value):
            raise StatusError.bad_request(
                f'unable to parse requirement: values[{i}][{key}]: Invalid value: "{value}": {error}'
            )
    return values


_TERM = re.compile(r"((?:\\.|[^=!])*?)(==|!=|=)(.*)", re.S)


def field_selector(text: str, kind: Kind) -> Selector | None:
    """Parse ``fieldSelector`` for a kind; None selects everything.

    Raises:
        StatusError: 400 for bad syntax, and for fields that are not selectable for the kind.
    """
    if not text.strip():
        return None
    terms: list[tuple[tuple[str, ...], str, bool, str]] = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        m = _TERM.fullmatch(part)
        if m is None:
            raise StatusError.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = m[1], m[2], re.sub(r"\\([\\,=])", r"\1", m[3])
        own_list = bool(kind.selectable) and not kind.namespaced  # such kinds list their fields in errors
        if path == "metadata.name" or (path == "metadata.namespace" and not own_list):
            default = ""
        elif path in kind.selectable:
            default = kind.selectable[path]
        elif kind.selectable or kind.group:
            raise StatusError.bad_request(f"field label not supported: {path}")
        else:
            raise StatusError.bad_request(
                f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
        terms.append((tuple(path.split(".")), default, operator == "!=", value))

    def matches(raw: Raw) -> bool:
        for path, default, negated, wanted in terms:
            if (_value(raw, path, default) == wanted) == negated:
                return False
        return True

    return matches


def _value(raw: Raw, path: tuple[str, ...], default: str) -> str:
    value: object = raw
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return default
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
