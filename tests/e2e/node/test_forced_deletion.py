"""A pod that is deleted by force while its containers run on, and the pod that wants its device next.

Needs the node's kubelet, runtime and processes: on the embedded cluster nothing is executed (there it is
``test_devices_of_a_pod_that_was_deleted_by_force_go_to_nobody_while_it_has_processes``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
from e2e_support import allocated, clear, eventually, make_namespace, running

from dra_driver.api.core import PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import NotFound
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-forced"
# Longer than the test: nothing but the test ends the containers.
GRACE_SECONDS = 900
# The kubelet unprepares claims of pods that it does not have any more every 60 s.
KUBELET_SECONDS = 75.0
STARTING_SECONDS = 20.0
STUBBORN = "trap '' TERM; while :; do sleep 1; done"
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    if cluster.actions is None or "runtime" not in cluster.actions.parts:
        pytest.skip("needs the processes of a node's containers")
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


def processes_of(uid: str) -> set[int]:
    """Processes in the cgroups of a pod."""
    found: set[int] = set()
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if uid in file.read_text().replace("_", "-"):
                found.add(int(file.parent.name))
        except OSError:
            continue  # it has ended
    return found


async def uuid_of(cluster: Cluster, device: str) -> str:
    for one in (await cluster.api.list(RESOURCE_SLICES)).items:
        for published in one.spec.devices if one.spec.driver == DEFAULT_DRIVER_NAME else ():
            if published.name == device:
                return str(published.attributes["uuid"].string_value)
    raise AssertionError(f"no device {device} is published")


async def gone(cluster: Cluster, resource: Any, name: str) -> bool:
    try:
        await cluster.api.get(resource, name, NAMESPACE)
    except NotFound:
        return True
    return False


def test_a_force_deleted_pod_keeps_its_device(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        gpu = {"deviceClassName": DEFAULT_DRIVER_NAME}
        stubborn = pod("holder", "held", command=STUBBORN, terminationGracePeriodSeconds=GRACE_SECONDS)
        await examples.apply(cluster.api, [claim("held", gpu), stubborn])
        (holder,) = await running(cluster, NAMESPACE, "holder")
        uid, node = holder.metadata.uid, holder.spec.node_name
        ((_, device),) = await allocated(cluster, NAMESPACE, "held")
        uuid = await uuid_of(cluster, device)
        assert processes_of(uid)

        # The kubelet begins to wait for the grace period, and then forgets the pod.
        await cluster.api.delete(PODS, "holder", NAMESPACE)
        await asyncio.sleep(5.0)
        await cluster.api.delete(PODS, "holder", NAMESPACE, grace_period_seconds=0)
        await cluster.api.delete(RESOURCE_CLAIMS, "held", NAMESPACE)
        await eventually("the pod to be gone", lambda: gone(cluster, PODS, "holder"))
        await eventually("its claim to be gone", lambda: gone(cluster, RESOURCE_CLAIMS, "held"))
        assert processes_of(uid), "the containers have ended: the test proves nothing"

        await asyncio.sleep(KUBELET_SECONDS)
        same = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?uuid.orValue("") == "{uuid}"'
        wanted = {**gpu, "selectors": [{"cel": {"expression": same}}]}
        await examples.apply(cluster.api, [claim("next", wanted), pod("next", "next")])
        # A prepare that fails is repeated late; if nothing is in the way, the pod runs within seconds.
        await asyncio.sleep(STARTING_SECONDS)
        assert processes_of(uid), "the containers have ended: the test proves nothing"
        assert (await cluster.api.get(PODS, "next", NAMESPACE)).status.phase == "Pending"

        async def told() -> bool:
            inventory = await cluster.api.get(DEVICE_INVENTORIES, f"{node}.{DEFAULT_DRIVER_NAME}")
            (one,) = [d for d in inventory.spec.devices if d.name == device]
            return "ClaimGoneInUse" in [h.reason for h in one.health]

        await eventually("the inventory to say why the device is not to be had", told)
        for pid in processes_of(uid):
            with contextlib.suppress(ProcessLookupError):  # it ends with the first process of its container
                os.kill(pid, signal.SIGKILL)
        # The kubelet unprepares the claim within 60 s; it repeats a failed prepare after 65 s or more.
        await eventually("the next pod to run", next_runs, 200.0)
        assert await allocated(cluster, NAMESPACE, "next") == [("gpu", device)]

    async def next_runs() -> bool:
        return (await cluster.api.get(PODS, "next", NAMESPACE)).status.phase == "Running"

    background.run(scenario(), 600.0)
