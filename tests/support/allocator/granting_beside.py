"""A controller that grants devices beside a kube-scheduler, with the rights and policies of the chart.

Nodes are objects only, so the test does what their agents do, and what kube-controller-manager does for the
claims of pods that are gone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import builders
import pytest
from builders import device, device_class, inventory, resource_slice
from gate_files import GATE_COLLECTIONS, WITHOUT_GATE, gate_documents
from manifest_files import documents
from placement_judge import PlacementJudge, judging
from policy_cases import LEADER, SYSTEM, pod
from policy_world import COLLECTIONS, CONTROLLER_ACCOUNT, Accounts, create
from real_apiserver import bound_token
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from controller.admission.pki import with_new_authority
from controller.config import Timings
from dra_driver.api.core import CONFIG_MAPS, NAMESPACES, NODES, PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, PCIE_ROOT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.api.server.admission import ADMISSION_GROUP, MUTATING_POLICIES, MUTATING_WEBHOOKS
from dra_driver.errors import NotFound
from dra_driver.kube import Handler, Informer, KubeApi
from dra_driver.ownership import (
    SHARE,
    AllocatorRecord,
    Grants,
    PoolID,
    bare_devices,
    grant_key,
    recorded_allocator,
)
from dra_driver.resourceclaim import is_gated
from dra_driver.sim.assets import deploy_directory

__all__ = [
    "NAMESPACE",
    "NIC",
    "OURS",
    "PART_RESOURCE",
    "RESOURCE",
    "ROOTS",
    "TIMINGS",
    "Beside",
    "gating",
    "granting_beside",
]

Device = tuple[str, str]

OURS = DriverName(DEFAULT_DRIVER_NAME)
NIC = DriverName("nic.example.com")
RESOURCE, PART_RESOURCE = "vendor.example/gpu", "vendor.example/part"
ROOTS = ("pci0000:00", "pci0000:80")
TIMINGS = Timings(drain=5.0, closing=1.0)
"""A grant is over sooner than with those that people get, and the policy is in force sooner."""
SECONDS = 90.0

_MODEL = f'device.attributes["{OURS}"].model'
_TYPE = f'device.attributes["{OURS}"].type'


def _parts(name: str, size: int, memory: str) -> dict[str, Any]:
    return {
        "name": name,
        "placements": [{"start": start, "size": size} for start in range(0, 4, size)],
        "attributes": {"type": {"string": "mig"}, "profile": {"string": name}},
        "capacity": {"memory": {"value": memory}},
    }


def gpu(number: int, model: str = "whole", **more: Any) -> dict[str, Any]:
    """Return a GPU of an inventory: every second one is at the other root."""
    attributes = {"type": "gpu", "model": model, PCIE_ROOT: ROOTS[number % 2]}
    return device(f"gpu-{number}", "40Gi", attributes=attributes, **more)


def cut_gpu(number: int) -> dict[str, Any]:
    """Return a GPU of which parts are published."""
    parts = [_parts("1g.10gb", 1, "10Gi"), _parts("4g.40gb", 4, "40Gi")]
    return gpu(number, "cut", partitions=parts)


def shared_gpu(number: int) -> dict[str, Any]:
    """Return a GPU that claims share by memory."""
    return gpu(number, "shared")


def _devices(forms: Iterable[tuple[PoolID, str]]) -> frozenset[Device]:
    """Return the devices of forms, whether they are granted as a whole or as a share."""
    return frozenset((str(pool.pool), form.removesuffix(SHARE)) for pool, form in forms)


class Seen:
    """What the watches have shown, and when.

    Attributes:
        granted_at: seconds at which a device was last granted.
        bound: seconds at which a pod was bound.
        granted: what the object says.
    """

    def __init__(self, world: SchedulingWorld) -> None:
        api = world.api
        self.slices = Informer(api, RESOURCE_SLICES)
        self.inventories = Informer(api, DEVICE_INVENTORIES)
        self.pods = Informer(api, PODS, namespace=NAMESPACE)
        self.claims = Informer(api, RESOURCE_CLAIMS, namespace=NAMESPACE)
        self.maps = Informer(api, CONFIG_MAPS, namespace=SYSTEM)
        self.granted = Grants()
        self.granted_at: dict[Device, float] = {}
        self.bound: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._follow(self.maps, self._maps_changed)
        self._follow(self.pods, self._pods_changed)
        for other in (self.inventories, self.claims, self.slices):
            self._follow(other, lambda: None)

    def _follow(self, informer: Informer[Any], look: Callable[[], None]) -> None:
        def seen(*_: object) -> None:
            look()
            self._changed.set()

        informer.add_handler(Handler(seen, seen, seen))

    def _maps_changed(self) -> None:
        before = self.devices
        for one in self.maps.items():
            if one.metadata.name == GRANTS:
                self.granted = Grants.of_data(one.data or {})
        now = asyncio.get_running_loop().time()
        self.granted_at |= dict.fromkeys(self.devices - before, now)

    def _pods_changed(self) -> None:
        for one in self.pods.items():
            if one.spec.node_name:
                self.bound.setdefault(one.metadata.name, asyncio.get_running_loop().time())

    @property
    def bare(self) -> frozenset[Device]:
        """The devices of ours without our taint."""
        ours = [s for s in self.slices.items() if s.spec.driver == OURS]
        return frozenset((str(s.spec.pool.name), name) for s in ours for name in bare_devices(s))

    @property
    def devices(self) -> frozenset[Device]:
        """The devices of ours that are granted to one claim or another."""
        return _devices(form for forms in self.granted.devices.values() for form in forms)

    def of_claim(self, claim: ResourceClaim) -> frozenset[Device]:
        """Return the devices that are granted to a claim."""
        return _devices(self.granted.devices.get(grant_key(claim), frozenset()))

    def claims_of(self, name: str) -> list[ResourceClaim]:
        """Return the claims that were made for a pod, and the one of its name."""
        return [
            c
            for c in self.claims.items()
            if c.metadata.name == name or any(o.name == name for o in c.metadata.owner_references or ())
        ]

    def has(self, name: str) -> set[Device]:
        """Return the devices of ours that a pod has been allocated."""
        return {(pool, device) for driver, pool, device in self.has_of_all(name) if driver == OURS}

    def has_of_all(self, name: str) -> set[tuple[str, str, str]]:
        """Return the devices that a pod has been allocated, with their drivers."""
        return {
            (str(r.driver), str(r.pool), r.device)
            for c in self.claims_of(name)
            if c.status.allocation is not None
            for r in c.status.allocation.devices.results
        }

    async def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until something is so; it is looked at after every change."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Watch until the block ends."""
        informers = (self.slices, self.inventories, self.pods, self.claims, self.maps)
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        try:
            for informer in informers:
                await informer.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class Beside:
    """The world, and those in it who are neither our controller nor kube-scheduler.

    Attributes:
        world: with kube-scheduler.
        seen: what the watches have shown.
        judge: of what must never be.
    """

    def __init__(self, world: SchedulingWorld, seen: Seen, judge: PlacementJudge, token: str) -> None:
        self.world = world
        self.seen = seen
        self.judge = judge
        self._token = token

    @contextlib.asynccontextmanager
    async def controller(self, **config: Any) -> AsyncIterator[None]:
        """Run a controller with its own account until the block ends; it ends at once."""
        config = {"drivers": (OURS,), "open_pools": True, "timings": TIMINGS, **config}
        async with self.world.controller(token=self._token, **config):
            yield

    # --- nodes ----------------------------------------------------------------------------------------------

    async def node(self, name: str, *devices: dict[str, Any], nics: Iterable[str] = ()) -> None:
        """Make a node whose agent has found these devices.

        Args:
            name: of the node.
            devices: of ours.
            nics: the roots of devices of another driver.
        """
        api = self.world.api
        await self.world.node(name, gpus=0)
        await api.delete(RESOURCE_SLICES, f"{name}-{builders.DRIVER}")
        uid = (await api.get(NODES, name)).metadata.uid
        body = inventory(name, *devices, driver=OURS, node_uid=uid)
        status = {"status": body.pop("status")}
        await api.create(DEVICE_INVENTORIES, body)
        await api.merge_patch(DEVICE_INVENTORIES, f"{name}.{OURS}", status, subresource="status")
        found = [device(f"nic-{i}", attributes={PCIE_ROOT: root}) for i, root in enumerate(nics)]
        if found:
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            await api.create(RESOURCE_SLICES, {**body, **resource_slice(name, *found, driver=NIC)})

    async def wipe(self, node: str) -> None:
        """Do as a kubelet whose plugins are gone for a while."""
        for one in (await self.world.api.list(RESOURCE_SLICES)).items:
            if one.spec.driver == OURS and one.spec.node_name == node:
                with contextlib.suppress(NotFound):
                    await self.world.api.delete(RESOURCE_SLICES, one.metadata.name)

    async def register(self, node: str) -> None:
        """Do as the agent of a node whose slices are gone: ask for them again."""
        name = f"{node}.{OURS}"
        found: DeviceInventory = await self.world.api.get(DEVICE_INVENTORIES, name)
        registration = {"registered": True, "epoch": found.status.registration.epoch + 1}
        patch = {"status": {"registration": registration}}
        await self.world.api.merge_patch(DEVICE_INVENTORIES, name, patch, subresource="status")

    async def policy(self, name: str, model: str, **spec: Any) -> None:
        """Make a DevicePolicy for the devices of a model."""
        selector = {"cel": {"expression": f'{_MODEL} == "{model}"'}}
        body = {
            "apiVersion": "dra-driver.dev/v1alpha1",
            "kind": "DevicePolicy",
            "metadata": {"name": name},
            "spec": {"deviceSelectors": [selector], **spec},
        }
        await self.world.api.create(DEVICE_POLICIES, body)

    # --- pods -----------------------------------------------------------------------------------------------

    async def pod(
        self,
        name: str,
        *claims: str,
        amount: int = 0,
        resource: str = RESOURCE,
        gated: bool = True,
        **spec: Any,
    ) -> None:
        """Make a pod with claims, or so many devices as an extended resource."""
        if not gated:
            spec |= WITHOUT_GATE
        if amount:
            resources = {"limits": {resource: str(amount)}, "requests": {resource: str(amount)}}
            spec["containers"] = [{"name": "c", "image": "i", "resources": resources}]
        await self.world.pod(name, *claims, gated=gated, **spec)

    async def mixed(self, name: str, *requests: dict[str, Any], **more: Any) -> None:
        """Make a pod with a claim of its name, for these and a device of another driver."""
        nic = builders.request("nic", "nic")
        body = builders.claim(name, *requests, nic, namespace=NAMESPACE, **more)
        await self.world.api.create(RESOURCE_CLAIMS, body)
        await self.pod(name, name)

    async def own(self, name: str, *requests: dict[str, Any], count: int = 1) -> None:
        """Make a pod whose devices the controller itself allocates: by default so many whole ones."""
        requests = requests or (builders.request("gpu", "whole", count=count),)
        body = builders.claim(name, *requests, namespace=NAMESPACE)
        await self.world.api.create(RESOURCE_CLAIMS, body)
        await self.pod(name, name)

    async def end(self, *names: str) -> None:
        """Delete pods and their claims, as kube-controller-manager does."""
        api = self.world.api
        for name in names:
            with contextlib.suppress(NotFound):
                await api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
            for found in self.seen.claims_of(name):
                claim = found.metadata.name
                freed = {"status": {"allocation": None, "reservedFor": None}}
                with contextlib.suppress(NotFound):
                    await api.merge_patch(RESOURCE_CLAIMS, claim, freed, NAMESPACE, subresource="status")
                    bare = {"metadata": {"finalizers": None}}
                    await api.merge_patch(RESOURCE_CLAIMS, claim, bare, NAMESPACE)
                    await api.delete(RESOURCE_CLAIMS, claim, NAMESPACE)

    # --- what is waited for ---------------------------------------------------------------------------------

    async def published(self, *nodes: str) -> None:
        """Wait until every device of these nodes is published, in pools that are open."""

        def is_so() -> bool:
            published = {s.spec.node_name for s in self.seen.slices.items() if s.spec.driver == OURS}
            open_ = {
                i.spec.node_name
                for i in self.seen.inventories.items()
                if recorded_allocator(i.status.publication) is AllocatorRecord.OPEN
            }
            return published & open_ >= set(nodes)

        await self.seen.until(is_so)

    async def bound(self, *names: str, seconds: float = SECONDS) -> None:
        """Wait until pods are bound."""
        try:
            await self.seen.until(lambda: set(names) <= self.seen.bound.keys(), seconds)
        except TimeoutError:
            found = {p.metadata.name: p.status.conditions for p in self.seen.pods.items()}
            raise AssertionError({name: found.get(name) for name in names}) from None

    async def back(self, seconds: float = SECONDS) -> None:
        """Wait until nothing is granted any more."""
        await self.seen.until(lambda: not self.seen.devices, seconds)

    async def all_is_ours(self, count: int) -> None:
        """End all pods, and have the controller allocate every device: so many whole ones."""
        await self.end(*(p.metadata.name for p in self.seen.pods.items()))
        await self.back()
        names = [f"all-{i}" for i in range(count)]
        for name in names:
            await self.own(name)
        await self.bound(*names)

    def seconds_to_bind(self, name: str) -> float:
        """Return the seconds from the write of the grant to the binding of a pod."""
        devices = self.seen.has(name)
        return self.seen.bound[name] - max(self.seen.granted_at[one] for one in devices)

    def is_open(self, name: str) -> bool:
        """Whether kube-scheduler looks at a pod."""
        return any(p.metadata.name == name and not is_gated(p) for p in self.seen.pods.items())


# --- the world ----------------------------------------------------------------------------------------------


async def gating(api: KubeApi) -> list[dict[str, Any]]:
    """Return what sets the gate in every namespace: the policy or, before Kubernetes 1.36, the webhook."""
    if MUTATING_POLICIES.plural in await api.served(ADMISSION_GROUP, "v1"):
        return gate_documents()
    found = documents(deploy_directory("optional") / "webhooks.yaml")
    (webhooks,) = (d for d in found if d["kind"] == MUTATING_WEBHOOKS.kind)
    authority = base64.b64encode(with_new_authority(None, time.time()).bundle).decode("ascii")
    for webhook in webhooks["webhooks"]:
        # Nobody answers: the tests set the gate.
        webhook["clientConfig"] = {"url": "https://127.0.0.1:1/gate", "caBundle": authority}
    return [webhooks]


async def _install(world: SchedulingWorld, *, extended: bool) -> str:
    """Install what open pools need; return a token of the controller's account."""
    api = world.api
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    folder = deploy_directory("manifests")
    kinds = {
        "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
        "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims",
        "MutatingWebhookConfiguration": f"/apis/{ADMISSION_GROUP}/v1/{MUTATING_WEBHOOKS.plural}",
        **COLLECTIONS,
        **GATE_COLLECTIONS,
    }
    found = [
        d
        for name in ("rbac", "grants", "account-policies", "kept")
        for d in documents(*folder.glob(f"*{name}.yaml"))
    ]
    for body in (*found, *await gating(api)):
        namespace = body["metadata"].get("namespace", "")
        await create(api, kinds[body["kind"]].format(namespace=namespace), body)
    await create(api, f"/api/v1/namespaces/{SYSTEM}/pods", pod(LEADER, SYSTEM, CONTROLLER_ACCOUNT))
    await Accounts(api, {}).hold(f"{LEADER}_1234")
    reference = {"kind": "Pod", "apiVersion": "v1", "name": LEADER}
    ours = f'device.driver == "{OURS}"'
    for name, expression, resource in (
        ("whole", f'{ours} && {_TYPE} == "gpu" && {_MODEL} != "shared"', {"extendedResourceName": RESOURCE}),
        ("shared", f'{ours} && {_TYPE} == "gpu" && {_MODEL} == "shared"', {}),
        ("part", f'{ours} && {_TYPE} == "mig"', {"extendedResourceName": PART_RESOURCE}),
        ("nic", f'device.driver == "{NIC}"', {}),
    ):
        await api.create(DEVICE_CLASSES, device_class(name, expression, **(resource if extended else {})))
    return await bound_token(api, SYSTEM, CONTROLLER_ACCOUNT, reference)


@contextlib.asynccontextmanager
async def granting_beside(
    kind: str, held_seconds: float = 3.0, *, extended: bool = True
) -> AsyncIterator[Beside]:
    """Start a world in which devices can be granted; fail where a device was in two claims.

    Args:
        kind: ``embedded`` or ``real``.
        held_seconds: see ``placement_judge``.
        extended: whether classes serve extended resources, which needs Kubernetes 1.36.
    """
    async with scheduling_world(kind) as world:
        if extended and MUTATING_POLICIES.plural not in await world.api.served(ADMISSION_GROUP, "v1"):
            pytest.skip("a gate for extended resources needs MutatingAdmissionPolicy in version v1")
        token = await _install(world, extended=extended)
        seen = Seen(world)
        async with judging(world.api, NAMESPACE, held_seconds) as judge, seen.following():
            yield Beside(world, seen, judge, token)
