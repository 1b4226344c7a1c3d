"""Caches that are bounded by the bytes of their entries."""

from __future__ import annotations

from dra_driver.caches import BoundedCache


def test_what_was_not_used_for_longest_makes_room() -> None:
    cache: BoundedCache[str, int] = BoundedCache(100)
    for i, key in enumerate("abcd"):
        assert cache.put(key, i, 25) == []
    assert cache.get("a") == 0
    # Down to three quarters, so that making room is rare.
    assert cache.put("e", 4, 10) == [1, 2]
    assert [key for key, _ in cache.items()] == ["d", "a", "e"]
    assert cache.weight == 60


def test_an_entry_that_grows_makes_room_too() -> None:
    cache: BoundedCache[str, int] = BoundedCache(100)
    cache.put("a", 1, 40)
    cache.put("b", 2, 40)
    assert cache.grow("a", 10) == []
    assert cache.grow("a", 30) == [2]
    assert cache.weight == 80
    assert cache.grow("unknown", 1000) == []
    assert cache.grow("a", -70) == []
    assert cache.weight == 10


def test_the_newest_entry_stays_however_large_it_is() -> None:
    cache: BoundedCache[str, int] = BoundedCache(100)
    cache.put("a", 1, 40)
    assert cache.put("b", 2, 1000) == [1]
    assert cache.get("b") == 2
    assert cache.put("c", 3, 1) == [2]


def test_weights_are_those_of_what_is_there() -> None:
    cache: BoundedCache[str, int] = BoundedCache(100)
    cache.put("a", 1, 40)
    cache.put("a", 2, 10)
    cache.put("b", 3, 5)
    assert cache.pop("a") == 2
    assert cache.pop("a") is None
    assert (cache.weight, len(cache)) == (5, 1)
    cache.put("c", 4, 95)
    assert len(cache) == 2
    cache.clear()
    assert cache.put("d", 5, 100) == []
    assert cache.weight == 100
