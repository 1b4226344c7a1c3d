"""Our controller beside a kube-scheduler, on nodes that are objects only: embedded, or the real one."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import builders
import real_gates
import yaml
from builders import DRIVER, PROTECTED
from inline_answers import inline
from manifest_files import documents
from real_apiserver import RealApiServer, binaries, real_apiserver
from real_scheduler import real_scheduler
from without_storage import WithoutStorage

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import NAMESPACES, NODES, PODS, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.storage import (
    BIND_COMPLETED,
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
)
from dra_driver.errors import NotFound
from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import DEFAULT, ApiServer
from dra_driver.sim.assets import deploy_directory
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.objects import MetaObject

__all__ = ["NAMESPACE", "SchedulingWorld", "scheduling_world"]

NAMESPACE = "tenant"
SECONDS = 60.0
STORAGE_DRIVER = "disks.example.com"
CUSTOM: Resource[MetaObject] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    MetaObject,
    namespaced=False,
)


Connect = Callable[[str], Awaitable[KubeApi]]


class Binding(Protocol):
    """What can be slowed down."""

    slow_binding: float


class SchedulingWorld:
    """An API server with a kube-scheduler.

    Attributes:
        api: a client that may do everything.
        scheduler: its ``slow_binding`` are the seconds between a decision and the reservation of claims.
        connect: returns a client with a token, if empty, one that may do everything; the caller closes it.
        server: the real API server, where there is one.
    """

    def __init__(
        self, connect: Connect, api: KubeApi, scheduler: Binding, server: RealApiServer | None = None
    ) -> None:
        self.api = api
        self.scheduler = scheduler
        self.connect = connect
        self.server = server

    @contextlib.asynccontextmanager
    async def controller(
        self, *, reads_storage: bool = True, token: str = "", **config: Any
    ) -> AsyncIterator[None]:
        """Run a controller until the block ends; it ends at once, whatever it is doing.

        Args:
            reads_storage: whether it may read volumes.
            token: of its account; if empty, it may do everything.
            config: what is set.
        """
        settings = ControllerConfig(**{"drivers": (DRIVER,), "leader_elect": False, **config})
        api = await self.connect(token)
        client = api if reads_storage else WithoutStorage(api)
        made = Controller(client, settings, answers_of=inline)
        task = asyncio.create_task(made.run())
        try:
            async with asyncio.timeout(SECONDS):
                await made.ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await api.close()

    async def node(
        self,
        name: str,
        gpus: int,
        *,
        labels: dict[str, str] | None = None,
        protected: bool = True,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Make a node with devices, which the controller allocates where they are protected."""
        await self.api.create(NODES, builders.node(name, labels=labels))
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "10Gi", **(more or {})}
        status = {"allocatable": amounts, "capacity": amounts}
        await self.api.merge_patch(NODES, name, {"status": status}, subresource="status")
        # Admission taints nodes that no kubelet has reported as ready.
        await self.api.merge_patch(NODES, name, {"spec": {"taints": None}})
        taints = {"taints": [PROTECTED]} if protected else {}
        devices = [builders.device(f"gpu-{i}", "40Gi", **taints) for i in range(gpus)]
        slice_ = builders.resource_slice(name, *devices)
        await self.api.create(
            RESOURCE_SLICES, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **slice_}
        )

    async def claim(self, name: str) -> None:
        """Make a claim for one device."""
        await self.api.create(RESOURCE_CLAIMS, builders.claim(name, namespace=NAMESPACE))

    async def pod(self, name: str, *claims: str, gated: bool = True, volume: str = "", **spec: Any) -> None:
        """Make a pod; ``volume`` names a PersistentVolumeClaim."""
        if volume:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]
        body = builders.pod(name, *claims, namespace=NAMESPACE, gated=gated, **spec)
        del body["status"]
        await self.api.create(PODS, body)

    async def attach_limit(self, node: str, count: int) -> None:
        """Say how many volumes of the test's driver can be attached to a node."""
        driver = {"name": STORAGE_DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}}
        body = {"metadata": {"name": node}, "spec": {"drivers": [driver]}}
        with contextlib.suppress(NotFound):
            await self.api.delete(CSI_NODES, node)  # it cannot be changed before 1.35
        await self.api.create(CSI_NODES, {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", **body})

    async def bound_volume(self, claim: str, driver: str = STORAGE_DRIVER) -> None:
        """Make a PersistentVolumeClaim with its volume."""
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "any"}
        volume = {"capacity": {"storage": "1Gi"}, "csi": {"driver": driver, "volumeHandle": claim}, **common}
        await self.api.create(
            PERSISTENT_VOLUMES,
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": volume},
        )
        metadata = {"name": claim, "namespace": NAMESPACE, "annotations": {BIND_COMPLETED: "yes"}}
        spec = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": claim, **common}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        await self.api.create(PERSISTENT_VOLUME_CLAIMS, body, NAMESPACE)

    async def get(self, name: str) -> Pod:
        """Return a pod."""
        return await self.api.get(PODS, name, NAMESPACE)

    async def until_bound(self, names: Iterable[str], seconds: float = SECONDS) -> float:
        """Wait until all of these pods are bound; return the seconds that it took."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            found = (await self.api.list(PODS, NAMESPACE)).items
            bound = {p.metadata.name for p in found if p.spec.node_name}
            if not (left := set(names) - bound):
                return loop.time() - started
            assert loop.time() < started + seconds, f"not bound: {sorted(left)}"
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def scheduling_world(
    kind: str, *, pod_groups: bool = False, kubernetes: str = DEFAULT, gates: Iterable[str] = ()
) -> AsyncIterator[SchedulingWorld]:
    """Start an API server and a kube-scheduler: ``embedded`` or ``real``, skipped without binaries.

    Args:
        kind: of them.
        pod_groups: whether the real ones know PodGroups; skipped where they cannot.
        kubernetes: release of the embedded API server.
        gates: its feature gates that are on.
    """
    if kind == "real":
        binaries()
    with tempfile.TemporaryDirectory() as folder:
        flags = None
        if kind == "real":
            flags = real_gates.pod_group_flags() if pod_groups else real_gates.taint_flags()
        make = _real(Path(folder), flags) if kind == "real" else _embedded(Path(folder), kubernetes, gates)
        async with make as made:
            await made.api.create(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            )
            await made.api.create(DEVICE_CLASSES, builders.device_class("gpu"))
            yield made


def _definitions() -> list[dict[str, Any]]:
    return documents(*sorted((deploy_directory("manifests") / "crds").glob("*.yaml")))


@contextlib.asynccontextmanager
async def _embedded(folder: Path, kubernetes: str, gates: Iterable[str]) -> AsyncIterator[SchedulingWorld]:
    server = ApiServer(kubernetes=kubernetes, gates=gates)
    await server.install(_definitions())
    await server.start()

    async def connect(token: str) -> KubeApi:
        config = server.kubeconfig()
        if token:
            config["users"][0]["user"] = {"token": token}
        path = folder / f"kubeconfig-{abs(hash(token))}"
        path.write_text(yaml.safe_dump(config))
        return await KubeApi.connect(path)

    api, own = await connect(""), await connect("")
    # As the real one, which begins with one second.
    scheduler = Scheduler(own, backoff=1.0)
    task = asyncio.create_task(scheduler.run())
    try:
        yield SchedulingWorld(connect, api, scheduler)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await api.close()
        await own.close()
        await server.stop()


@contextlib.asynccontextmanager
async def _real(folder: Path, gates: real_gates.Flags | None) -> AsyncIterator[SchedulingWorld]:
    with real_apiserver(folder, *(gates.server if gates is not None else ())) as server:
        api = await server.client()
        try:
            for body in _definitions():
                await api.create(CUSTOM, body)
            flags = gates.others if gates is not None else ()

            async def connect(token: str) -> KubeApi:
                return await server.client(*filter(None, (token,)))

            async with real_scheduler(server, folder, *flags) as scheduler:
                yield SchedulingWorld(connect, api, scheduler, server)
        finally:
            await api.close()
