"""Indices of objects: what is found, in which order, and what a change costs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from work_counter import calls

from dra_driver.indices import Indices


class Thing(NamedTuple):
    names: tuple[str, ...]
    node: str = ""


def indices() -> Indices[str, Thing]:
    return Indices({"name": lambda t: t.names, "node": lambda t: (t.node,) if t.node else ()})


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 12), max_size=14))))
def test_what_is_found_is_what_the_newest_versions_say(changes: list[tuple[int, list[int]]]) -> None:
    index, things = indices(), dict[str, Thing]()
    for number, names in changes:
        key = f"k{number}"
        new = Thing(tuple(f"n{n}" for n in names)) if names else None
        index.change(key, things.pop(key, None), new)
        if new is not None:
            things[key] = new
        for name in {f"n{n}" for n in range(13)}:
            expected = sorted(k for k, thing in things.items() if name in thing.names)
            assert list(index.keys("name", name)) == expected
            assert index.number("name", name) == len(expected)


def test_some_are_read_at_a_time() -> None:
    index = indices()
    for i in range(5):
        index.change(f"k{i}", None, Thing(("a",)))
    assert list(index.after("name", "a", None, 2)) == ["k0", "k1"]
    assert list(index.after("name", "a", "k1", 2)) == ["k2", "k3"]
    index.change("k3", Thing(("a",)), None)
    # Where the last one is gone, those behind its place follow.
    assert list(index.after("name", "a", "k3", 2)) == ["k4"]
    assert list(index.after("name", "b", None, 2)) == []


def test_an_object_of_thousands_of_values_costs_what_changes() -> None:
    before = Thing(tuple(f"n{i}" for i in range(3_000)))
    asked = 0

    def names(thing: Thing) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return thing.names

    index: Indices[str, Thing] = Indices({"name": names})
    index.change("k", None, before)
    moved = before._replace(node="elsewhere")
    assert calls(lambda: index.change("k", before, moved)) < 20
    assert asked == 2  # once for each version
    one_more = moved._replace(names=(*moved.names, "new"))
    assert calls(lambda: index.change("k", moved, one_more)) < 40
    assert list(index.keys("name", "new")) == ["k"]
    index.change("k", one_more, None)
    assert asked == 3
    assert not index.number("name", "n0")


@pytest.mark.parametrize("number", [10, 3_000])
def test_a_change_looks_at_no_other_object(number: int) -> None:
    index = indices()
    for i in range(number):
        index.change(f"k{i}", None, Thing(("shared",)))
    old, new = Thing(("shared",)), Thing(("shared",), "node")
    assert calls(lambda: index.change("k3", old, new)) < 40
    assert calls(lambda: index.after("name", "shared", "k5", 8)) < 10
    assert calls(lambda: index.change("k3", new, None)) < 40
