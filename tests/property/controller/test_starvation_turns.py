"""Turns in which devices are set aside: every pod that could fit has one, and none lasts for ever."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from examples import share
from hypothesis import given
from hypothesis import strategies as st

from controller.allocate.decide import Rank
from controller.allocate.decide.set_aside import soonest
from controller.allocate.starvation.accounts import Account
from controller.allocate.starvation.exclusions import SetAsideExclusions
from controller.allocate.starvation.turns import Head, StarvationTurns
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
    starving = StarvationTurns(PATIENCE)
    heads = [head("p", since=5.0)]
    assert starving.candidate(heads, 14.9) is None
    assert starving.candidate(heads, 15.0) == heads[0]


def test_nobody_has_a_turn_where_it_is_switched_off() -> None:
    assert StarvationTurns(0.0).candidate([head("p")], 1e6) is None


def test_a_pod_of_higher_priority_has_its_turn_at_once_and_others_wait() -> None:
    starving = StarvationTurns(PATIENCE)
    starving.begin(head("p"), 10.0)
    assert starving.candidate([head("p"), head("q")], 11.0) is None
    high = head("r", priority=5)
    assert starving.candidate([head("p"), high], 11.0) == high


def test_a_pod_that_fits_nowhere_lets_others_go_first() -> None:
    starving = StarvationTurns(PATIENCE)
    never, other = head("never", priority=9), head("other")
    assert starving.candidate([never, other], 10.0) == never
    starving.nothing_found(never, 10.0)
    assert starving.candidate([never, other], 10.0) == other
    assert starving.candidate([never, other], 10.0 + PATIENCE) == never


def test_namespaces_take_turns_whatever_the_ages_of_their_pods() -> None:
    starving = StarvationTurns(PATIENCE)
    heads = [*(head(f"p{i}", "many", since=float(i)) for i in range(20)), head("one", "few", since=30.0)]
    now, order = 100.0, []
    for _ in range(4):
        found = starving.candidate(heads, now)
        assert found is not None
        order.append(found.key.namespace)
        turn = starving.begin(found, now)
        heads.remove(found)
        starving.fail(turn.until)
        assert starving.candidate(heads, turn.until + PATIENCE - 0.1) is None, "others may use the devices"
        now = turn.until + PATIENCE
    assert order == ["few", "many", "many", "many"] or order == ["many", "few", "many", "many"]


@pytest.mark.parametrize("seed", range(30))
def test_every_pod_is_served_in_bounded_time_where_each_needs_a_turn_of_its_own_length(seed: int) -> None:
    """Holders of devices run for a time that nobody knows; a turn that lasts as long serves its pod."""
    chance = random.Random(seed)
    starving = StarvationTurns(PATIENCE)
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
                starving.fail(now)
            elif now - begun >= waiting[turn.head]:
                del waiting[turn.head]
                starving.serve(now)
                starving.bound(turn.head.uid, now)
        found = starving.candidate([h for h in waiting if h.since <= now], now)
        if found is not None:
            assert now - found.since >= PATIENCE
            starving.begin(found, now)
            begun = now


def serve(starving: StarvationTurns, uid: Uid, at: float) -> None:
    starving.serve(at)
    starving.bound(uid, at)


@pytest.mark.parametrize("number", share([30, 128], 1))
@pytest.mark.parametrize("priorities", [1, 3])
def test_what_one_namespace_keeps_in_vain_is_bounded_however_many_pods_it_makes(
    priorities: int, number: int
) -> None:
    """Its pods wait for what it holds itself, say: nobody can tell that from big requests of others."""
    starving = StarvationTurns(300.0)
    heads = [head(f"p{i}", "tenant", i % priorities) for i in range(number)]
    now, kept = 0.0, 0.0
    while now < 86_400.0:
        now += 30.0
        turn = starving.holding
        if turn is not None and now >= turn.until:
            starving.fail(now)
        found = starving.candidate(heads, now)
        if found is not None:
            starving.begin(found, now)
        kept += 30.0 * (starving.holding is not None)
    assert 3600.0 < kept < priorities * (3600.0 + 7200.0 + 60.0)


@pytest.mark.parametrize("seconds", [5.0, 590.0])
def test_a_pod_that_is_made_anew_in_its_turn_keeps_no_more(seconds: float) -> None:
    starving = StarvationTurns(300.0)
    now, kept, number = 0.0, 0.0, 0
    mine = head("p", "tenant")
    while now < 86_400.0:
        found = starving.candidate([mine], now)
        if found is None:
            now += 5.0
            continue
        starving.begin(found, now)
        now, kept, number = now + seconds, kept + seconds, number + 1
        starving.fail(now)
        starving.forget(mine.uid)
        # One that is there already: it has waited as long.
        mine = head(f"p{number}", "tenant", since=max(0.0, now - 300.0))
    assert kept < 3600.0 + 7200.0 + seconds
    assert number > 1


def test_a_pod_that_is_deleted_and_made_anew_each_second_has_no_turn() -> None:
    starving = StarvationTurns(PATIENCE)
    for second in range(1000):
        anew = head("p", since=float(second))._replace(uid=Uid(f"p-{second}"))
        assert starving.candidate([anew], second + 0.9) is None


def test_whoever_uses_what_was_set_aside_has_as_many_turns_as_it_needs() -> None:
    starving = StarvationTurns(PATIENCE)
    now = 0.0
    for number in range(2000):
        mine = head(f"p{number}", since=now)
        now += PATIENCE
        assert starving.candidate([mine], now) == mine
        now = starving.begin(mine, now).until
        serve(starving, mine.uid, now)
        now += 2 * PATIENCE
    # Those that end at once have not used it.
    for number in range(2000, 2500):
        mine = head(f"p{number}", since=now)
        now += PATIENCE
        if starving.candidate([mine], now) is None:
            return
        now = starving.begin(mine, now).until
        serve(starving, mine.uid, now)
        starving.forget(mine.uid)
    raise AssertionError("devices were kept again and again")


def test_one_namespace_that_has_used_its_time_up_leaves_turns_to_others() -> None:
    starving = StarvationTurns(300.0)
    mine, other = head("p", "tenant", 9), head("q", "other")
    now = 300.0
    while starving.candidate([mine], now) is not None:
        now = starving.begin(mine, now).until
        starving.fail(now)
        now += 1800.0
    assert starving.candidate([mine, other], now) == other


def test_pods_that_would_fit_nowhere_hold_up_no_other_namespace() -> None:
    """Each look takes a second, and a pod for which nothing was found is looked at again."""
    starving = StarvationTurns(PATIENCE)
    impossible = [head(f"p{i}", "tenant") for i in range(500)]
    other = head("q", "other", since=5.0)
    for look in range(100):
        now = 20.0 + look
        found = starving.candidate([*impossible, other], now)
        assert found is not None
        if found == other:
            assert look <= 1
            return
        starving.nothing_found(found, now)
    raise AssertionError("the other namespace had no look")


def test_a_pod_that_would_fit_nowhere_is_looked_at_less_and_less() -> None:
    starving = StarvationTurns(PATIENCE)
    never, looks = head("never"), 0
    for second in range(10_000):
        if starving.candidate([never], float(second)) is not None:
            looks += 1
            starving.nothing_found(never, float(second))
    assert looks < 15


def test_after_a_turn_in_vain_others_may_use_the_devices_for_half_as_long() -> None:
    starving = StarvationTurns(PATIENCE)
    mine, urgent = head("p"), head("q", "b", priority=5)
    now = 10.0
    for _ in range(3):
        assert starving.candidate([mine], now) == mine
        turn = starving.begin(mine, now)
        starving.fail(turn.until)
        pause = max(PATIENCE, (turn.until - now) / 2)
        assert starving.candidate([mine], turn.until + pause - 0.1) is None
        assert starving.candidate([urgent], turn.until + 0.1) == urgent, "priority goes before that"
        now = turn.until + pause
    assert turn.until - turn.begun == 8 * PATIENCE


def test_a_turn_whose_pod_could_not_be_placed_was_in_vain() -> None:
    starving = StarvationTurns(PATIENCE)
    mine, other = head("p"), head("q", "b")
    starving.begin(mine, 10.0)
    starving.serve(20.0)
    assert starving.candidate([other], 20.0) == other
    starving.taken_back(mine.uid, 0, 21.0)
    assert starving.candidate([other], 21.0 + PATIENCE - 0.1) is None
    assert starving.candidate([other], 21.0 + PATIENCE) == other


# --- pods that were turned down -----------------------------------------------------------------------------


def turned_down(**how: bool) -> SetAsideExclusions:
    found = SetAsideExclusions(PATIENCE)
    found.add(Uid("p"), "p", ("set", "asks"), 0.0, hopeless=True, **how)
    return found


def test_a_pod_that_no_node_suits_is_left_out_until_one_would() -> None:
    found = turned_down(everywhere=True)
    assert found.leaves_out("p", (), 1e6)
    found.reported(Uid("p"), 0)
    assert found.leaves_out("p", (), 1e6)
    found.reported(Uid("p"), 1)
    assert found.leaves_out("p", (), 19.0), "it may be turned down again at once"
    assert not found.leaves_out("p", (), 20.0)


def test_a_pod_that_its_node_does_not_suit_is_left_out_until_more_nodes_would() -> None:
    found = turned_down()
    for suitable in (3, 3, 2, 3):
        found.reported(Uid("p"), suitable)
        assert found.leaves_out("p", (), 1e6)
    found.reported(Uid("p"), 4)
    assert not found.leaves_out("p", (), 1e6)


@pytest.mark.parametrize("kin", ["set", "asks"])
def test_pods_that_take_its_place_are_left_out_for_longer_and_longer(kin: str) -> None:
    found = SetAsideExclusions(PATIENCE)
    now, spans = 0.0, []
    for number in range(20):
        uid = Uid(f"p{number}")
        found.add(uid, uid, (kin,), now, hopeless=True, everywhere=True)
        found.forget(uid)
        begun = now
        while found.leaves_out(f"p{number + 1}", (kin, "other"), now):
            now += 5.0
        spans.append(now - begun)
    assert spans[:3] == [2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
    assert spans[-1] == 86_400.0


def test_many_pods_that_are_turned_down_together_count_once() -> None:
    found = SetAsideExclusions(PATIENCE)
    for number in range(50):
        found.add(Uid(f"p{number}"), f"p{number}", ("set",), float(number) / 10, hopeless=True)
    assert not found.leaves_out("new", ("set",), 2 * PATIENCE)


def test_one_that_is_bound_shows_that_pods_like_it_can_be_placed() -> None:
    found = turned_down(everywhere=True)
    found.bound(Uid("q"), "q", ("set",))
    assert not found.leaves_out("r", ("set",), 1.0)
    assert found.leaves_out("p", ("set",), 1.0), "it has not been placed"


def test_no_more_is_remembered_than_is_good() -> None:
    found = SetAsideExclusions(PATIENCE)
    for number in range(5000):
        found.add(Uid("p"), "p", (number,), 0.0, hopeless=False)
    assert found.leaves_out("q", (4999,), 1.0)
    assert not found.leaves_out("q", (0,), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_what_is_kept_in_vain_is_bounded(seed: int) -> None:
    chance = random.Random(seed)
    starving = StarvationTurns(300.0)
    now, number = 0.0, 0
    vain: defaultdict[Account, float] = defaultdict(float)
    heads: list[Head] = []
    # Pods that have got their devices, with the seconds of their turns, and since when they run.
    unbound: dict[Head, float] = {}
    running: dict[Head, tuple[float, float]] = {}
    while now < 2 * 86_400.0:
        now += chance.choice([1.0, 60.0, 300.0])
        while len(heads) < 12:
            number += 1
            heads.append(head(f"p{number}", chance.choice("ab"), chance.choice((0, 5)), now))
        turn = starving.holding
        if turn is not None and (now >= turn.until or chance.random() < 0.1):
            took = now - turn.begun
            match chance.choice(["serve", "serve", "fail", "interrupt"]):
                case "serve":
                    starving.serve(now)
                    heads.remove(turn.head)
                    unbound[turn.head] = took
                case "fail":
                    starving.fail(now)
                    vain[turn.head.account] += took
                case _:
                    starving.interrupt(now)
                    vain[turn.head.account] += took
        for pod, took in list(unbound.items()):
            if chance.random() < 0.5:
                del unbound[pod]
                if chance.random() < 0.5:
                    starving.bound(pod.uid, now)
                    running[pod] = took, now
                else:
                    starving.taken_back(pod.uid, pod.rank.level, now)
                    vain[pod.account] += took
        for pod, (took, since) in list(running.items()):
            if chance.random() < 0.05:
                del running[pod]
                starving.forget(pod.uid)
                vain[pod.account] += took if now - since < took else 0.0
        found = starving.candidate(heads, now)
        if found is not None:
            before = starving.holding
            if before is not None:
                assert found.rank.level < before.head.rank.level
                vain[before.head.account] += now - before.begun
            starving.begin(found, now)
        # One is over when it is looked at, up to five minutes late.
        assert all(kept < 3600.0 + now / 12 + 600.0 for kept in vain.values())
    assert max(vain.values()) > 3600.0, "it was tried"
