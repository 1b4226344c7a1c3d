"""What a new worker learns while things go on changing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import builders
import pytest
from builders import DRIVER

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    DecisionOverran,
    Decisions,
    DevicesSetAside,
    NamespaceStruck,
    NeedsSlowLane,
    ObjectGone,
    ObjectSeen,
    PodExpected,
    PodID,
    PodPlacement,
    PodQuestion,
    PoolChanged,
    Rank,
    Settings,
)
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

NS = builders.NAMESPACE
NAMES = [f"x{i}" for i in range(6)]


class Told:
    """What a worker knows by the changes that it was sent: of each thing the last one."""

    def __init__(self) -> None:
        self.known: dict[object, object] = {}

    def apply(self, change: Change) -> None:
        match change:
            case ObjectSeen(item):
                self.known[type(item), item.key] = item.metadata.resource_version
            case ObjectGone(kind, key):
                self.known.pop((kind, key), None)
                self.known.pop(("expected", key), None)
            case ClaimSeen(claim):
                self.known["claim", claim.key] = claim.metadata.resource_version
            case ClaimGone(key):
                self.known.pop(("claim", key), None)
            case ClaimAssumed(key, _, allocation):
                self._put(("assumed", key), allocation)
            case PoolChanged(pool, blocked):
                self.known["pool", pool] = blocked
            case PodExpected(pod, node):
                self._put(("expected", pod.key), node if (Pod, pod.key) in self.known else None)
            case DevicesSetAside(rank):
                self._put("set aside", rank)
            case _:
                raise AssertionError(change)

    def _put(self, what: object, value: object) -> None:
        self.known.pop(what, None)
        if value is not None:
            self.known[what] = value


def random_change(rng: random.Random) -> Change:
    name = rng.choice(NAMES)
    key, uid = ObjectKey(NS, name), Uid(f"uid-{name}")
    version = {"resourceVersion": str(rng.randrange(1000))}
    held = codec.convert(AllocationResult, builders.allocation(builders.result("n1", f"gpu-{name}")))
    changes: list[Callable[[], Change]] = [
        lambda: ObjectSeen(pod_of(name, version)),
        lambda: ObjectGone(Pod, key),
        lambda: ClaimSeen(claim_of(name, version)),
        lambda: ClaimGone(key, uid),
        lambda: ClaimAssumed(key, uid, held),
        lambda: ClaimAssumed(key, uid, None),
        lambda: PoolChanged(
            PoolID(DRIVER, PoolName(name)), rng.random() < 0.5, PoolPolicy(), frozenset({"gpu-0"})
        ),
        lambda: DevicesSetAside(None, ()),
        lambda: DevicesSetAside(Rank(0, "", key), (PodPlacement(PodID(key, uid), "n1", (held,)),)),
        lambda: PodExpected(PodID(key, uid), rng.choice(["n1", "n2", None])),
    ]
    return rng.choice(changes)()


def pod_of(name: str, version: dict[str, Any]) -> Pod:
    return codec.convert(Pod, builders.pod(name, name, uid=f"uid-{name}", metadata=version))


def claim_of(name: str, version: dict[str, Any]) -> ResourceClaim:
    return codec.convert(ResourceClaim, builders.claim(name, uid=f"uid-{name}", metadata=version))


@pytest.mark.parametrize("seed", range(200))
def test_a_worker_that_is_told_while_things_change_knows_the_same_as_one_that_saw_it_all(seed: int) -> None:
    rng = random.Random(seed)
    journal, first, second = Journal(), Told(), Told()
    journal.send_to(lambda _, change: first.apply(change))
    for _ in range(rng.randrange(40)):
        journal.apply(random_change(rng))

    def send(_: int, change: Change) -> None:
        first.apply(change)
        second.apply(change)

    journal.send_to(send)
    for change in journal.replay():
        second.apply(change)
        for _ in range(rng.choice([0, 0, 1, 3])):
            journal.apply(random_change(rng))
    assert second.known == first.known


def replayed(journal: Journal) -> Decisions:
    """What a new worker decides with."""
    decisions = Decisions(Settings(drivers=(DRIVER,)), time.thread_time)
    for change in journal.replay():
        decisions.apply(change)
    return decisions


def question_of(name: str, now: float) -> PodQuestion:
    return PodQuestion(PodID(ObjectKey(NS, name), Uid(f"uid-{name}")), now)


def test_decisions_that_ended_a_worker_count_although_the_pod_is_deleted_at_once() -> None:
    journal = Journal()
    for at in range(3):
        name = f"x{at}"
        journal.apply(ClaimSeen(claim_of(name, {})))
        journal.apply(ObjectSeen(pod_of(name, {})))
        if at == 1:
            journal.apply(ObjectGone(Pod, ObjectKey(NS, name)))
        journal.apply(DecisionOverran(ObjectKey(NS, name), float(at + 1)))
        journal.apply(ObjectGone(Pod, ObjectKey(NS, name)))
    journal.apply(ClaimSeen(claim_of("x5", {})))
    journal.apply(ObjectSeen(pod_of("x5", {})))
    # Neither deleting the pod before nor afterwards has its namespace begin anew with each worker.
    assert replayed(journal).decide(question_of("x5", 4.0)).decision == NeedsSlowLane()
    assert replayed(journal).decide(question_of("x5", 500.0)).decision != NeedsSlowLane()


def test_what_a_worker_has_learned_of_a_question_is_known_to_the_next() -> None:
    journal = Journal()
    journal.apply(ClaimSeen(claim_of("x0", {})))
    journal.apply(ObjectSeen(pod_of("x0", {})))
    question = question_of("x0", 10.0)
    for _ in range(2):
        first = replayed(journal)
        answer = first.stopped(question, "2 s of CPU time", 2.0)
        assert answer.pause >= 40.0
        journal.learn(question.pod.key, answer.group, first.learned(question))
    assert answer.pause == 80.0, "the second pause is longer"
    again = replayed(journal).remembered(question_of("x0", 11.0))
    assert again is not None
    assert again.pause == 79.0
    # Each was counted once.
    learned = replayed(journal).learned(question)
    assert learned.namespace is not None
    assert learned.namespace.number == 2
    journal.apply(ObjectGone(Pod, question.pod.key))
    assert [c for c in journal.replay() if not isinstance(c, ClaimSeen)] == [learned.namespace]


def test_a_question_that_was_counted_is_not_counted_again_for_the_next_worker() -> None:
    journal = Journal()
    journal.apply(ClaimSeen(claim_of("x0", {})))
    journal.apply(ObjectSeen(pod_of("x0", {})))
    question = question_of("x0", 10.0)
    journal.apply(DecisionOverran(question.pod.key, 9.0))
    for _ in range(3):
        learned = replayed(journal).learned(question)
        assert learned.namespace == NamespaceStruck(NS, 1, 9.0)
        journal.learn(question.pod.key, None, learned)
