"""Clusters that the end-to-end suite can run against, and a loop that keeps one open over many tests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import capabilities
import yaml
from embedded_actions import EmbeddedActions
from local_actions import LocalActions

from controller.admission.config import OBJECT_NAME
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.names import ALLOCATOR_LABEL, DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.api.server.admission import MUTATING_WEBHOOKS
from dra_driver.errors import ApiUnavailable, DraError, NotFound
from dra_driver.kube import KubeApi
from dra_driver.sim import assets
from dra_driver.sim.apiserver import DEFAULT, RELEASES
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.demo import examples
from dra_driver.sim.demo.cluster import demo_cluster
from kubelet_plugin.claims.checkpoint_file import read_checkpoint

T = TypeVar("T")

# For clusters that cannot pull it; needs sh, env, grep, sort and sleep.
IMAGE = os.environ.get("E2E_IMAGE") or "busybox:1.37"
# The kubelet repeats a prepare that failed only after 65 to 84 s.
SECONDS = 150.0

OBJECTS, EXAMPLES = examples.load_manifests(assets.deploy_directory("examples"))
for _body in OBJECTS:
    for _container in _body.get("spec", {}).get("containers", ()):
        _container["image"] = IMAGE
SETUP = examples.setup_objects(OBJECTS)


class Actions(Protocol):
    """What can be done to a cluster of our own beyond its API."""

    @property
    def parts(self) -> tuple[str, ...]:
        """What ``kill`` knows."""

    async def kill(self, part: str, node: str) -> None:
        """Kills ``plugin``, ``kubelet``, ``controller`` or ``runtime`` and sees that it starts again."""

    async def agent(self, node: str, *, runs: bool) -> None:
        """Kills the node agent with SIGKILL, and again whenever it starts; or lets it run again."""

    async def reboot(self, node: str, change: Callable[[], None] = ...) -> None:
        """Ends all processes of the node, empties its tmpfs, gives it another boot ID; it comes up again.

        ``change`` is called in between: what a machine has may be other things after a reboot.
        """

    def hardware(self, node: str) -> Path:
        """The profile of the node's simulated GPUs, which is read again and again."""

    def state(self, node: str) -> tuple[Path, Path]:
        """The state folder of the node agent for GPUs, and the node's CDI folder."""

    def pod_resources(self, node: str) -> Path:
        """The socket by which the node's kubelet lists pods and their claims."""

    async def previous(self) -> str:
        """Puts the version before in the place of this one; says which, or why not after ``-``."""

    async def current(self, node: str) -> None:
        """Updates to this version, node agents one beside the other for a while."""

    async def publish(self, node: str, *, by_node: bool) -> None:
        """Runs the node agent for GPUs with ``--publish=node``, or without."""

    async def controllers(self, *, run: bool) -> None:
        """Ends every controller, or starts what there was."""

    async def preempt(self, *, on: bool) -> None:
        """Turns preemption on, with the rights that it needs; off: everything as it was installed."""

    async def uninstall(self) -> list[str]:
        """Takes the driver off, and says what is left of it on nodes."""


class Cluster(Protocol):
    """What the suite needs of a cluster.

    Attributes:
        api: with the rights of an administrator.
        actions: None on a cluster that is not the suite's own.
        served: what the API server can do, by the names of ``capabilities.CAPABILITIES``.
    """

    api: KubeApi
    actions: Actions | None
    served: Mapping[str, bool]

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        """What each container of a running pod sees; None where that cannot be told."""


class Embedded:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.actions: Actions | None = EmbeddedActions(cluster)
        self.served: Mapping[str, bool] = {}

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        sandbox = self.cluster.nodes[pod.spec.node_name].kubelet.runtime.sandboxes.get(pod.metadata.uid)
        return {name: c.view for name, c in sandbox.containers.items()} if sandbox is not None else {}


class Existing:
    def __init__(self, api: KubeApi, actions: Actions | None = None) -> None:
        self.api = api
        self.actions = actions
        self.served: Mapping[str, bool] = {}

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        # The suite's containers print the variables that they got, shortly after they have started.
        views: dict[str, ContainerView] = {}
        for container in pod.spec.containers:
            text = await self._log(pod, container.name)
            if text is None:
                return None
            lines = [line.partition("=") for line in text.splitlines() if "=" in line]
            views[container.name] = ContainerView(env={key: value for key, _, value in lines})
        return views

    async def _log(self, pod: Pod, container: str) -> str | None:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"
        for _ in range(50):
            try:
                text = (await self.api._call("GET", path, query={"container": container})).decode()
            except DraError:
                return None
            if text:
                return text
            await asyncio.sleep(0.1)
        return None


class Background:
    """An event loop in a thread of its own, so that one cluster serves many synchronous tests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="cluster", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = SECONDS * 4) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.asynccontextmanager
async def open_cluster(kind: str) -> AsyncIterator[Cluster]:
    if kind == "embedded":
        release = os.environ.get("KUBERNETES") or DEFAULT
        config = dataclasses.replace(
            demo_cluster(),
            plugin_flags=("--rescan-interval=1",),
            kubernetes=release,
            gates=RELEASES.get(release, ()) if release != DEFAULT else (),
        )
        async with EmbeddedCluster(config) as cluster:
            await cluster.ready()
            yield Embedded(cluster)
    else:
        path = os.environ.get("KUBECONFIG")
        async with await KubeApi.connect(Path(path) if path else None) as api:
            yield Existing(api, LocalActions(api) if kind == "local" else None)


async def eventually(what: str, condition: Callable[[], Awaitable[bool]], seconds: float = SECONDS) -> None:
    """Waits until the condition holds; an API server that is away does not count."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        with contextlib.suppress(ApiUnavailable):
            if await condition():
                return
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.1)


async def set_up(cluster: Cluster) -> None:
    """Applies what an admin sets up for the examples, and waits until the devices show it.

    What the API server makes impossible is not waited for.
    """
    served = cluster.served = await _served(cluster)
    await examples.apply(cluster.api, SETUP)

    async def shown() -> bool:
        devices = [d for s in (await cluster.api.list(RESOURCE_SLICES)).items for d in s.spec.devices]
        models = {getattr(d.attributes.get("model"), "string_value", "") for d in devices}
        return (
            ("H200" not in models or any("busy" in d.attributes for d in devices))
            and (
                "L40S" not in models
                or not served["consumable capacity"]
                or any(d.allow_multiple_allocations for d in devices)
            )
            and (
                "A100-SXM4-80GB" not in models
                or not served["partitionable devices"]
                or any("profile" in d.attributes for d in devices)
            )
        )

    await eventually("the policies of the examples", shown)


async def _served(cluster: Cluster) -> Mapping[str, bool]:
    """Return what the API server can do. Where pods get the gate, the controller allocates at any rate."""
    found = await capabilities.probe(cluster.api)
    webhooks = (await cluster.api.list(MUTATING_WEBHOOKS)).items
    gated = found["gate policy"] or any(w.metadata.name == OBJECT_NAME for w in webhooks)
    return {**found, "allocation by the controller": found["allocation by the controller"] or gated}


async def clear(cluster: Cluster, namespace: str) -> None:
    """Deletes all pods and claims of a namespace and waits until they are gone."""
    resources: tuple[Resource[Any], ...] = (PODS, RESOURCE_CLAIMS)
    for resource in resources:
        for item in (await cluster.api.list(resource, namespace)).items:
            if resource is RESOURCE_CLAIMS and item.metadata.owner_references:
                # It goes with its pod. Deleted before, the claim of an extended resource would stay on 1.34,
                # whose controller-manager does not look at it when the pod has ended.
                continue
            with contextlib.suppress(NotFound):
                await cluster.api.delete(resource, item.metadata.name, namespace)

    async def empty() -> bool:
        pods = await cluster.api.list(PODS, namespace)
        return not pods.items and not (await cluster.api.list(RESOURCE_CLAIMS, namespace)).items

    await eventually(f"namespace {namespace} to be empty", empty)


async def make_namespace(cluster: Cluster, name: str) -> None:
    """One whose claims our controller allocates."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    body["metadata"]["labels"] = {ALLOCATOR_LABEL: "controller"}  # type: ignore[index]
    await examples.apply(cluster.api, [body])


async def published(cluster: Cluster) -> dict[str, int]:
    """Node → epoch of its GPUs, of those whose slices are those of the present epoch."""
    found: dict[str, int] = {}
    for inventory in (await cluster.api.list(DEVICE_INVENTORIES)).items:
        registration, publication = inventory.status.registration, inventory.status.publication
        current = registration.registered and publication.epoch == registration.epoch
        if inventory.spec.driver == DEFAULT_DRIVER_NAME and current:
            found[inventory.spec.node_name] = registration.epoch
    return found


async def every_node_published(cluster: Cluster) -> bool:
    nodes = {n.metadata.name for n in (await cluster.api.list(NODES)).items}
    return nodes <= set(await published(cluster))


def leftovers(cluster: Cluster, node: str) -> list[str]:
    """What claims have left on a node: CDI files, entries of the checkpoint, MPS daemons, MIG instances."""
    assert cluster.actions is not None
    state, cdi = cluster.actions.state(node)
    found = [f"CDI file {path.name}" for path in sorted(cdi.glob("k8s.*")) if path.is_file()]
    claims = read_checkpoint(state / "checkpoint.json")
    found += [f"checkpoint entry of {claim.key}" for claim in claims]
    found += [f"MPS daemon of {path.name}" for path in sorted(state.glob("mps/[!.]*"))]
    found += [
        f"MIG instances of {uuid}"
        for uuid, gpu in gpu_settings(cluster, node).items()
        if gpu.get("instances")
    ]
    return [f"{node}: {item}" for item in found]


def gpu_settings(cluster: Cluster, node: str) -> Mapping[str, Mapping[str, Any]]:
    """What is set on a node's simulated GPUs."""
    assert cluster.actions is not None
    try:
        found: dict[str, dict[str, Any]] = json.loads(
            (cluster.actions.state(node)[0] / "simulated-gpus.json").read_bytes()
        )
    except FileNotFoundError:
        return {}
    return found


def set_health(cluster: Cluster, node: str, device: str, *health: Mapping[str, str]) -> None:
    """Makes a simulated GPU ill, or well again without arguments."""
    assert cluster.actions is not None
    file = cluster.actions.hardware(node)
    profile = yaml.safe_load(file.read_text())
    for gpu in profile["gpus"]:
        if "gpu-" + gpu["pciAddress"].replace(":", "-").replace(".", "-") == device:
            gpu["health"] = [dict(h) for h in health]
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump(profile))
    new.replace(file)


async def running(cluster: Cluster, namespace: str, *names: str) -> list[Pod]:
    """The pods, once all of them run."""

    async def reached() -> bool:
        for name in names:
            found: Pod = await cluster.api.get(PODS, name, namespace)
            if found.status.phase != "Running":
                return False
        return True

    await eventually(f"{', '.join(names)} to run", reached)
    return [await cluster.api.get(PODS, name, namespace) for name in names]


async def allocated(cluster: Cluster, namespace: str, name: str) -> list[tuple[str, str]]:
    """(request, device) of a claim."""
    found: ResourceClaim = await cluster.api.get(RESOURCE_CLAIMS, name, namespace)
    assert found.status.allocation is not None
    return [(r.request, r.device) for r in found.status.allocation.devices.results]


def claim(namespace: str, name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    """A ResourceClaim; a request without a name is ``gpu``."""
    named = [r if "name" in r else {"name": "gpu", "exactly": r} for r in requests]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": named, **devices}},
    }


def pod(
    namespace: str,
    name: str,
    used: str,
    *,
    command: str = "env | grep -E '^(DRA|CUDA)_' | sort; sleep 3600",
    labels: Mapping[str, str] | None = None,
    containers: Mapping[str, dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod with the claim ``used``; each container names what it wants of it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": used}],
            "containers": [
                {
                    "name": container,
                    "image": IMAGE,
                    "command": ["sh", "-c", command],
                    "resources": {"claims": [{"name": "gpu", **wanted}]},
                }
                for container, wanted in (containers or {"main": {}}).items()
            ],
            **spec,
        },
    }
