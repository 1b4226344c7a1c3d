"""Whose turn it is to be asked about: no pod, and no namespace, keeps others from their turn."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import builders
import pytest
from controller_harness import NS, Harness, cluster_of, pod
from preemption_world import create, evictions, forge, holder, lives, play, served, until

from controller.allocate.decide import Rank
from controller.allocate.preempting.turns import Turns, WaitingPod
from controller.config import PreemptionMode, PreemptionSettings
from dra_driver.api.core import PODS
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import Forbidden
from dra_driver.kube.clock import rfc3339


def waiting(number: int, *, priority: int = 0, namespace: str = "default") -> WaitingPod:
    key = ObjectKey(namespace, f"pod-{number:04}")
    return WaitingPod(Rank(-priority, "", key), key, Uid(f"{namespace}-{number}"), 0.0)


def create_from_template(h: Harness, name: str, namespace: str, priority: int, **spec: Any) -> None:
    """Create a pod whose claim is its own: all that ask for the same have one signature."""
    body = builders.pod(
        name,
        namespace=namespace,
        gated=True,
        metadata={"creationTimestamp": rfc3339(h.clock.now())},
        priority=priority,
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        **spec,
    )
    body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": name}]
    uid = h.cluster.put(PODS, body)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    owned = {"ownerReferences": [owner]}
    h.cluster.put(
        RESOURCE_CLAIMS, builders.claim(name, builders.request(), namespace=namespace, metadata=owned)
    )


class Questions:
    """One question a second, while something changes all the time.

    Args:
        pods: that wait.
    """

    def __init__(self, *pods: WaitingPod) -> None:
        self.pods = list(pods)
        self.turns = Turns()
        self._times = itertools.count(10)

    def ask(self) -> WaitingPod | None:
        """Ask in vain; return about whom."""
        now = float(next(self._times))
        found = self.turns.next(self.pods, now, now, most=1)
        for one in found:
            self.turns.take(one.key, one.uid, now, now)
            self.turns.miss(one.uid, now)
        return found[0] if found else None


def test_all_that_wait_have_a_turn_however_many_come_before_them() -> None:
    last = waiting(999, priority=1)
    questions = Questions(*(waiting(i, priority=1000) for i in range(200)), last)
    asked = [questions.ask() for _ in range(450)]
    assert last in asked
    # New ones of higher priority do not change that.
    new = itertools.count(1000)
    questions = Questions(*(waiting(i, priority=1000) for i in range(20)), last)
    asked = []
    for _ in range(60):
        questions.pods.append(waiting(next(new), priority=1000)._replace(since=60.0))
        asked.append(questions.ask())
    assert last in asked


def test_the_highest_priority_comes_first_of_those_that_were_asked_as_often() -> None:
    questions = Questions(*(waiting(i, priority=i) for i in range(10)))
    first = questions.ask()
    assert first is not None
    assert first.rank.level == -9
    questions.pods.append(waiting(10, priority=10))
    found = [questions.ask(), questions.ask()]
    assert waiting(10, priority=10) in found


def test_namespaces_take_turns() -> None:
    many = [waiting(i, priority=1000, namespace="many") for i in range(500)]
    few = waiting(0, namespace="few")
    questions = Questions(*many, few)
    assert few in [questions.ask() for _ in range(6)]


def test_a_pod_that_may_not_preempt_as_it_is_keeps_nobody_from_a_turn() -> None:
    turns = Turns()
    pods = [waiting(i, priority=1000) for i in range(100)]
    last = waiting(999)
    for second in range(20):
        found = turns.next([*pods, last], float(second), second, most=32)
        if last in found:
            return
        for one in found:
            turns.pass_over(one.key, one.uid, float(second))
    raise AssertionError("it was never looked at")


def test_what_was_asked_in_vain_is_asked_less_often() -> None:
    questions = Questions(waiting(0))
    asked = sum(questions.ask() is not None for _ in range(3600))
    assert 12 <= asked <= 24
    # Where nothing changes it is asked now and then all the same.
    turns, one = Turns(), waiting(0)
    times = []
    for second in range(3600):
        for found in turns.next([one], float(second), "the same", most=1):
            turns.take(found.key, found.uid, float(second), "the same")
            turns.miss(found.uid, float(second))
            times.append(second)
    assert 6 <= len(times) <= 12


def test_nothing_is_kept_of_pods_that_do_not_wait() -> None:
    turns, one = Turns(), waiting(0)
    turns.take(one.key, one.uid, 1.0, 1)
    turns.miss(one.uid, 1.0)
    assert not turns.is_due(one.uid, 2.0, 2)
    turns.keep(set(), set())
    assert turns.is_due(one.uid, 2.0, 2)


def test_pods_that_no_removal_helps_do_not_hide_one_that_it_helps() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        for count in range(2, 42):
            create(h, f"greedy-{count}", count, priority=1000)
        create(h, "high", priority=100)
        # Others come and go all the time.
        for number in range(100):
            create(h, f"passing-{number}", 50, priority=0)
            await asyncio.sleep(2)
            h.cluster.remove(PODS, f"passing-{number}", NS)
            if served(h, "high"):
                break
        assert served(h, "high")
        assert evictions(h) == ["low"]

    play(cluster_of(n1=(80,)), scenario)


def test_a_round_that_cannot_go_on_after_a_restart_does_not_hide_another() -> None:
    """The first of them is left to kube-scheduler, which is making room for its pod."""

    async def before(h: Harness) -> None:
        for name in ("a", "b"):
            await holder(h, name, priority=1)
        create(h, "first", priority=200, gated=False)
        create(h, "second", priority=100)
        await asyncio.sleep(0.5)
        victim = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        pod(h.cluster, "cleared", priority=0, nodeName="n1")
        h.cluster.edit(PODS, "cleared", {"status": {"conditions": [victim]}}, NS)
        h.report("first", "0/1 nodes are available: 1 Insufficient cpu.", nominated="n1")
        forge(h.cluster, "first", ["a"])
        forge(h.cluster, "second", ["a", "b"])

    async def after(h: Harness) -> None:
        # Who is higher gets the device, but for the other one it is that room is made.
        await until(lambda: len(evictions(h)) == 1)

    lives(cluster_of(n1=(80, 80)), [before, after])


def test_a_pod_on_which_no_round_can_be_written_down_hides_no_other() -> None:
    """As where an admission webhook refuses it."""

    async def scenario(h: Harness) -> None:
        def refuse(verb: str, kind: str, name: str, _: str) -> None:
            if (verb, kind, name) == ("apply", "Pod", "refused"):
                raise Forbidden("an admission webhook refuses it", code=403)

        await holder(h, "low", priority=1)
        h.cluster.before = refuse
        create(h, "refused", priority=1000)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high") or served(h, "refused"))
        assert evictions(h) == ["low"]

    play(cluster_of(n1=(80,)), scenario)


def test_decisions_that_cannot_be_written_down_do_not_use_up_the_rate() -> None:
    async def scenario(h: Harness) -> None:
        def refuse(verb: str, kind: str, name: str, _: str) -> None:
            if (verb, kind, name) == ("apply", "Pod", "refused"):
                raise Forbidden("an admission webhook refuses it", code=403)

        for name in ("low-a", "low-b", "low-c", "low-d"):
            await holder(h, name, priority=1)
        h.cluster.before = refuse
        create(h, "refused", 4, priority=1000)
        await asyncio.sleep(20)
        create(h, "high", priority=100)
        await until(lambda: len(evictions(h)) == 1, 30.0)

    play(
        cluster_of(n1=(80, 80, 80, 80)), scenario, PreemptionSettings(mode=PreemptionMode.ON, per_minute=1.0)
    )


@pytest.mark.parametrize("hides", ["never", "refused"])
def test_a_pod_that_cannot_preempt_hides_none_of_another_namespace_that_asks_for_the_same(hides: str) -> None:
    async def scenario(h: Harness) -> None:
        def refuse(verb: str, kind: str, name: str, _: str) -> None:
            if (verb, kind, name) == ("apply", "Pod", "first"):
                raise Forbidden("an admission webhook refuses it", code=403)

        await holder(h, "low", priority=1)
        h.cluster.before = refuse
        policy = {"preemptionPolicy": "Never"} if hides == "never" else {}
        create_from_template(h, "first", "other", 100, **policy)
        await asyncio.sleep(2)
        create_from_template(h, "second", NS, 100)
        await until(lambda: evictions(h) == ["low"])

    play(cluster_of(n1=(80,)), scenario)


def test_a_pod_that_does_not_want_to_preempt_hides_none_of_its_namespace() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        create_from_template(h, "first", NS, 100, preemptionPolicy="Never")
        await asyncio.sleep(2)
        create_from_template(h, "second", NS, 100)
        await until(lambda: evictions(h) == ["low"])

    play(cluster_of(n1=(80,)), scenario)


def test_a_namespace_that_is_new_again_and_again_does_not_come_first() -> None:
    turns = Turns()
    one = waiting(0, priority=1, namespace="patient")
    asked = []
    for second in range(10, 70):
        now = float(second)
        # Its pods of a moment ago are deleted.
        new = waiting(second, priority=1000, namespace=f"new-{second}")._replace(since=now - 1.0)
        turns.keep({one.uid, new.uid}, {"patient", new.key.namespace})
        for found in turns.next([one, new], now, second, most=1):
            turns.take(found.key, found.uid, now, second)
            turns.miss(found.uid, now)
            asked.append(found)
    assert asked.count(one) >= 3
