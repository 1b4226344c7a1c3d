"""What the controller has to stand on a real cluster. Scenarios work whoever allocates, or say otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller_watch import Follower, pod_body, template_body
from e2e_support import IMAGE

from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.names import ALLOCATOR_LABEL, DEFAULT_DRIVER_NAME, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra_driver.errors import Conflict, NotFound
from dra_driver.kube import KubeApi

OTHER_DRIVER = "fpga.example.com"
WAVES, UNSATISFIABLE, SATISFIABLE, CHAOS = 100, 10, 20, 60


async def create(api: KubeApi, resource: Resource[Any], body: dict[str, Any]) -> None:
    """Creates an object, unless it is there."""
    try:
        await api.create(resource, body)
    except Conflict:
        pass


async def make_namespace(api: KubeApi, name: str, *, ours: bool = True) -> None:
    """A namespace (with our label, unless told otherwise) that has the template ``gpu``."""
    labels = {ALLOCATOR_LABEL: "controller"} if ours else {}
    meta = {"name": name, "labels": labels}
    await create(api, NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await create(api, RESOURCE_CLAIM_TEMPLATES, template_body("gpu", name, DEFAULT_DRIVER_NAME))


async def clean(api: KubeApi, namespace: str, seconds: float = 120.0) -> None:
    """Deletes the pods, then the claims that no pod owns, and waits until they are gone."""
    await _delete_all(api, PODS, namespace)
    await until("pods to go", lambda: _none(api, PODS, namespace), seconds)
    await _delete_all(api, RESOURCE_CLAIMS, namespace)
    await until("claims to go", lambda: _none(api, RESOURCE_CLAIMS, namespace), seconds)


async def _delete_all(api: KubeApi, resource: Resource[Any], namespace: str) -> None:
    for item in (await api.list(resource, namespace)).items:
        try:
            await api.delete(resource, item.metadata.name, namespace)
        except NotFound:
            pass


async def _none(api: KubeApi, resource: Resource[Any], namespace: str) -> bool:
    found: Sequence[WireObject] = (await api.list(resource, namespace)).items
    return not found


async def until(what: str, condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Polls.

    Raises:
        AssertionError: it did not happen in time.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(0.1)


# --- scenarios ----------------------------------------------------------------------------------------------


async def waves(f: Follower, number: int = WAVES, seconds: float = 400.0) -> None:
    """Many more pods than devices, all at once: each runs when its turn comes."""
    for i in range(number):
        await f.create(pod_body(f"wave-{i:03}", f.namespace, IMAGE, "sleep 0.5"))
    await f.until("ended", seconds=seconds)


async def mixed_cpu(f: Follower) -> None:
    """Pods that ask for more CPU than there is do not hold up those that do not, and hold no device."""
    fit = []
    for i in range(SATISFIABLE + UNSATISFIABLE):
        too_much = i % 3 == 0 and i // 3 < UNSATISFIABLE
        name = f"{'large' if too_much else 'small'}-{i:03}"
        await f.create(pod_body(name, f.namespace, IMAGE, "sleep 0.5", cpu="1000" if too_much else "10m"))
        if not too_much:
            fit.append(name)
    await f.until("ended", fit, seconds=240)
    rest = set(f.pods) - set(fit)
    assert len(rest) == UNSATISFIABLE
    assert all(f.pods[name].bound is None for name in rest)

    async def released() -> bool:
        claims = (await f.api.list(RESOURCE_CLAIMS, f.namespace)).items
        return not any(c.status.allocation for c in claims)

    await until("the claims of finished pods to be given back", released)


async def bound_in_advance(f: Follower, node: str, number: int = 8) -> None:
    """Pods with ``spec.nodeName`` never meet kube-scheduler; only a controller allocates for them."""
    for i in range(number):
        await f.create(pod_body(f"bound-{i}", f.namespace, IMAGE, "sleep 0.5", node=node))
    # The kubelet looks again after a minute or so where it was faster than the allocation.
    await f.until("ended", seconds=240)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Seconds from the creation of the last member to the start of the first and of the last."""

    first: float
    last: float


async def group(f: Follower, size: int = 8) -> GroupTimes:
    """Members wait until all are there; then all start."""
    labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: str(size)}
    for i in range(size - 1):
        await f.create(pod_body(f"member-{i}", f.namespace, IMAGE, "sleep 2", labels=labels))
    await asyncio.sleep(3)
    assert f.allocations == 0, "a member of an incomplete group was allocated"
    assert all(t.bound is None for t in f.pods.values())
    await f.create(pod_body(f"member-{size - 1}", f.namespace, IMAGE, "sleep 2", labels=labels))
    complete = f.pods[f"member-{size - 1}"].created
    await f.until("started", seconds=120)
    started = sorted(t.started - complete for t in f.pods.values() if t.started is not None)
    await f.until("ended", seconds=60)
    return GroupTimes(started[0], started[-1])


async def chaos(f: Follower, disturb: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Pods keep coming while parts of the cluster are killed, one after the other."""
    steps = len(disturb) + 1
    for step in range(steps):
        for i in range(step * CHAOS // steps, (step + 1) * CHAOS // steps):
            await f.create(pod_body(f"chaos-{i:03}", f.namespace, IMAGE, "sleep 0.5"))
        if step < len(disturb):
            await asyncio.sleep(0.3)
            await disturb[step]()
            await asyncio.sleep(2)
    await f.until("ended", seconds=400)


# --- another driver -----------------------------------------------------------------------------------------


async def other_driver(api: KubeApi, node: str, devices: int = 4) -> None:
    """Devices of a driver that is not ours, with a class and no plugin: as far as the scheduler sees."""
    selector = {"cel": {"expression": f'device.driver == "{OTHER_DRIVER}"'}}
    class_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": OTHER_DRIVER},
        "spec": {"selectors": [selector]},
    }
    await create(api, DEVICE_CLASSES, class_)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    here = {"nodeSelectorTerms": [{"matchFields": [_field(node)]}]}
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{OTHER_DRIVER}"},
        # Not nodeName: a kubelet deletes those when it starts.
        "spec": {
            "driver": OTHER_DRIVER,
            "pool": pool,
            "nodeSelector": here,
            "devices": [{"name": f"fpga-{i}"} for i in range(devices)],
        },
    }
    await create(api, RESOURCE_SLICES, slice_)


def _field(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


async def no_other_driver(api: KubeApi, node: str) -> None:
    """Away with it."""
    left: tuple[tuple[Resource[Any], str], ...] = (
        (RESOURCE_SLICES, f"{node}-{OTHER_DRIVER}"),
        (DEVICE_CLASSES, OTHER_DRIVER),
    )
    for resource, name in left:
        try:
            await api.delete(resource, name)
        except NotFound:
            pass
