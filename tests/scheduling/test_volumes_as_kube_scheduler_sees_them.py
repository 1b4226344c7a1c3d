"""Where the volumes of a pod can be used: our answer, and that of the real kube-scheduler.

The real one needs no root and no kubelet, only a folder with etcd, kube-apiserver and kube-scheduler that the
variable ``DRA_K8S_BIN`` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from node_room_cases import CLASSES, PLENTY
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world
from volume_cases import VOLUME_CASES, VolumeCase

from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.storage import STORAGE_RESOURCES
from dra_driver.nodefit.volumes import StorageObject, User, VolumeFit, VolumeUsage, volume_needs, volumes_of
from dra_driver.sim.objects import MetaObject

Body = dict[str, Any]
KINDS: dict[str, Resource[Any]] = {resource.kind: resource for resource in STORAGE_RESOURCES}
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
ELSEWHERE = "elsewhere"
HOST = "kubernetes.io/hostname"
SECONDS = 180.0


def node_body(name: str, case: VolumeCase | None = None) -> Body:
    labels = {HOST: name, **(case.labels if case is not None else {})}
    status = {"allocatable": PLENTY, "capacity": PLENTY}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def pod_body(case: VolumeCase, name: str, volumes: Iterable[Body], priority: str, **spec: Any) -> Body:
    known = {"priorityClassName": priority} if priority else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": case.filled(list(volumes)),
            **known,
            **spec,
        },
    }


def our_answer(
    node: Node, objects: Iterable[StorageObject], others: Iterable[Pod], pod: Pod
) -> tuple[str, str]:
    """Return the outcome, and the reason in our words."""
    usage = VolumeUsage()
    for item in objects:
        usage.put(item)
    for other in others:
        at, priority = other.spec.node_name, other.spec.priority
        usage.add(other.metadata.uid, User(at, volumes_of(other), priority, bound=True))
    needs = volume_needs(pod, usage)
    if needs.problem:
        return "refused", needs.problem
    fit = VolumeFit(needs, usage, lambda _: {})
    if not (reason := fit.problem(node)):
        return "bound", ""
    return ("refused" if fit.problem(node, pod.spec.priority) else "evicts"), reason


# --- as objects in memory -----------------------------------------------------------------------------------


def in_memory(case: VolumeCase) -> tuple[list[StorageObject], list[Pod], Pod]:
    """Return what a case is about, as an API server would have it."""

    def pod(name: str, volumes: Iterable[Body], priority: str, node: str = "") -> Pod:
        body = pod_body(case, name, volumes, priority, nodeName=node)
        body["metadata"]["uid"] = f"uid-{name}"
        body["spec"]["priority"] = CLASSES[priority][0] if priority else 0
        return codec.convert(Pod, body)

    objects: list[StorageObject] = []
    bodies = [case.filled(body, f"uid-{case.name}") for body in case.objects]
    deleted = any(body["kind"] == "delete" for body in bodies)
    for body in bodies:
        if body["kind"] == "delete":
            continue
        kind = KINDS[body["kind"]]
        if kind.namespaced:
            body["metadata"]["namespace"] = NAMESPACE
            if deleted:
                body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        objects.append(codec.convert(kind.type, body))
    others = [
        pod(f"{case.name}-{i}", volumes, priority, case.filled(node))
        for i, (volumes, priority, node) in enumerate(case.residents)
    ]
    return objects, others, pod(case.name, case.volumes, case.priority)


@pytest.mark.parametrize("case", VOLUME_CASES, ids=lambda c: c.name)
def test_a_node_suits_the_volumes_of_a_pod(case: VolumeCase) -> None:
    objects, others, pod = in_memory(case)
    node = codec.convert(Node, node_body(case.name, case))
    outcome, reason = our_answer(node, objects, others, pod)
    assert outcome == case.outcome, reason
    assert case.filled(case.reason) in reason


# --- the real one -------------------------------------------------------------------------------------------


async def make(world: SchedulingWorld, kind: Resource[Any], body: Body) -> None:
    """Make an object, its status too, which a client cannot write at once."""
    status = body.pop("status", None)
    namespace = NAMESPACE if kind.namespaced else ""
    body = {**body, "apiVersion": kind.api_version, "kind": kind.kind}
    if namespace:
        body["metadata"] = {**body["metadata"], "namespace": namespace}
    await world.api.create(kind, body, namespace)
    if status:
        name = body["metadata"]["name"]
        await world.api.merge_patch(kind, name, {"status": status}, namespace, subresource="status")


async def make_node(world: SchedulingWorld, body: Body) -> None:
    await make(world, NODES, body)
    # Admission taints nodes that no kubelet has reported as ready.
    await world.api.merge_patch(NODES, body["metadata"]["name"], {"spec": {"taints": None}})


async def set_up(world: SchedulingWorld, case: VolumeCase) -> None:
    """Make the node, the pods and the objects of a case; its pod is held by a gate."""
    await make_node(world, node_body(case.name, case))
    for i, (volumes, priority, node) in enumerate(case.residents):
        name = f"{case.name}-{i}"
        await world.api.create(PODS, pod_body(case, name, volumes, priority, nodeName=case.filled(node)))
        running = {"status": {"phase": "Running"}}
        await world.api.merge_patch(PODS, name, running, NAMESPACE, subresource="status")
    spec = {"nodeSelector": {HOST: case.name}, "schedulingGates": [{"name": "example.com/test"}]}
    body = pod_body(case, case.name, case.volumes, case.priority, **spec)
    pod = await world.api.create(PODS, body)
    for body in case.objects:
        filled = case.filled(body, pod.metadata.uid)
        if filled["kind"] == "delete":
            # Admission has added a finalizer.
            await world.api.delete(KINDS["PersistentVolumeClaim"], f"{case.name}-a", NAMESPACE)
        else:
            await make(world, KINDS[filled.pop("kind")], filled)


def their_answer(pod: Pod) -> tuple[str, str]:
    """Return what kube-scheduler has decided, and its report; empty where it has not yet.

    Where volumes are to be bound it nominates the node and waits for them; nobody binds them here.
    """
    if pod.spec.node_name:
        return "bound", ""
    nominated = bool(pod.status.nominated_node_name)
    for condition in pod.status.conditions:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "evicts" if nominated else "refused", str(condition.get("message"))
    return ("bound" if nominated else ""), ""


@pytest.mark.slow
@pytest.mark.long
def test_kube_scheduler_gives_the_same_answers_about_volumes() -> None:
    """Each of its answers is what is expected, and ours to the objects as the API server has them."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS * 2), scheduling_world("real") as world:
            for name, (value, policy) in CLASSES.items():
                body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
                await make(world, PRIORITY_CLASSES, body)
            await make_node(world, node_body(ELSEWHERE))
            for case in VOLUME_CASES:
                await set_up(world, case)
            objects = [item for kind in STORAGE_RESOURCES for item in (await world.api.list(kind)).items]
            before = (await world.api.list(PODS, NAMESPACE)).items
            nodes = {n.metadata.name: n for n in (await world.api.list(NODES)).items}
            pods = {p.metadata.name: p for p in before}
            await asyncio.sleep(1.0)  # the scheduler has seen the objects, too
            for case in VOLUME_CASES:
                await world.api.merge_patch(PODS, case.name, {"spec": {"schedulingGates": None}}, NAMESPACE)
            theirs: dict[str, tuple[str, str]] = {}
            async with asyncio.timeout(SECONDS):
                while len(theirs) < len(VOLUME_CASES):
                    await asyncio.sleep(0.5)
                    for pod in (await world.api.list(PODS, NAMESPACE)).items:
                        name = pod.metadata.name
                        found = their_answer(pod)
                        if not pod.spec.scheduling_gates and found[0]:
                            theirs.setdefault(name, found)
                    theirs = {c.name: theirs[c.name] for c in VOLUME_CASES if c.name in theirs}
        expected = {c.name: c.outcome for c in VOLUME_CASES}
        assert {name: outcome for name, (outcome, _) in theirs.items()} == expected
        for case in VOLUME_CASES:
            assert case.filled(case.reason) in theirs[case.name][1], case.name
            others = [p for p in before if p.spec.node_name]
            ours = our_answer(nodes[case.name], objects, others, pods[case.name])
            assert ours[0] == case.outcome, (case.name, ours)
            assert case.filled(case.reason) in ours[1], case.name
        print(f"kube-scheduler and we agree on {len(theirs)} kinds of pods with volumes")

    asyncio.run(main())
