"""Going through all users of a claim, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import virtual_time

from controller.allocate.walks import PAUSE_SECONDS, STEP, Walks
from dra_driver.api.meta import ObjectKey


class Users:
    """Users by claim, and those that something was done with, in order."""

    def __init__(self, **number: int) -> None:
        self.of = {
            ObjectKey(*claim.split("_")): [ObjectKey(claim.split("_")[0], f"p{i:05}") for i in range(count)]
            for claim, count in number.items()
        }
        self.done: list[ObjectKey] = []
        self.walks: Walks[ObjectKey] = Walks(self.after, self.done.append)

    def after(self, claim: ObjectKey, last: ObjectKey | None, most: int) -> Sequence[ObjectKey]:
        return [key for key in self.of[claim] if last is None or key > last][:most]


A, B, OTHER = ObjectKey("ns", "a"), ObjectKey("ns", "b"), ObjectKey("other", "c")


def test_the_users_of_most_claims_are_done_at_once() -> None:
    users = Users(ns_a=STEP - 1)

    async def scenario() -> None:
        users.walks.begin(A)
        assert users.done == users.of[A]
        await asyncio.sleep(10 * PAUSE_SECONDS)
        assert len(users.done) == STEP - 1

    virtual_time.run(scenario())


def test_thousands_are_done_some_at_a_time_and_each_of_them() -> None:
    users = Users(ns_a=10 * STEP)

    async def scenario() -> None:
        users.walks.begin(A)
        assert len(users.done) == STEP
        await asyncio.sleep(PAUSE_SECONDS * 1.5)
        assert len(users.done) == 2 * STEP
        gone = users.of[A].pop(2 * STEP - 1)  # the last one that was done
        late = ObjectKey("ns", "p99999")
        users.of[A].append(late)
        await asyncio.sleep(20 * PAUSE_SECONDS)
        assert users.done == [*users.of[A][: 2 * STEP - 1], gone, *users.of[A][2 * STEP - 1 :]]

    virtual_time.run(scenario())


def test_what_changes_all_the_time_is_gone_through_once_more_and_not_for_each_change() -> None:
    users = Users(ns_a=4 * STEP)

    async def scenario() -> None:
        for _ in range(1_000):
            users.walks.begin(A)
        await asyncio.sleep(100 * PAUSE_SECONDS)
        assert users.done == users.of[A] * 2
        users.walks.begin(A)
        await asyncio.sleep(100 * PAUSE_SECONDS)
        assert users.done == users.of[A] * 3

    virtual_time.run(scenario())


def test_another_namespace_has_its_turn_whatever_one_has_begun() -> None:
    number = {f"ns_c{i}": 3 * STEP for i in range(50)}
    users = Users(**number, other_c=3 * STEP)

    async def scenario() -> None:
        for claim in users.of:
            users.walks.begin(claim)
        await asyncio.sleep(6 * PAUSE_SECONDS)
        assert [key for key in users.done if key.namespace == "other"] == users.of[OTHER]

    virtual_time.run(scenario())


def test_nothing_is_done_after_the_end() -> None:
    users = Users(ns_a=3 * STEP, ns_b=3 * STEP)

    async def scenario() -> None:
        users.walks.begin(A)
        users.walks.begin(B)
        users.walks.begin(A)
        users.walks.close()
        await asyncio.sleep(100 * PAUSE_SECONDS)
        assert len(users.done) == 2 * STEP

    virtual_time.run(scenario())
