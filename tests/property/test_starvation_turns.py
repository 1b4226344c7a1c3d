"""Turns in which devices are set aside: every pod that could fit has one, and none lasts for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.allocate.decide import Rank
from controller.allocate.decide.set_aside import soonest
from controller.allocate.starvation.turns import Head, Starving
from dra_driver.api.meta import ObjectKey, Uid

PATIENCE = 10.0


def head(name: str, namespace: str = "a", priority: int = 0, since: float = 0.0) -> Head:
    key = ObjectKey(namespace, name)
    return Head(Rank(-priority, f"{since:09.1f}", key), key, Uid(f"{namespace}/{name}"), since)


@given(st.lists(st.integers(0, 30)), st.integers(-1, 31))
def test_the_least_that_makes_it_fit_is_found(ages: list[int], fits_from: int) -> None:
    times = [f"2026-01-01T00:00:{age:02}Z" for age in ages]
    enough = [t for t in times if int(t[17:19]) <= fits_from]
    asked: list[str] = []

    def fits(since: str) -> str | None:
        asked.append(since)
        return since if int(since[17:19]) <= fits_from else None

    assert soonest(times, fits) == max(enough, default=None)
    assert len(asked) <= len(set(times)).bit_length()


def test_nobody_has_a_turn_before_having_waited() -> None:
    starving = Starving(PATIENCE)
    heads = [head("p", since=5.0)]
    assert starving.candidate(heads, 14.9) is None
    assert starving.candidate(heads, 15.0) == heads[0]


def test_nobody_has_a_turn_where_it_is_switched_off() -> None:
    assert Starving(0.0).candidate([head("p")], 1e6) is None


def test_a_pod_of_higher_priority_has_its_turn_at_once_and_others_wait() -> None:
    starving = Starving(PATIENCE)
    starving.begin(head("p"), 10.0)
    assert starving.candidate([head("p"), head("q")], 11.0) is None
    high = head("r", priority=5)
    assert starving.candidate([head("p"), high], 11.0) == high


def test_a_pod_that_fits_nowhere_lets_others_go_first() -> None:
    starving = Starving(PATIENCE)
    never, other = head("never", priority=9), head("other")
    assert starving.candidate([never, other], 10.0) == never
    starving.fail(never, 10.0)
    assert starving.candidate([never, other], 10.0) == other
    assert starving.candidate([never, other], 10.0 + PATIENCE) == never


def test_namespaces_take_turns_whatever_the_ages_of_their_pods() -> None:
    starving = Starving(PATIENCE)
    heads = [*(head(f"p{i}", "many", since=float(i)) for i in range(20)), head("one", "few", since=30.0)]
    now, order = 100.0, []
    for _ in range(4):
        found = starving.candidate(heads, now)
        assert found is not None
        order.append(found.key.namespace)
        turn = starving.begin(found, now)
        heads.remove(found)
        starving.expire(turn.until)
        assert starving.candidate(heads, turn.until + PATIENCE - 0.1) is None, "others may use the devices"
        now = turn.until + PATIENCE
    assert order == ["few", "many", "many", "many"] or order == ["many", "few", "many", "many"]


@pytest.mark.parametrize("seed", range(30))
def test_every_pod_is_served_in_bounded_time_where_each_needs_a_turn_of_its_own_length(seed: int) -> None:
    """Holders of devices run for a time that nobody knows; a turn that lasts as long serves its pod."""
    chance = random.Random(seed)
    starving = Starving(PATIENCE)
    waiting = {
        head(f"p{i}", chance.choice("abc"), chance.choice((0, 0, 5)), chance.uniform(0, 50)): chance.uniform(
            1, 200
        )
        for i in range(12)
    }
    total = sum(waiting.values())
    now = begun = 0.0
    while waiting:
        now += 1.0
        # Each pod has turns of 2, 4, 8 … times the time that it waits before them: at most twice what it
        # needs in vain, and what it needs in the end; pauses may add up where few are left.
        assert now < 50.0 + 5 * total + 12 * 20 * PATIENCE
        turn = starving.holding
        if turn is not None:
            assert turn.until - now <= 3600.0
            if now >= turn.until:
                starving.expire(now)
            elif now - begun >= waiting[turn.head]:
                del waiting[turn.head]
                starving.end()
        found = starving.candidate([h for h in waiting if h.since <= now], now)
        if found is not None:
            assert now - found.since >= PATIENCE
            starving.begin(found, now)
            begun = now
