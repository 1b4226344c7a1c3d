"""For which pods devices are granted, how many at a time, and when that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, NAMESPACE
from fake_client import FakeClient
from fake_grants import FakeGrants

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import GrantDevices, GrantedDevices, GrantedNode, PodID, Rank, rank_of
from controller.allocate.granting import Ending, PodGrants
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.names import GRANTS
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, AllocationResult, ResourceSlice
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID, grant_key_of_pod
from dra_driver.publishing.grants import GrantState

REFUSED = f'plugin "DynamicResources": add allocation and reservation to claim {NAMESPACE}/c: x'
NO_PLACE = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
POLICY = f"ValidatingAdmissionPolicy '{GRANTS}' denied request"


def pool(node: str) -> PoolID:
    return PoolID(DRIVER, PoolName(node))


def key_of(name: str) -> str:
    return grant_key_of_pod(NAMESPACE, Uid(f"uid-{name}"))


class SimulatedCluster:
    """Nodes with two GPUs each, and pods that ask for extended resources."""

    def __init__(self, most: int = 16) -> None:
        self.cluster = FakeClient()
        for i in range(1, 5):
            gpus = [builders.device(f"gpu-{k}") for k in range(2)]
            self.cluster.put(RESOURCE_SLICES, builders.resource_slice(f"n{i}", *gpus))
        self.pods = Informer(self.cluster, PODS)
        self.claims = Informer(self.cluster, RESOURCE_CLAIMS)
        self.assume_cache = AssumeCache(self.claims, Journal(), Signal())
        self.port = FakeGrants()
        self.looked: list[str] = []
        self.over: list[tuple[str, Ending]] = []
        self._most = most
        self.grants: PodGrants

    def start(self) -> None:
        """Begin as a process does: nothing is granted."""
        self.grants = PodGrants(
            self.port,
            self.assume_cache,
            self.slices,
            self.pods,
            virtual_time.LoopClock(),
            lambda key: self.looked.append(key.name),
            self.rank,
            self._most,
        )
        self.grants.ended.listen(self.ended)

    def ended(self, pod: PodID, _nodes: tuple[str, ...], why: Ending) -> None:
        self.over.append((pod.key.name, why))

    def slices(self, pool: PoolID) -> list[ResourceSlice]:
        return [s for s in self.cluster.all(RESOURCE_SLICES) if s.spec.pool.name == pool.pool]

    def rank(self, key: ObjectKey) -> Rank:
        found = self.pods.get(key)
        assert found is not None
        return rank_of(found)

    def make(self, name: str, *claims: str, namespace: str = NAMESPACE, **spec: Any) -> None:
        container = builders.container()
        container["resources"] = {"requests": {"example.com/gpu": "1"}}
        containers = [builders.container() if claims else container]
        uid = f"uid-{name}"
        body = builders.pod(name, *claims, namespace=namespace, uid=uid, containers=containers, **spec)
        self.cluster.put(PODS, body)

    def cut_gpu(self, node: str) -> None:
        """Publish a GPU that is cut into halves."""
        sets = [{"name": "gpu-0", "counters": {"memory": {"value": "2"}}}]
        uses = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "1"}}}]
        halves = [builders.device(f"gpu-0-{i}", consumesCounters=uses) for i in range(2)]
        self.cluster.put(RESOURCE_SLICES, builders.resource_slice(node, *halves, count=2))
        counters = builders.resource_slice(node, name=f"{node}-counters", count=2, sharedCounters=sets)
        self.cluster.put(RESOURCE_SLICES, counters)

    def pod(self, name: str, namespace: str = NAMESPACE) -> Pod:
        return self.cluster.obj(PODS, name, namespace)

    def report(self, name: str, reason: str, message: str = "") -> None:
        """Do as kube-scheduler, which clears the nomination when it reports."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        self.cluster.edit(
            PODS, name, {"status": {"conditions": [condition], "nominatedNodeName": None}}, NAMESPACE
        )

    def begin(
        self,
        name: str,
        *devices: str,
        namespace: str = NAMESPACE,
        instead: bool = False,
        slow: bool = False,
    ) -> str:
        """Grant devices, given as ``node/device``, to a pod; return why that is not done."""
        of_node: dict[str, list[str]] = {}
        for one in devices:
            node, _, device = one.partition("/")
            of_node.setdefault(node, []).append(device)
        nodes = tuple(
            GrantedNode(node, (GrantedDevices(pool(node), key_of(name), tuple(names)),))
            for node, names in of_node.items()
        )
        decision = GrantDevices(nodes, instead=instead, slow=slow)
        return self.grants.begin(self.pod(name, namespace), decision)[0]

    def open(self, name: str, *, first: bool = True) -> None:
        """Let kube-scheduler see a pod, nominated to the best node."""
        self.port.stored()
        node = self.grants.opens(self.pod(name))
        assert node
        self.nominate(name, node)
        self.grants.opened(self.pod(name), self.pod(name).metadata.resource_version or "", first=first)

    def nominate(self, name: str, node: str) -> None:
        self.cluster.edit(PODS, name, {"status": {"nominatedNodeName": node}}, NAMESPACE)

    def extended_claim(self, name: str, device: str) -> None:
        """Do as kube-scheduler: allocate a claim for the extended resources of a pod."""
        node, _, device = device.partition("/")
        status = builders.allocation(builders.result(node, device))
        self.cluster.put(RESOURCE_CLAIMS, builders.claim(f"{name}-extended", uid=f"c-{name}", status=status))
        made = {"resourceClaimName": f"{name}-extended", "requestMappings": []}
        self.cluster.edit(PODS, name, {"status": {"extendedResourceClaimStatus": made}}, NAMESPACE)

    async def seconds(self, seconds: float) -> None:
        """Let time pass; the pods are looked at when their time is over, as the queue does."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(min(0.5, seconds))
            for one in self.cluster.all(PODS):
                self.grants.check(one)


def run(scenario: Callable[[SimulatedCluster], Awaitable[None]], most: int = 16) -> None:
    async def main() -> None:
        world = SimulatedCluster(most)
        tasks = [asyncio.create_task(i.run()) for i in (world.pods, world.claims)]
        world.start()
        await asyncio.sleep(0.1)
        await scenario(world)
        for task in tasks:
            task.cancel()

    virtual_time.run(main())


# --- the ordinary way ---------------------------------------------------------------------------------------


def test_a_pod_goes_to_kube_scheduler_with_its_grants_which_end_when_it_has_its_devices() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        assert w.begin("p", "n1/gpu-0", "n1/gpu-1") == ""
        assert w.grants.has(w.pod("p"))
        assert not w.grants.opens(w.pod("p"))
        assert w.port.given() == {}
        w.port.stored()
        assert w.port.given() == {key_of("p"): {("n1", "gpu-0"), ("n1", "gpu-1")}}
        assert "p" in w.looked
        assert w.grants.opens(w.pod("p")) == "n1"
        w.open("p")
        assert not w.grants.opens(w.pod("p"))
        w.extended_claim("p", "n1/gpu-0")
        await w.seconds(0.1)
        assert w.over == [("p", Ending.ALLOCATED)]
        w.port.closed()
        assert not w.port.states()
        assert not w.grants.has(w.pod("p"))

    run(scenario)


def test_a_claim_of_the_pod_is_granted_by_its_own_key_and_a_unit_to_both() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.cut_gpu("n5")
        w.make("p", "c")
        await w.seconds(0.1)
        granted = tuple(GrantedDevices(pool("n5"), f"key-{i}", (f"gpu-0-{i}",)) for i in range(2))
        assert w.grants.begin(w.pod("p"), GrantDevices((GrantedNode("n5", granted),))) == ("", 0.0)
        w.port.stored()
        assert w.port.states() == {("n5", "gpu-0"): GrantState.GRANTED}
        assert w.port.given() == {"key-0": {("n5", "gpu-0-0")}, "key-1": {("n5", "gpu-0-1")}}

    run(scenario)


def test_what_is_granted_on_several_nodes_ends_together() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        assert w.begin("p", "n2/gpu-0", "n1/gpu-0", "n3/gpu-1") == ""
        assert [s.devices for s in w.grants.shown()] == [("gpu-0",), ("gpu-0",), ("gpu-1",)]
        assert {s.state for s in w.grants.shown()} == {"granting"}
        w.open("p")
        assert w.pod("p").status.nominated_node_name == "n2"
        assert list(w.grants.devices(w.pod("p"))) == ["n2", "n1", "n3"]
        w.extended_claim("p", "n3/gpu-1")
        await w.seconds(0.1)
        assert not any(state.listed for state in w.port.states().values())

    run(scenario)


def test_where_there_is_little_room_a_pod_gets_devices_of_one_node() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.port.left = 100
        assert w.begin("p", "n2/gpu-0", "n1/gpu-0") == ""
        assert set(w.port.states()) == {("n2", "gpu-0")}

    run(scenario)


# --- what is in the way -------------------------------------------------------------------------------------


def test_why_nothing_is_granted() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        for name in ("p", "q"):
            w.make(name)
        status = builders.allocation(builders.result("n2", "gpu-0"))
        w.cluster.put(RESOURCE_CLAIMS, builders.claim("taken", uid="taken", status=status))
        await w.seconds(0.1)
        w.port.obstructed = "the policy is gone"
        assert w.begin("p", "n1/gpu-0").endswith("now: the policy is gone")
        assert not w.grants.serves_instead(w.pod("p"))
        w.port.obstructed = ""
        assert w.grants.serves_instead(w.pod("p"))
        assert w.begin("p", "n2/gpu-0") == "its devices are being allocated"
        assert w.begin("q", "n1/gpu-0") == ""
        assert w.begin("p", "n1/gpu-0", "n1/gpu-1") == "its devices cannot be granted yet"
        assert set(w.port.states()) == {("n1", "gpu-0")}
        # Of several nodes those are left out of which nothing can be granted.
        assert w.begin("p", "n3/gpu-0", "n1/gpu-0", "n4/gpu-0") == ""
        assert list(w.grants.devices(w.pod("p"))) == ["n3", "n4"]

    run(scenario)


def test_nothing_is_granted_of_a_unit_in_which_an_allocation_is_being_written() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.cut_gpu("n5")
        w.make("p")
        w.cluster.put(RESOURCE_CLAIMS, builders.claim("c", uid="c"))
        await w.seconds(0.1)
        claim = w.assume_cache.get(ObjectKey(NAMESPACE, "c"))
        assert claim is not None
        body = builders.allocation(builders.result("n5", "gpu-0-1"))["allocation"]
        w.assume_cache.assume(claim, codec.convert(AllocationResult, body))
        assert w.begin("p", "n5/gpu-0-0") == "its devices are being allocated"
        w.assume_cache.release(claim)
        assert w.begin("p", "n5/gpu-0-0") == ""

    run(scenario)


def test_claims_of_a_pod_with_grants_are_not_ours() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p", "c")
        await w.seconds(0.1)
        assert not w.grants.holds([ObjectKey(NAMESPACE, "c")])
        w.begin("p", "n1/gpu-0")
        assert w.grants.holds([ObjectKey(NAMESPACE, "c")])
        w.cluster.remove(PODS, "p", NAMESPACE)
        await w.seconds(0.1)
        assert w.over == [("p", Ending.GONE)]
        assert not w.grants.holds([ObjectKey(NAMESPACE, "c")])

    run(scenario)


def test_so_many_pods_have_grants_at_a_time_and_those_of_higher_priority_come_first() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        for i, name in enumerate(("a", "b", "low", "high")):
            w.make(name, priority=max(0, i - 1))
        await w.seconds(0.1)
        assert w.begin("a", "n1/gpu-0") == w.begin("b", "n2/gpu-0") == ""
        assert "for 2 other pods" in w.begin("low", "n3/gpu-0")
        assert "for 2 other pods" in w.begin("high", "n3/gpu-0")
        w.looked.clear()
        w.cluster.remove(PODS, "a", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "high"
        assert w.begin("low", "n3/gpu-0")
        assert w.begin("high", "n3/gpu-0") == ""
        # One that waits for something else does not hold up the others.
        w.grants.skip(w.pod("low"))
        w.cluster.remove(PODS, "b", NAMESPACE)
        await w.seconds(0.1)
        assert w.grants.serves_instead(w.pod("low"))

    run(scenario, most=2)


def test_a_pod_whose_turn_is_of_no_use_to_it_leaves_it_to_the_next_one() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        for name in ("a", "b", "c"):
            w.make(name)
        status = builders.allocation(builders.result("n2", "gpu-0"))
        w.cluster.put(RESOURCE_CLAIMS, builders.claim("taken", uid="taken", status=status))
        await w.seconds(0.1)
        assert w.begin("a", "n1/gpu-0") == ""
        assert w.begin("b", "n2/gpu-0")
        assert w.begin("c", "n3/gpu-0")
        w.cluster.remove(PODS, "a", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "b"
        assert w.begin("b", "n2/gpu-0") == "its devices are being allocated"
        assert w.looked[-1] == "c"
        assert w.begin("c", "n3/gpu-0") == ""

    run(scenario, most=1)


def test_a_pod_that_goes_while_nothing_can_be_granted_leaves_its_turn_to_the_next_one() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        for name in ("a", "b", "c"):
            w.make(name)
        await w.seconds(0.1)
        assert w.begin("a", "n1/gpu-0") == ""
        assert w.begin("b", "n2/gpu-0")
        assert w.begin("c", "n3/gpu-0")
        w.port.obstructed = "the policy is being proved"
        w.cluster.remove(PODS, "a", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "b"
        assert "being proved" in w.begin("b", "n2/gpu-0")
        w.cluster.remove(PODS, "b", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "c"
        assert "being proved" in w.begin("c", "n3/gpu-0")
        w.port.obstructed = ""
        assert w.begin("c", "n3/gpu-0") == ""

    run(scenario, most=1)


def test_namespaces_take_turns_however_many_pods_of_one_wait_for_longer() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        hostile = [f"h{i}" for i in range(8)]
        for name in hostile:
            w.make(name)
        await w.seconds(0.1)
        assert w.begin("h0", "n1/gpu-0") == w.begin("h1", "n1/gpu-1") == ""
        for name in hostile[2:]:
            assert "for 2 other pods" in w.begin(name, "n2/gpu-0")
        await w.seconds(2.0)  # they are older
        for name in ("p", "q", "r"):
            w.make(name, namespace="quiet")
        await w.seconds(0.1)
        for name in ("p", "q", "r"):
            assert "for 2 other pods" in w.begin(name, "n2/gpu-0", namespace="quiet")
        w.cluster.remove(PODS, "h0", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "p"
        assert "for 1 other pods" in w.begin("h2", "n2/gpu-0")
        assert w.begin("p", "n2/gpu-0", namespace="quiet") == ""
        # Each has one now, so the oldest pod comes next.
        w.cluster.remove(PODS, "h1", NAMESPACE)
        await w.seconds(0.1)
        assert w.looked[-1] == "h2"
        assert w.begin("h2", "n3/gpu-0") == ""

    run(scenario, most=2)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_namespace_that_does_not_use_its_grants_has_one_at_a_time_until_it_does(leaves: bool) -> None:
    """However many pods it makes, and how soon it deletes them."""

    async def scenario(w: SimulatedCluster) -> None:
        devices = [f"n{n}/gpu-{k}" for n in range(1, 5) for k in range(2)]
        for names in ([f"h{i}" for i in range(4)], [f"i{i}" for i in range(4)]):
            for name, device in zip(names, devices, strict=False):
                w.make(name)
                await w.seconds(0.1)
                assert w.begin(name, device) == ""
                w.open(name)
            await w.seconds(25.0)
            for name in names if leaves else ():
                w.cluster.remove(PODS, name, NAMESPACE)
            await w.seconds(8.0)
            w.port.closed()
        assert len(w.over) == 8
        for name in ("new", "other"):
            w.make(name)
        w.make("p", namespace="quiet")
        await w.seconds(0.1)
        assert w.begin("new", devices[0]) == ""
        assert "pods of its namespace have not used theirs" in w.begin("other", devices[1])
        assert not w.grants.serves_instead(w.pod("other"))
        # Those that wait for their own namespace hold up nobody else.
        assert w.grants.serves_instead(w.pod("p", "quiet"))
        assert w.begin("p", devices[1], namespace="quiet") == ""
        w.open("new")
        w.extended_claim("new", devices[0])
        await w.seconds(0.1)
        assert w.looked[-1] == "other"
        assert w.begin("other", devices[2]) == ""
        w.make("more")
        await w.seconds(0.1)
        assert w.begin("more", devices[3]) == ""

    run(scenario, most=4)


# --- grants in vain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow", "seconds"), [(False, 30.0), (True, 100.0)])
def test_a_grant_that_is_not_used_ends(slow: bool, seconds: float) -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0", slow=slow)
        w.open("p")
        await w.seconds(seconds - 2)
        assert not w.over
        await w.seconds(4.0)
        assert w.over == [("p", Ending.TIMEOUT)]

    run(scenario)


def test_a_grant_that_cannot_be_stored_ends() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        await w.seconds(62.0)
        assert w.over == [("p", Ending.TIMEOUT)]

    run(scenario)


def test_a_pod_that_kube_scheduler_cannot_place_loses_its_grant_soon() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        w.open("p")
        w.report("p", "Unschedulable", NO_PLACE)
        await w.seconds(4.0)
        assert not w.over
        await w.seconds(2.0)
        assert w.over == [("p", Ending.REFUSED)]

    run(scenario)


@pytest.mark.parametrize(("first", "seconds"), [(True, 3.0), (False, 12.0)])
def test_a_pod_for_which_kube_scheduler_has_chosen_other_devices_loses_its_grant(
    first: bool, seconds: float
) -> None:
    """Not before it had time to try again: what it has reported may be about an attempt of before."""

    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        w.open("p", first=first)
        await w.seconds(10.0)
        w.report("p", "SchedulerError", f"{REFUSED}: {POLICY}")
        await w.seconds(seconds - 1)
        assert not w.over
        await w.seconds(2.0)
        assert w.over == [("p", Ending.ELSEWHERE)]

    run(scenario)


def test_kube_scheduler_is_sent_to_the_node_again_and_when_it_fails_again_the_grant_is_over() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        w.open("p", first=False)
        assert w.grants.lacks_nomination(w.pod("p")) == ""
        w.report("p", "SchedulerError", f"{REFUSED}: {POLICY}")
        await w.seconds(1.0)
        assert w.grants.lacks_nomination(w.pod("p")) == "n1"
        w.nominate("p", "n1")
        w.grants.renominated(w.pod("p"), w.pod("p").metadata.resource_version or "")
        assert w.grants.lacks_nomination(w.pod("p")) == ""
        await w.seconds(5.0)
        assert not w.over
        w.report("p", "SchedulerError", f"{REFUSED}: {POLICY}")
        await w.seconds(0.5)
        assert w.over == [("p", Ending.ELSEWHERE)]

    run(scenario)


def test_another_error_of_kube_scheduler_says_nothing_about_the_grant() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        w.open("p")
        w.report("p", "SchedulerError", f"{REFUSED}: etcdserver: request timed out")
        await w.seconds(20.0)
        assert not w.over
        w.extended_claim("p", "n1/gpu-0")
        await w.seconds(0.1)
        assert w.over == [("p", Ending.ALLOCATED)]

    run(scenario)


def test_a_report_of_before_does_not_end_a_grant() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        w.report("p", "Unschedulable", "0/1 nodes are available: 1 cannot allocate all claims.")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0")
        w.open("p", first=False)
        await w.seconds(20.0)
        assert not w.over

    run(scenario)


def test_a_pod_rests_longer_after_each_grant_in_vain() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        for rest in (0.0, 15.0, 30.0):
            assert w.begin("p", "n1/gpu-0") == ""
            w.open("p")
            await w.seconds(32.0)
            w.port.closed()
            if rest:
                assert "times in vain" in w.begin("p", "n1/gpu-0")
                assert not w.grants.serves_instead(w.pod("p"))
                await w.seconds(rest)
        assert [why for _, why in w.over] == [Ending.TIMEOUT] * 3

    run(scenario)


# --- what comes in between ----------------------------------------------------------------------------------


def test_a_grant_that_others_end_is_over_on_its_node_and_at_last_for_the_pod() -> None:
    """The pool changes hands, a device fails, the policy is gone."""

    async def scenario(w: SimulatedCluster) -> None:
        w.make("p")
        await w.seconds(0.1)
        w.begin("p", "n1/gpu-0", "n2/gpu-0")
        w.open("p")
        w.port.end(pool("n1"), ["gpu-0"])
        await w.seconds(0.1)
        assert not w.over
        assert list(w.grants.devices(w.pod("p"))) == ["n2"]
        w.port.end(pool("n2"), ["gpu-0"])
        await w.seconds(0.1)
        assert w.over == [("p", Ending.INTERRUPTED)]
        assert w.begin("p", "n3/gpu-0") == ""  # it need not rest for that

    run(scenario)


def test_a_pod_of_which_something_is_granted_in_place_of_our_choice_has_no_more_than_some() -> None:
    async def scenario(w: SimulatedCluster) -> None:
        for i in range(9):
            w.make(f"p{i}")
        await w.seconds(0.1)
        devices = [f"n{n}/gpu-{k}" for n in range(1, 5) for k in range(2)]
        for i, device in enumerate(devices):
            assert w.grants.serves_instead(w.pod(f"p{i}"))
            assert w.begin(f"p{i}", device, instead=True) == ""
        assert not w.grants.serves_instead(w.pod("p8"))
        assert w.begin("p8", "n1/gpu-0", instead=True)
        w.grants.serve_here(w.pod("p8"))
        for i in range(8):
            w.cluster.remove(PODS, f"p{i}", NAMESPACE)
        w.port.closed()
        await w.seconds(1.0)
        assert not w.grants.serves_instead(w.pod("p8"))  # the controller serves it itself for a moment
        await w.seconds(5.0)
        assert w.grants.serves_instead(w.pod("p8"))

    run(scenario)
