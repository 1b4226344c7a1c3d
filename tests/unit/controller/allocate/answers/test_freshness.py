"""What an answer knows of pools, of devices that are taken, and of claims."""

from __future__ import annotations

import builders
import pytest
from builders import DRIVER

from controller.allocate.answers.freshness import Freshness, Knowledge
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import PoolID

N1, N2 = (PoolID(DRIVER, PoolName(name)) for name in ("n1", "n2"))
CLAIM, OTHER = (ObjectKey(builders.NAMESPACE, name) for name in ("claim", "other"))
OF_N1 = codec.convert(AllocationResult, builders.allocation(builders.result("n1", "gpu-0"))["allocation"])


def test_an_answer_knows_a_pool_up_to_its_version() -> None:
    freshness = Freshness()
    with freshness.awaiting(1):
        freshness.pool_changed(N1, 5)
        assert not freshness.holds_for_pool(N1, Knowledge(4))
        assert freshness.holds_for_pool(N1, Knowledge(5))
        assert freshness.holds_for_pool(N2, Knowledge(1))
        assert freshness.knows_taken(N1, Knowledge(1)), "its devices have changed, nobody has taken any"


def test_a_rule_for_all_devices_concerns_every_pool() -> None:
    freshness = Freshness()
    with freshness.awaiting(1):
        freshness.pool_changed(N1, 3)
        freshness.all_changed(5)
        for pool in (N1, N2):
            assert not freshness.holds_for_pool(pool, Knowledge(4))
            assert freshness.holds_for_pool(pool, Knowledge(5))
        freshness.pool_changed(N1, 7)
        assert not freshness.holds_for_pool(N1, Knowledge(6))
        assert freshness.holds_for_pool(N2, Knowledge(6))


def test_an_answer_knows_a_claim_up_to_its_version() -> None:
    freshness = Freshness()
    with freshness.awaiting(1):
        freshness.claim_changed(CLAIM, 5)
        assert not freshness.holds_for_claim(CLAIM, Knowledge(4))
        assert freshness.holds_for_claim(CLAIM, Knowledge(5))
        assert freshness.holds_for_claim(OTHER, Knowledge(1))


def test_an_answer_knows_what_others_have_taken_up_to_its_version() -> None:
    freshness = Freshness()
    with freshness.awaiting(1):
        freshness.taken(OF_N1, 5)
        for slow in (False, True):
            assert not freshness.knows_taken(N1, Knowledge(4, slow=slow))
            assert freshness.knows_taken(N1, Knowledge(5, slow=slow))
        assert freshness.knows_taken(N2, Knowledge(4))
        assert freshness.holds_for_pool(N1, Knowledge(4)), "the devices are the same"


def test_answers_of_the_fast_lane_know_those_before_them_and_spoil_none_after() -> None:
    freshness = Freshness()
    freshness.begin(1)
    with freshness.awaiting(1):
        with freshness.accepting(Knowledge(1, life=1, answers=3)):
            freshness.taken(OF_N1, 5)
        assert freshness.knows_taken(N1, Knowledge(1, life=1, answers=4))
        # It was worked out before, and of the fast lane: whatever came after it knows it.
        assert freshness.knows_taken(N1, Knowledge(1, life=1, answers=3))


def test_an_answer_of_the_slow_lane_knows_those_that_were_given_before_its_copy_was_made() -> None:
    freshness = Freshness()
    freshness.begin(1)
    with freshness.awaiting(1):
        with freshness.accepting(Knowledge(1, life=1, answers=3)):
            freshness.taken(OF_N1, 5)
        assert not freshness.knows_taken(N1, Knowledge(1, life=1, answers=3, slow=True))
        assert freshness.knows_taken(N1, Knowledge(1, life=1, answers=4, slow=True))


def test_no_answer_knows_what_one_of_the_slow_lane_has_taken_before_it_was_sent() -> None:
    freshness = Freshness()
    freshness.begin(1)
    with freshness.awaiting(1):
        with freshness.accepting(Knowledge(1, life=1, answers=3, slow=True)):
            freshness.taken(OF_N1, 5)
        assert not freshness.knows_taken(N1, Knowledge(4, life=1, answers=9))
        assert freshness.knows_taken(N1, Knowledge(5, life=1, answers=9))


def test_a_worker_knows_what_its_predecessor_took_and_not_what_its_successor_takes() -> None:
    freshness = Freshness()
    freshness.begin(2)
    with freshness.awaiting(1):
        with freshness.accepting(Knowledge(1, life=2, answers=0)):
            freshness.taken(OF_N1, 5)
        assert not freshness.knows_taken(N1, Knowledge(9, life=1, answers=7))
        assert not freshness.knows_taken(N1, Knowledge(9, life=1, answers=7, slow=True))
        assert freshness.knows_taken(N1, Knowledge(1, life=3))
        assert freshness.knows_taken(N1, Knowledge(1, life=3, slow=True))


def test_what_a_worker_took_that_has_ended_since_is_known_to_its_successor_by_the_version_alone() -> None:
    freshness = Freshness()
    freshness.begin(2)
    with freshness.awaiting(1):
        with freshness.accepting(Knowledge(1, life=1, answers=3)):
            freshness.taken(OF_N1, 5)
        assert not freshness.knows_taken(N1, Knowledge(4, life=2))
        assert freshness.knows_taken(N1, Knowledge(5, life=2))


def test_what_is_taken_after_an_answer_was_put_into_effect_is_not_its_own() -> None:
    freshness = Freshness()
    freshness.begin(1)
    with freshness.awaiting(1):
        with pytest.raises(LookupError), freshness.accepting(Knowledge(1, life=1)):
            raise LookupError
        freshness.taken(OF_N1, 5)
        assert not freshness.knows_taken(N1, Knowledge(4, life=1, answers=1))


def test_changes_are_remembered_as_long_as_any_answer_is_awaited() -> None:
    freshness = Freshness()
    freshness.begin(1)
    old = Knowledge(1, life=1, slow=True)
    with freshness.awaiting(1):
        with freshness.awaiting(1), freshness.awaiting(2):
            freshness.pool_changed(N1, 5)
            freshness.claim_changed(CLAIM, 5)
            freshness.taken(OF_N1, 5)
        assert not freshness.holds_for_pool(N1, old)
        assert not freshness.holds_for_claim(CLAIM, old)
        assert not freshness.knows_taken(N1, old)
        with freshness.accepting(Knowledge(5, life=1)):
            freshness.taken(OF_N1, 6)
    # Every answer from now on is asked for at a later version.
    assert freshness.holds_for_pool(N1, old)
    assert freshness.holds_for_claim(CLAIM, old)
    assert freshness.knows_taken(N1, old)
    freshness.pool_changed(N1, 7)
    freshness.claim_changed(CLAIM, 7)
    freshness.taken(OF_N1, 7)
    assert freshness.holds_for_pool(N1, old)
    assert freshness.holds_for_claim(CLAIM, old)
    assert freshness.knows_taken(N1, old)


def test_a_pool_is_undecided_while_an_answer_is_awaited_that_is_older_than_its_change() -> None:
    freshness = Freshness()
    with freshness.awaiting(5):
        freshness.pool_changed(N1, 5)
        assert not freshness.is_undecided(N1)
        with freshness.awaiting(4):
            assert freshness.is_undecided(N1)
            assert not freshness.is_undecided(N2)
        assert not freshness.is_undecided(N1)
