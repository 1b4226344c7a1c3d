"""What a controller of an earlier version has lent: nobody's until it is back, whatever happens meanwhile.

That version noted a loan in the inventory, took its taint off the device, and listed what it had taken back
in an object by which the API server refused it to kube-scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib

import controller_harness as harness
import pytest
import virtual_time
from builders import DRIVER, request
from controller_harness import Clock, controlling, inline, pod
from open_cluster import PolicedCluster, cluster_of

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.names import RECALLED_DEVICES, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import ApiUnavailable

INVENTORY = f"n1.{DRIVER}"
LENT = [{"unit": "gpu-0", "devices": ["gpu-0"]}]
KILLS = 40
"""More writes than there are until everything is back."""
OFTEN = {(True, 1.0, 2), (False, 9.0, 5)}
"""Of whether pools open, when kube-scheduler writes, and after which writes controllers are killed."""


def lending() -> PolicedCluster:
    """Return a cluster as an earlier version left it: gpu-0 is lent, and gpu-1 was."""
    cluster = cluster_of("n1", gpus=3)

    async def publish() -> None:
        async with controlling(cluster):
            pass

    virtual_time.run(publish())
    assert cluster.record() == "controller"
    (slice_,) = (s for s in cluster.all(RESOURCE_SLICES) if s.spec.driver == DRIVER)
    raw = cluster.raw(RESOURCE_SLICES, slice_.metadata.name)
    for device in raw["spec"]["devices"]:
        if device["name"] == "gpu-0":
            del device["taints"]
    cluster.edit(RESOURCE_SLICES, slice_.metadata.name, {"spec": {"devices": raw["spec"]["devices"]}})
    cluster.edit(DEVICE_INVENTORIES, INVENTORY, {"status": {"publication": {"lent": LENT}}})
    assert cluster.bare() == {"gpu-0"}
    listed = {"devices": f"{DRIVER}/n1/gpu-1", "turn": "4"}
    name = {"name": RECALLED_DEVICES, "namespace": SYSTEM_NAMESPACE}
    cluster.put(CONFIG_MAPS, {"metadata": name, "data": listed})
    return cluster


def recalled(cluster: PolicedCluster) -> str:
    found: str = cluster.raw(CONFIG_MAPS, RECALLED_DEVICES, SYSTEM_NAMESPACE)["data"]["devices"]
    return found


def is_lent(cluster: PolicedCluster) -> bool:
    return bool(cluster.obj(DEVICE_INVENTORIES, INVENTORY).status.publication.lent)


def allocated(cluster: PolicedCluster) -> set[str]:
    return {c.metadata.name for c in cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None}


async def run_until_killed(cluster: PolicedCluster, writes: int, seconds: float) -> None:
    """Run a controller that is killed when so many of its writes are stored, or after some time.

    It gets no answer to the last one.
    """
    killed = asyncio.Event()
    last = len(cluster.writes) + writes

    def after(*_: str) -> None:
        if len(cluster.writes) > last:
            killed.set()
            raise ApiUnavailable("it is killed")

    cluster.after = after
    config = ControllerConfig(drivers=(DRIVER,), leader_elect=False, open_pools=True)
    task = asyncio.create_task(Controller(cluster, config, Clock(), answers_of=inline).run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await killed.wait()
    cluster.after = lambda *_: None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ApiUnavailable):
        await task


@pytest.mark.parametrize(
    ("opens", "late", "kill"),
    [
        pytest.param(opens, late, kill, marks=[] if (opens, late, kill) in OFTEN else [pytest.mark.long])
        for opens in (True, False)
        for late in (1.0, 9.0)
        for kill in (*range(KILLS // 2), KILLS)
    ],
)
def test_what_is_lent_comes_back_wherever_controllers_are_killed(opens: bool, late: float, kill: int) -> None:
    cluster = lending()
    if not opens:
        cluster.gate_labelled()
    harness.claim(cluster, "theirs", request())
    for name in ("a", "b", "c"):
        harness.claim(cluster, name, request())
        pod(cluster, f"p-{name}", name)

    async def kube_scheduler() -> None:
        """Write late what was decided while the device was lent; the old policy is gone already."""
        await asyncio.sleep(late)
        cluster.take("theirs", "n1", "gpu-0")

    async def main() -> None:
        task = asyncio.create_task(kube_scheduler())
        for writes in (kill, kill + 1, kill // 2):
            await run_until_killed(cluster, writes, 12.0)
            assert not cluster.doubles()
        await task
        async with asyncio.timeout(600), controlling(cluster, open_pools=True):
            while is_lent(cluster) or recalled(cluster) or len(allocated(cluster)) < 3:
                assert not cluster.doubles()
                await asyncio.sleep(0.2)
        assert not cluster.doubles()
        assert cluster.record() == ("open" if opens else "controller")
        assert opens or not cluster.bare()

    virtual_time.run(main())


def test_nothing_is_allocated_of_the_pool_before_it_is_drained_and_read() -> None:
    cluster = lending()
    harness.claim(cluster, "a", request())
    pod(cluster, "p-a", "a")

    async def main() -> None:
        async with controlling(cluster, open_pools=False):
            began = asyncio.get_running_loop().time()
            while not allocated(cluster):
                await asyncio.sleep(0.1)
                assert is_lent(cluster) is (cluster.record() != "controller")
                # While it is on its way, the list is as it was.
                assert not is_lent(cluster) or recalled(cluster)
            assert asyncio.get_running_loop().time() - began > 12.0
            assert not is_lent(cluster)
            assert not cluster.bare()

    virtual_time.run(main())


def test_a_pool_that_is_kube_schedulers_meanwhile_loses_the_note() -> None:
    cluster = lending()
    cluster.edit(DEVICE_INVENTORIES, INVENTORY, {"status": {"publication": {"allocator": "scheduler"}}})

    async def main() -> None:
        async with asyncio.timeout(300), controlling(cluster):
            while cluster.record() != "controller" or is_lent(cluster):
                await asyncio.sleep(0.2)

    virtual_time.run(main())


@pytest.mark.parametrize("there", [True, False])
def test_the_list_is_emptied_once(there: bool) -> None:
    cluster = lending()
    if not there:
        cluster.remove(CONFIG_MAPS, RECALLED_DEVICES, SYSTEM_NAMESPACE)
    cluster.calls.clear()

    def verbs() -> list[str]:
        return [c.verb for c in cluster.calls if c.name == RECALLED_DEVICES]

    async def main() -> None:
        async with controlling(cluster):
            await asyncio.sleep(60.0)
            assert verbs() == (["get", "patch"] if there else ["get"])
            await asyncio.sleep(60.0)
            assert len(verbs()) == 1 + there

    virtual_time.run(main())
