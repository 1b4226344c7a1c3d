"""Where a pod has room: our answer, and that of the real kube-scheduler, without any claims.

The real one needs no root and no kubelet, only a folder with etcd, kube-apiserver and kube-scheduler that the
variable ``DRA_K8S_BIN`` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from node_room_cases import CASES, CLASSES, DEVICE_CLASS, PLENTY, RUNTIME, Case
from nonempty import nonempty
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS, Node, Pod, PodStatus
from dra_driver.api.meta import Resource
from dra_driver.api.resource import DEVICE_CLASSES, DeviceClass
from dra_driver.sim.objects import MetaObject

Body = dict[str, Any]
RUNTIMES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", MetaObject, namespaced=False)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
SECONDS = 180.0


def bodies(case: Case) -> Iterator[tuple[str, Body, list[Body], Body, str]]:
    """Yield name and spec of each node, its residents, the pod, and what is expected."""
    for kind, room, node, residents, outcome in (
        ("fits", case.room, case.node, case.residents, case.outcomes[0]),
        ("short", case.short, case.small_node or case.node, case.residents + case.more, case.outcomes[1]),
    ):
        name = f"{case.name}-{kind}"
        allocatable = {**PLENTY, **room}
        spec = {k: v for k, v in node.items() if k != "labels"}
        labels = {"case": name, **node.get("labels", {})}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }
        there = [{**one, "nodeName": name} for one in residents]
        yield name, body, there, {**case.pod, "nodeSelector": {"case": name}}, outcome


def pod_body(name: str, spec: Body) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {k: v for k, v in spec.items() if k != "status"},
        **({"status": spec["status"]} if "status" in spec else {}),
    }


def our_answer(nodes: Iterable[Node], pods: Iterable[Pod], classes: Iterable[DeviceClass], pod: Pod) -> str:
    known: Objects[Node] = Objects()
    for node in nodes:
        known.put(node)
    usage = NodeUsage()
    placements = Placements(known, usage)
    for device_class in classes:
        placements.class_changed(device_class.metadata.name, device_class)
    for other in pods:
        usage.seen(other)
    found = placements.candidates(pod)
    return "bound" if found.nodes else "evicts" if found.evicting else "refused"


def with_class(spec: Body) -> Body:
    """Return a spec as admission leaves it: with the priority of its class."""
    value, policy = CLASSES.get(spec.get("priorityClassName", ""), (0, "PreemptLowerPriority"))
    return {**spec, "priority": value, "preemptionPolicy": policy}


CLASS: Body = {"metadata": {"name": "gpu"}, "spec": DEVICE_CLASS}


@pytest.mark.parametrize("case", [c for c in CASES if not c.defaulted], ids=lambda c: c.name)
def test_a_pod_has_room_down_to_the_least_amount(case: Case) -> None:
    for name, node, residents, spec, outcome in nonempty(bodies(case)):
        there = [
            codec.convert(Pod, {**pod_body(f"{name}-{i}", with_class(s)), "metadata": {"uid": f"{i}"}})
            for i, s in enumerate(residents)
        ]
        answer = our_answer(
            [codec.convert(Node, node)],
            there,
            [codec.convert(DeviceClass, CLASS)],
            codec.convert(Pod, pod_body(name, with_class(spec))),
        )
        assert answer == outcome, name


@pytest.mark.parametrize("resource", ["served", "deviceclass"])
def test_devices_serve_an_extended_resource_where_the_node_has_none(resource: str) -> None:
    named = {"served": "example.com/served", "deviceclass": "deviceclass.resource.kubernetes.io/gpu"}[
        resource
    ]
    node = codec.convert(Node, {"metadata": {"name": "n"}, "status": {"allocatable": PLENTY}})
    asks = {"containers": [{"name": "c", "resources": {"requests": {named: "1"}}}]}
    pod = codec.convert(Pod, pod_body("p", asks))
    known = codec.convert(DeviceClass, CLASS)
    assert our_answer([node], [], [known], pod) == "bound"
    assert our_answer([node], [], [], pod) == "refused"


# --- the real one -------------------------------------------------------------------------------------------


async def make(world: SchedulingWorld, kind: Resource[Any], body: Body) -> None:
    version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    await world.api.create(kind, {"apiVersion": version, "kind": kind.kind, **body})


async def set_up(world: SchedulingWorld) -> None:
    for name, (value, policy) in CLASSES.items():
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        await make(world, PRIORITY_CLASSES, body)
    await make(world, RUNTIMES, {"metadata": {"name": "runtime"}, **RUNTIME})
    await world.api.merge_patch(DEVICE_CLASSES, "gpu", {"spec": DEVICE_CLASS})
    for case in CASES:
        for name, node, residents, _, _ in bodies(case):
            await make(world, NODES, {k: v for k, v in node.items() if k != "status"})
            await world.api.merge_patch(NODES, name, {"status": node["status"]}, subresource="status")
            # Admission taints nodes that no kubelet has reported as ready.
            taints = node["spec"].get("taints")
            await world.api.merge_patch(NODES, name, {"spec": {"taints": taints}})
            for i, spec in enumerate(residents):
                pod = pod_body(f"{name}-{i}", spec)
                await world.api.create(PODS, {k: v for k, v in pod.items() if k != "status"})
                status = {"phase": "Running", **pod.get("status", {})}
                await world.api.merge_patch(
                    PODS, f"{name}-{i}", {"status": status}, NAMESPACE, subresource="status"
                )


def their_answer(pod: Pod) -> str:
    if pod.spec.node_name:
        return "bound"
    for condition in pod.status.conditions:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "evicts" if pod.status.nominated_node_name else "refused"
    return ""


@pytest.mark.slow
@pytest.mark.long
def test_kube_scheduler_gives_the_same_answers() -> None:
    """Each of its answers is what is expected, and ours to the objects as the API server has them."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS * 2), scheduling_world("real") as world:
            await set_up(world)
            before = (await world.api.list(PODS, NAMESPACE)).items
            expected: dict[str, str] = {}
            for case in CASES:
                for name, _, _, spec, outcome in bodies(case):
                    await world.api.create(PODS, pod_body(name, spec))
                    expected[name] = outcome
            nodes = {n.metadata.name: n for n in (await world.api.list(NODES)).items}
            classes = (await world.api.list(DEVICE_CLASSES)).items
            theirs: dict[str, str] = {}
            pods: dict[str, Pod] = {}
            async with asyncio.timeout(SECONDS):
                while len(theirs) < len(expected):
                    await asyncio.sleep(0.5)
                    for pod in (await world.api.list(PODS, NAMESPACE)).items:
                        name = pod.metadata.name
                        if name in expected and name not in theirs and (answer := their_answer(pod)):
                            theirs[name], pods[name] = answer, pod
        assert theirs == expected
        ours = {}
        for name, pod in pods.items():
            unbound = msgspec.structs.replace(pod.spec, node_name="")
            asked = msgspec.structs.replace(pod, spec=unbound, status=PodStatus())
            there = [p for p in before if p.spec.node_name == name]
            ours[name] = our_answer([nodes[name]], there, classes, asked)
        assert ours == theirs
        print(f"kube-scheduler and we agree on {len(theirs)} answers for {len(CASES)} kinds of pods")

    asyncio.run(main())
