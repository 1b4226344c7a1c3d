"""Plays attacks one after the other on one live cluster, and cleans up in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import attack_objects as objects
import fleet_objects as fleet
from attack_api import Api, Manifest, path_of
from attack_cluster import Controllers, Replica, api_server, install_open_pools
from attack_judgement import BARS, Lag, Measured, lag_between, lag_of
from attack_load import HONEST, ClaimWatch, HonestLoad
from attack_probes import Watchers
from attack_world import TENANT, Attack, AttackedCluster

from controller.admission.config import OBJECT_NAME
from controller.admission.pki import with_new_authority
from dra_driver.api.names import RDMA_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.ownership import AllocatorRecord

__all__ = ["Stage", "stage"]

T = TypeVar("T")

_PREPARATION_SECONDS = 120.0
_RECOVERY_SECONDS = 20.0
# A canary is served within milliseconds by a controller that has nothing left to do.
_WELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Before:
    """What there was when the measurement began.

    Attributes:
        lags: number of a replica → process id and delays since its start.
        restarts: of both replicas.
        doubled: number of devices that were found in two claims.
    """

    lags: Mapping[int, tuple[int, Lag | None]]
    restarts: int
    doubled: int


@dataclass(slots=True)
class Stage:
    """The live cluster."""

    api: Api
    controllers: Controllers
    watch: ClaimWatch
    load: HonestLoad
    watchers: Watchers
    nodes: int
    seed: int
    log: Callable[[str], None]

    async def play(self, attack: Attack, seconds: float) -> Measured:
        """Play one attack beside honest pods that come for some seconds; clean up."""
        started = time.monotonic()
        world = AttackedCluster(self.api, self.controllers, self.seed, self.nodes)
        measured = Measured(attack=attack.name)
        before = await self._begin()
        task = asyncio.create_task(_guarded(attack, world))
        try:
            await self._prepared(task, world)
            if world.measure_from_strike:
                before = await self._begin()
            measured.honest = await self.load.run(seconds)
            await self._measure(measured, before)
        finally:
            task.cancel()
            await asyncio.wait({task})
        measured.problems, measured.notes = world.verdict()
        measured.notes += sorted(set(self.watchers.failures))[:5]
        await self._clean_up(world)
        await self._recover(measured)
        # What an attack has begun may end a controller, or double an allocation, when it is over already.
        measured.restarts = sum(r.restarts for r in self.controllers.replicas) - before.restarts
        measured.doubled = self.watch.devices.doubled[before.doubled :]
        measured.seconds = time.monotonic() - started
        return measured

    async def _prepared(self, task: asyncio.Task[None], world: AttackedCluster) -> None:
        striking = asyncio.create_task(world.struck.wait())
        try:
            async with asyncio.timeout(_PREPARATION_SECONDS):
                await asyncio.wait({task, striking}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            world.problems.append(f"it was not prepared within {_PREPARATION_SECONDS:g} s")
        finally:
            striking.cancel()

    async def _begin(self) -> _Before:
        """Note what is counted from now on."""
        await asyncio.sleep(0.1)  # a delay that has just ended must be counted before the metrics are read
        replicas = self.controllers.replicas
        lags = {r.number: (r.pid, lag_of(await r.metrics())) for r in replicas}
        self.watchers.begin()
        return _Before(lags, sum(r.restarts for r in replicas), len(self.watch.devices.doubled))

    async def _measure(self, measured: Measured, before: _Before) -> None:
        replicas = self.controllers.replicas
        lags = [await self._lag(r, *before.lags[r.number]) for r in replicas if not r.excused]
        measured.lag = [lag for lag in lags if lag is not None] if None not in lags else None
        watchers = self.watchers
        measured.probe, measured.review = watchers.longest()
        measured.memory, measured.noise, measured.server = watchers.memory, watchers.noise, watchers.server

    async def _lag(self, replica: Replica, pid: int, before: Lag | None) -> Lag | None:
        """Return the delays since the beginning of the measurement; None where they cannot be read.

        A process that began since and does not answer yet has none: that it began is counted elsewhere.
        """
        same = replica.pid == pid
        after = lag_of(await replica.metrics(30.0 if same else 1.0))
        if after is None:
            return None if same else Lag({}, 0.0)
        return lag_between(before if same else None, after)

    # --- between two attacks --------------------------------------------------------------------------------

    async def _clean_up(self, world: AttackedCluster) -> None:
        """Delete everything that the attack has written."""
        await _side_by_side(world.namespaces, lambda name: self.api.delete_all("Pod", name))
        await _side_by_side(world.namespaces, lambda name: self.api.delete_all("ResourceClaim", name))
        left = [o for o in await self.api.items("ResourceClaim") if o["metadata"]["namespace"] != HONEST]
        await _side_by_side(left, self.api.free)
        if world.foreign_inventories:
            for kind in ("Node", "DeviceInventory", "ResourceSlice"):
                foreign = [o["metadata"]["name"] for o in await self.api.items(kind) if _is_foreign(o)]
                await _side_by_side(foreign, lambda name, kind=kind: self.api.delete(kind, name))  # type: ignore[misc]

    async def _recover(self, measured: Measured) -> None:
        """Wait until honest pods are served as before; kill the controllers if it takes too long."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        if (measured.memory or 0) > BARS.memory:
            measured.notes.append(
                "started anew, so that what it has left in memory is not held against the next"
            )
            deadline = 0.0
        while time.monotonic() < deadline:
            if await self.controllers.leading() and await self.load.canary() < _WELL_SECONDS:
                return
            await asyncio.sleep(0.2)
        if deadline:
            measured.notes.append(
                f"started anew, as it was not well {_RECOVERY_SECONDS:g} s after the attack"
            )
        await self.controllers.replace()
        await self.load.canary()


async def _guarded(attack: Attack, world: AttackedCluster) -> None:
    try:
        await attack.run(world)
    except Exception as e:
        world.problems.append(f"the attack failed: {type(e).__name__}: {e}")
    finally:
        world.strike()


def _is_foreign(o: Manifest) -> bool:
    """Whether an object is of a node, or a driver, of an attacker's."""
    spec = o.get("spec") or {}
    named = (o["metadata"]["name"], spec.get("nodeName", ""))
    return any(n.startswith(("liar-", "nowhere-")) for n in named) or "example.com" in spec.get("driver", "")


async def _side_by_side(found: Sequence[T], do: Callable[[T], Awaitable[None]]) -> None:
    waiting = iter(found)

    async def work() -> None:
        for one in waiting:
            await do(one)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(work())


# --- the beginning --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def stage(
    folder: Path, nodes: int, seed: int, log: Callable[[str], None], *, open_pools: bool
) -> AsyncIterator[Stage]:
    """Start everything, publish the nodes' devices, and yield when the first honest pods are served."""
    async with api_server(folder) as (api, kubeconfig):
        await _load(api, nodes)
        log(f"{nodes} nodes")
        own = await install_open_pools(api, kubeconfig, folder) if open_pools else kubeconfig
        controllers = Controllers.at(api, own, folder, open_pools=open_pools)
        controllers.log = log
        watch = ClaimWatch(api)
        load = HonestLoad(api, watch, seed)
        watchers = Watchers(controllers)
        tasks = [asyncio.create_task(job) for job in (controllers.keep(), watch.run(), watchers.listen())]
        try:
            await controllers.leader(120)
            await _published(api, nodes)
            log(f"published, pools are {await _kind_of_pools(api, open_pools=open_pools)}")
            while await load.canary() > _WELL_SECONDS:
                pass
            watchers.start()
            yield Stage(api, controllers, watch, load, watchers, nodes, seed, log)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(watchers.stop)
            await controllers.stop()


async def _load(api: Api, nodes: int) -> None:
    """Create namespaces, the authority of the webhooks, classes, nodes and inventories."""
    for name in (SYSTEM_NAMESPACE, HONEST, TENANT):
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    metadata = {"name": OBJECT_NAME, "namespace": SYSTEM_NAMESPACE}
    data = with_new_authority(None, time.time()).authorities_to_secret()
    await api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    selector = {"cel": {"expression": f'device.driver == "{RDMA_DRIVER_NAME}"'}}
    await api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": objects.NIC_CLASS},
            "spec": {"selectors": [selector]},
        }
    )
    make = fleet.inventories()

    async def one(number: int) -> None:
        status, made = await api.create(objects.node(number))
        if status != 201:
            raise RuntimeError(f"node {number}: {made}")
        uid = made["metadata"]["uid"]
        inventories = [{**make(number, uid), "kind": "DeviceInventory"}]
        if objects.SIX in made["metadata"]["labels"]:
            inventories.append(objects.nic_inventory(number, uid))
        for inventory in inventories:
            status, answer = await api.create(inventory)
            if status != 201:
                raise RuntimeError(f"inventory of node {number}: {answer}")
            registration = {"registration": {"registered": True, "epoch": 1}}
            await api.patch(f"{path_of(inventory)}/status", {"status": registration})

    await _side_by_side(range(nodes), one)


async def _published(api: Api, nodes: int) -> None:
    deadline = time.monotonic() + 120 + nodes
    wanted = nodes + min(nodes, 6)
    while (found := await _slices(api)) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {wanted} pools are published")
        await asyncio.sleep(1)


async def _kind_of_pools(api: Api, *, open_pools: bool) -> object:
    """Wait until all pools are of the kind that they are to be; return its name."""
    wanted: object = (AllocatorRecord.OPEN if open_pools else AllocatorRecord.CONTROLLER).value
    deadline = time.monotonic() + 300
    while True:
        found = Counter(i["status"]["publication"]["allocator"] for i in await api.items("DeviceInventory"))
        if found.keys() == {wanted}:
            return wanted
        if time.monotonic() > deadline:
            raise TimeoutError(f"pools are to be {wanted}; there are {dict(found)}")
        await asyncio.sleep(1)


async def _slices(api: Api) -> int:
    """Return the number of all slices."""
    _, page = await api.call("GET", "/apis/resource.k8s.io/v1/resourceslices?limit=1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))
