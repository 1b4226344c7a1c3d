"""Decisions need nothing but the changes and questions that they are sent, as the messages to a worker."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from examples import share

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    Decisions,
    DevicesSetAside,
    GrantDevices,
    GroupWrite,
    NeedsSlowLane,
    NodeTurnedDown,
    NotYet,
    ObjectGone,
    ObjectSeen,
    Owner,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    PoolBusy,
    PoolChanged,
    PoolOwners,
    Proceed,
    Refuse,
    SetAside,
    Settings,
    Wait,
    Watched,
    Write,
    rank_of_group,
)
from controller.allocate.worker.sent_answers import Answer, decision_of, packed_answer
from controller.allocate.worker.wire import (
    Code,
    Frame,
    Frames,
    Start,
    change_of,
    frame,
    frame_of_answer,
    frame_of_change,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, PoolName, Uid
from dra_driver.api.names import ALLOCATION_GATE, CONTROLLER_TAINT, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.ownership import PoolID
from dra_driver.structured import NodePolicy, PoolPolicy, Strategy

OURS, OTHER, NS = DriverName("gpu.example.com"), DriverName("nic.example.com"), "default"
NODES = tuple(f"n{i}" for i in range(5))
SETTINGS = Settings(drivers=(OURS,))
POLICIES = (PoolPolicy(), PoolPolicy(Strategy.BEST_FIT, NodePolicy.SPREAD))


def sent(message: bytes) -> Frame:
    """The message as it is received, however its bytes arrive."""
    frames = Frames()
    received = [f for i in range(0, len(message), 1000) for f in frames.feed(message[i : i + 1000])]
    assert len(received) == 1
    return received[0]


class Both:
    """Decisions here, and a worker's that hears of everything through messages."""

    def __init__(self) -> None:
        start = codec.decode(Start, sent(frame(Code.START, 0, Start(SETTINGS, 1, 0))).body)
        assert start.settings == SETTINGS
        self.here, self.there = Decisions(SETTINGS, lambda: 0.0), Decisions(start.settings, lambda: 0.0)
        self.journal = Journal()
        self.journal.send_to(self._send)
        self.changes: list[Change] = []
        self.owners = PoolOwners([OURS])
        self.blocked: dict[PoolID, bool] = {}
        self.granted: dict[PoolID, frozenset[str]] = {}

    def _send(self, version: int, change: Change) -> None:
        message = sent(frame_of_change(version, change))
        assert message.number == version
        assert change_of(message) == change
        self.there.apply(change_of(message))

    def apply(self, change: Change) -> None:
        self.here.apply(change)
        self.journal.apply(change)
        self.changes.append(change)
        match change:
            case PoolChanged(pool, blocked, _, granted):
                self.blocked[pool] = blocked
                self.granted[pool] = granted
            case ObjectSeen(ResourceSlice() as item):
                self.owners.put(item)
            case ObjectGone(kind, key) if kind is ResourceSlice:
                self.owners.remove(key.name)

    def seen(self, kind: type[Watched], body: dict[str, Any]) -> None:
        self.apply(ObjectSeen(codec.convert(kind, body)))

    def decide(self, pod: PodID, now: float, *, set_aside: bool = False) -> PodAnswer:
        question = PodQuestion(pod, now, set_aside=set_aside)
        answer = self.here.decide(question)
        message = sent(frame(Code.QUESTION, 7, question))
        there = self.there.decide(codec.decode(PodQuestion, message.body))
        body = packed_answer(there, there.version, 3, slow=False)
        received = codec.decode(Answer, sent(frame_of_answer(7, body)).body)
        elsewhere = received.with_decision(decision_of(received, self.journal.claim))
        # Steps depend on what was asked before; of claims that are told of, the newest version arrives.
        here = answer.decision
        if isinstance(here, Refuse):
            newest = (self.journal.claim(c.key) for c in here.claims)
            here = replace(here, claims=tuple(c for c in newest if c is not None))
        assert replace(elsewhere, steps=answer.steps) == replace(answer, decision=here)
        return answer

    def renewed(self) -> tuple[Decisions, Decisions]:
        """Decisions that have heard of every change, and others that have heard what the journal says."""
        every, new = Decisions(SETTINGS, lambda: 0.0), Decisions(SETTINGS, lambda: 0.0)
        for change in self.changes:
            every.apply(change)
        for change in self.journal.replay():
            new.apply(change)
        return every, new

    def ours(self, allocation: AllocationResult) -> bool:
        results = [(PoolID(r.driver, r.pool), r) for r in allocation.devices.results]
        return all(
            self.owners.of(p) is Owner.OURS and not self.blocked.get(p) for p, _ in results
        ) and not any(r.device in self.granted.get(p, ()) and not r.admin_access for p, r in results)


def without_claims(decision: Decision) -> Decision:
    """The decision; a refusal without the claims that it is told to, which are fewer the second time."""
    return replace(decision, claims=()) if isinstance(decision, Refuse) else decision


def node_body(rng: random.Random, name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"zone": rng.choice("ab")}},
        "spec": {"unschedulable": rng.random() < 0.1},
        "status": {"allocatable": {"cpu": str(rng.randrange(2, 9)), "memory": "8Gi", "pods": "9"}},
    }


def slice_body(rng: random.Random, node: str, driver: str, *, protected: bool = True) -> dict[str, Any]:
    taint = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
    devices = [
        {
            "name": f"d{i}",
            "capacity": {"memory": {"value": f"{rng.choice([40, 80])}Gi"}},
            "taints": [taint] if protected else [],
        }
        for i in range(rng.randrange(1, 5))
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def claim_of(name: str, version: int, *classes: str, count: int = 1) -> ResourceClaim:
    requests = [{"name": c, "exactly": {"deviceClassName": c, "count": count}} for c in classes]
    body = {
        "metadata": {"name": name, "namespace": NS, "uid": f"{name}-{version}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests}},
    }
    return codec.convert(ResourceClaim, body)


def pod_body(
    rng: random.Random, name: str, version: int, claims: list[str], group: str = ""
) -> dict[str, Any]:
    labels = {GROUP_LABEL: group, GROUP_SIZE_LABEL: "2"} if group else {}
    return {
        "metadata": {"name": name, "namespace": NS, "uid": f"{name}-{version}", "labels": labels},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(rng.randrange(1, 4))}}}],
            "resourceClaims": [{"name": c, "resourceClaimName": c} for c in claims],
            "nodeSelector": rng.choice([{}, {}, {"zone": "a"}]),
            "schedulingGates": [{"name": ALLOCATION_GATE}],
            "priority": rng.choice([0, 0, 0, 10]),
        },
        "status": {"phase": "Pending"},
    }


class Scenario:
    """A cluster that changes at random, as the rest of the controller would report it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.both = Both()
        self.claims: dict[str, ResourceClaim] = {}
        self.assumed: dict[str, tuple[ResourceClaim, AllocationResult]] = {}
        self.pods: dict[str, Pod] = {}
        self.now = 100.0
        self.number = 0
        self.versions = 0
        self.set_aside = DevicesSetAside(None, ())
        for name, driver in (("gpu", OURS), ("nic", OTHER), ("any", "")):
            selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}] if driver else []
            self.both.seen(DeviceClass, {"metadata": {"name": name}, "spec": {"selectors": selectors}})
        for node in NODES:
            self.both.seen(Node, node_body(self.rng, node))
            self.both.seen(ResourceSlice, slice_body(self.rng, node, OURS))
        self.both.seen(ResourceSlice, slice_body(self.rng, "n0", OTHER, protected=False))

    def change(self) -> None:
        self.now += self.rng.random()
        self.number += 1
        self.rng.choice(
            [
                self.new_pod,
                self.new_pod,
                self.new_pod,
                self.new_group,
                self.pod_gone,
                self.allocated,
                self.allocated,
                self.not_written,
                self.deallocated,
                self.cluster_changes,
                self.pool_changes,
                self.sets_aside,
            ]
        )()

    def put_claim(self, claim: ResourceClaim) -> None:
        self.versions += 1
        meta = msgspec.structs.replace(claim.metadata, resource_version=str(self.versions))
        claim = msgspec.structs.replace(claim, metadata=meta)
        self.claims[claim.metadata.name] = claim
        self.both.apply(ClaimSeen(claim))

    def put_pod(self, body: dict[str, Any]) -> None:
        pod = self.pods[body["metadata"]["name"]] = codec.convert(Pod, body)
        self.both.apply(ObjectSeen(pod))

    def new_pod(self) -> None:
        name = f"p{self.rng.randrange(12)}"
        if name in self.pods:
            return
        kinds = self.rng.choice([("gpu",), ("gpu",), ("gpu", "nic"), ("nic",), ("any",)])
        if name not in self.claims and self.rng.random() < 0.9:
            self.put_claim(claim_of(name, self.number, *kinds, count=self.rng.randrange(1, 4)))
        shared = ["p0"] if self.rng.random() < 0.2 and name != "p0" else []
        self.put_pod(pod_body(self.rng, name, self.number, [name, *shared]))

    def new_group(self) -> None:
        group = f"g{self.rng.randrange(2)}"
        for name in (f"{group}-a", f"{group}-b"):
            if name not in self.pods and self.rng.random() < 0.8:
                if name not in self.claims:
                    self.put_claim(claim_of(name, self.number, "gpu"))
                self.put_pod(pod_body(self.rng, name, self.number, [name], group))

    def pod_gone(self) -> None:
        if self.pods:
            name = self.rng.choice(sorted(self.pods))
            pod = self.pods.pop(name)
            self.both.apply(ObjectGone(Pod, pod.key))
            if name in self.claims and name not in self.assumed:
                claim = self.claims.pop(name)
                self.both.apply(ClaimGone(claim.key, claim.metadata.uid))

    def allocated(self) -> None:
        """The answer to a write, then the end of the assumption."""
        if self.assumed:
            claim, allocation = self.assumed.pop(self.rng.choice(sorted(self.assumed)))
            status = msgspec.structs.replace(claim.status, allocation=allocation)
            self.put_claim(msgspec.structs.replace(claim, status=status))
            self.both.apply(ClaimAssumed(claim.key, claim.metadata.uid, None))

    def not_written(self) -> None:
        if self.assumed:
            claim, _ = self.assumed.pop(self.rng.choice(sorted(self.assumed)))
            self.both.apply(ClaimAssumed(claim.key, claim.metadata.uid, None))

    def deallocated(self) -> None:
        held = [
            c for n, c in self.claims.items() if c.status.allocation is not None and n not in self.assumed
        ]
        if held:
            claim = self.rng.choice(held)
            status = msgspec.structs.replace(claim.status, allocation=None)
            self.put_claim(msgspec.structs.replace(claim, status=status))
            pod = self.pods.get(claim.metadata.name)
            if pod is not None:
                uid = pod.metadata.uid
                self.both.apply(NodeTurnedDown(uid, self.rng.choice(NODES), self.now))
                self.both.apply(PodExpected(PodID(pod.key, uid), None))

    def sets_aside(self) -> None:
        """Devices are set aside for a pod that waits; often they are not any more."""
        if self.pods and self.rng.random() < 0.6:
            pod = self.pods[self.rng.choice(sorted(self.pods))]
            answer = self.both.decide(PodID(pod.key, pod.metadata.uid), self.now, set_aside=True)
            if isinstance(answer.decision, SetAside):
                self.set_aside = DevicesSetAside(answer.decision.rank, answer.decision.places)
                self.both.apply(self.set_aside)
        else:
            self.set_aside = DevicesSetAside(None, ())
            self.both.apply(self.set_aside)

    def cluster_changes(self) -> None:
        node = self.rng.choice(NODES)
        match self.rng.randrange(5):
            case 0:
                self.both.seen(Node, node_body(self.rng, node))
            case 1:
                self.both.seen(ResourceSlice, slice_body(self.rng, node, OURS, protected=node != "n4"))
            case 2:
                self.both.apply(ObjectGone(ResourceSlice, ObjectKey("", f"{node}-{OURS}")))
            case 3:
                busy = ("d0",) if self.rng.random() < 0.7 else ()
                self.both.apply(PoolBusy(PoolID(OURS, PoolName(node)), busy))
            case _:
                taint = {"key": "example.com/sick", "effect": self.rng.choice(["NoSchedule", "None"])}
                spec = {"deviceSelector": {"pool": node}, "taint": taint}
                self.both.seen(DeviceTaintRule, {"metadata": {"name": "rule"}, "spec": spec})

    def pool_changes(self) -> None:
        pool = PoolID(OURS, PoolName(self.rng.choice(NODES)))
        blocked = self.rng.random() < 0.2
        granted = frozenset({"d0"} if self.rng.random() < 0.3 else ())
        self.both.apply(PoolChanged(pool, blocked, self.rng.choice(POLICIES), granted))

    def decide(self) -> PodAnswer | None:
        """Ask about a pod, and assume what is answered."""
        if not self.pods:
            return None
        pod = self.pods[self.rng.choice(sorted(self.pods))]
        self.asked = PodID(pod.key, pod.metadata.uid)
        answer = self.both.decide(self.asked, self.now)
        # An answer takes nothing: it is the same until something changes.
        again = self.both.decide(PodID(pod.key, pod.metadata.uid), self.now)
        assert without_claims(again.decision) == without_claims(answer.decision)
        match answer.decision:
            case Write():
                self.assume(PodID(pod.key, pod.metadata.uid), answer.decision)
            case GroupWrite(writes):
                for pod_id, write in writes:
                    self.assume(pod_id, write)
            case Wait() | Proceed() | Refuse() | NeedsSlowLane() | SetAside() | GrantDevices() | NotYet():
                pass
        return answer

    def assume(self, pod: PodID, write: Write) -> None:
        for claim, allocation in write.allocations:
            assert claim == self.claims[claim.metadata.name]
            assert self.both.ours(allocation)
            self.assumed[claim.metadata.name] = claim, allocation
            self.both.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
        self.both.apply(PodExpected(pod, write.node))


@pytest.mark.parametrize("worlds", share([2, 4], 1))
def test_a_worker_that_is_fed_with_messages_answers_the_same(worlds: int) -> None:
    kinds: Counter[type] = Counter()
    for seed in range(worlds):
        world = Scenario(seed)
        for _ in range(150):
            world.change()
            answer = world.decide()
            if answer is not None:
                kinds[type(answer.decision)] += 1
    assert all(kinds[kind] > 5 for kind in (Wait, Proceed, Refuse, Write, GroupWrite)), kinds


@pytest.mark.long
def test_a_worker_that_is_started_anew_answers_the_same() -> None:
    """All but groups that hold a part of what they need: their time begins anew."""
    compared = 0
    for seed in range(4):
        world = Scenario(seed)
        for _ in range(40):
            world.change()
            world.decide()
            every, new = world.both.renewed()
            for pod in world.pods.values():
                question = PodQuestion(PodID(pod.key, pod.metadata.uid), world.now)
                before, after = every.decide(question), new.decide(question)
                assert without_claims(after.decision) == without_claims(before.decision)
                assert after.avoided == before.avoided
                compared += 1
    assert compared > 200


def test_no_device_is_given_twice_while_it_is_assumed_or_allocated() -> None:
    world = Scenario(7)
    for _ in range(300):
        world.change()
        world.decide()
        held = [
            (r.driver, r.pool, r.device)
            for name, claim in world.claims.items()
            for allocation in (world.assumed[name][1] if name in world.assumed else claim.status.allocation,)
            if allocation is not None
            for r in allocation.devices.results
        ]
        assert len(held) == len(set(held))


@pytest.mark.parametrize("worlds", share([2, 4], 1))
def test_no_pod_gets_what_is_set_aside_for_one_that_comes_first(worlds: int) -> None:
    kept = before = 0
    for seed in range(worlds):
        world = Scenario(seed)
        for _ in range(200):
            world.change()
            if world.set_aside.rank is None:
                world.sets_aside()
            answer = world.decide()
            if answer is None or world.set_aside.rank is None:
                continue
            theirs = {place.pod for place in world.set_aside.places}
            aside = {device for place in world.set_aside.places for device in devices(*place.allocations)}
            match answer.decision:
                case Write() | GroupWrite() as decision:
                    pass
                case _:
                    continue
            pods = answer.group.pods if answer.group is not None else (world.asked,)
            writes = [decision] if isinstance(decision, Write) else [w for _, w in decision.writes]
            rank = rank_of_group([world.pods[p.key.name] for p in pods])
            given = {d for write in writes for d in devices(*(a for _, a in write.allocations))}
            if rank > world.set_aside.rank and theirs.isdisjoint(pods):
                assert given.isdisjoint(aside)
                kept += 1
            else:
                before += 1
    assert kept > 10
    assert before > 10


def devices(*allocations: AllocationResult) -> set[tuple[str, str, str]]:
    return {(r.driver, r.pool, r.device) for a in allocations for r in a.devices.results}


def test_a_pod_that_is_gone_is_not_waited_for() -> None:
    both = Both()
    answer = both.decide(PodID(ObjectKey(NS, "p"), Uid("u")), 0.0)
    assert answer.decision == Wait("the pod does not exist")
    both.apply(PodExpected(PodID(ObjectKey(NS, "p"), Uid("u")), "n0"))
