"""The same pods, allocated by kube-scheduler and by our controller, on an existing cluster: prints figures.

``python tests/e2e/compare_allocators.py [--nodes N] [--pods N]`` with KUBECONFIG and E2E_IMAGE set as for
``make e2e CLUSTER=existing``. Who allocates is changed by a DevicePolicy, which goes at the end. With
``--nodes``, N simulated nodes of two GPUs, cut into all their partitions, stand beside the real ones; nothing
runs on them, so pods are followed until they are bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import controller_scenarios as scenarios
import msgspec
from controller_watch import Follower, PodTimes, following, pod_body, template_body
from e2e_support import IMAGE

from dra_driver.api import codec
from dra_driver.api.core import NAMESPACES, NODES, PODS
from dra_driver.api.inventory import DEVICE_INVENTORIES, DeviceInventorySpec, inventory_name
from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from dra_driver.discovery.registry import open_backend
from dra_driver.errors import DraError, NotFound
from dra_driver.kube import KubeApi

POLICY, NAMESPACE, LABEL = "compare-allocators", "dra-e2e-compare", "dra-e2e/simulated"
MODES = ("controller", "scheduler")


async def allocate_by(api: KubeApi, mode: str, *, partitions: bool) -> None:
    """Gives all pools to one of the two, and waits until they have changed hands."""
    spec = {"allocator": mode, **({"partitions": {"profiles": ["*"]}} if partitions else {})}
    meta = {"name": POLICY}
    body = {"apiVersion": DEVICE_POLICIES.api_version, "kind": "DevicePolicy", "metadata": meta, "spec": spec}
    await api.apply(DEVICE_POLICIES, body, field_manager="compare-allocators", force=True)

    async def done() -> bool:
        found = (await api.list(DEVICE_INVENTORIES)).items
        if not all(i.status.publication.allocator == mode for i in found):
            return False
        slices = (await api.list(RESOURCE_SLICES)).items
        cut = {s.spec.node_name for s in slices if s.spec.shared_counters}
        return not partitions or cut == {i.spec.node_name for i in found}

    await scenarios.until(f"all pools to be allocated by the {mode}", done, 300)


async def simulated_nodes(api: KubeApi, number: int) -> None:
    """Node objects and inventories as their plugins would write them."""
    backend = open_backend(
        "simulated=dgx-h100", sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="x"
    )
    devices = tuple(msgspec.structs.replace(f.device, links=()) for f in backend.discover()[:2])
    backend.close()
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}

    async def one(i: int) -> None:
        name = f"simulated-{i:04}"
        meta = {"name": name, "labels": {LABEL: "true"}}
        node = await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        status: dict[str, Any] = {"allocatable": amounts, "capacity": amounts}
        await api.merge_patch(NODES, name, {"status": status}, subresource="status")
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}
        spec = DeviceInventorySpec(node_name=name, driver=DriverName(DEFAULT_DRIVER_NAME), devices=devices)
        body = {
            "apiVersion": DEVICE_INVENTORIES.api_version,
            "kind": "DeviceInventory",
            "metadata": {"name": inventory_name(name, DEFAULT_DRIVER_NAME), "ownerReferences": [owner]},
            "spec": msgspec.json.decode(codec.encode(spec)),
        }
        await api.create(DEVICE_INVENTORIES, body)
        status = {"registration": {"registered": True, "epoch": 1}}
        await api.merge_patch(
            DEVICE_INVENTORIES, body["metadata"]["name"], {"status": status}, subresource="status"
        )

    for start in range(0, number, 16):
        async with asyncio.TaskGroup() as group:
            for i in range(start, min(number, start + 16)):
                group.create_task(one(i))


async def no_simulated_nodes(api: KubeApi) -> None:
    """Away with them; the garbage collector takes what they own."""
    for node in (await api.list(NODES, label_selector=LABEL)).items:
        await api.delete(NODES, node.metadata.name)

    async def gone() -> bool:
        found = (await api.list(RESOURCE_SLICES)).items
        return not any((s.spec.node_name or "").startswith("simulated-") for s in found)

    await scenarios.until("the slices of simulated nodes to go", gone, 300)


# --- measurements -------------------------------------------------------------------------------------------

Figures = dict[str, str]


async def _timed(f: Follower, scenario: Awaitable[Any]) -> Figures:
    started = time.monotonic()
    try:
        await scenario
    except AssertionError as e:
        return {"result": str(e)[:90]}
    return {
        "all ended": f"{time.monotonic() - started:.1f} s",
        "created to bound, median / slowest": f.summary("bound"),
        "created to started, median / slowest": f.summary("started"),
    }


async def one_by_one(f: Follower) -> None:
    """Ten pods, each after the one before has ended."""
    for i in range(10):
        await f.create(pod_body(f"single-{i}", f.namespace, IMAGE))
        await f.until("ended", seconds=120)


def on_real_nodes(mode: str) -> dict[str, Callable[[Follower], Awaitable[Any]]]:
    """What is tried. kube-scheduler knows no groups, and never meets pods that are bound already."""
    found: dict[str, Callable[[Follower], Awaitable[Any]]] = {
        "10 pods, one by one": one_by_one,
        f"{scenarios.WAVES} pods in waves": scenarios.waves,
        "20 pods among 10 without room": scenarios.mixed_cpu,
    }
    if mode == "controller":
        found["a group of 8"] = scenarios.group
    return found


async def real_nodes(api: KubeApi, mode: str) -> list[tuple[str, str, Figures]]:
    """All scenarios."""
    rows = []
    for name, scenario in on_real_nodes(mode).items():
        await scenarios.make_namespace(api, NAMESPACE, ours=mode == "controller")
        async with following(api, NAMESPACE) as f:
            rows.append((name, mode, await _timed(f, scenario(f))))
            print(*rows[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
        await _away(api)
    return rows


async def on_simulated_nodes(api: KubeApi, mode: str, *, gate: bool, pods: int) -> Figures:
    """Claims for a partition, and one pod without claims behind them."""
    await scenarios.make_namespace(api, NAMESPACE, ours=gate)
    body = template_body("mig", NAMESPACE, f"mig.{DEFAULT_DRIVER_NAME}")
    await scenarios.create(api, RESOURCE_CLAIM_TEMPLATES, body)
    claims = {"gpu": {"resourceClaimTemplateName": "mig"}}
    async with following(api, NAMESPACE) as f:
        for name in (*(f"mig-{i:03}" for i in range(pods)), "ordinary"):
            pod = pod_body(name, NAMESPACE, IMAGE, claims={} if name == "ordinary" else claims)
            pod["spec"]["nodeSelector"] = {LABEL: "true"}
            pod["spec"]["tolerations"] = [{"operator": "Exists"}]  # nobody reports that these nodes live
            await f.create(pod)
        started = time.monotonic()
        try:
            await f.until("bound", seconds=280)
            took = f"{time.monotonic() - started:.1f} s"
        except AssertionError as e:
            took = str(e)[:60]
        figures = {
            f"{pods} pods bound in": took,
            "created to bound, median / slowest": f.summary("bound"),
            "the ordinary pod behind them": _seconds(f.pods["ordinary"]),
        }
    await _away(api)
    return figures


def _seconds(times: PodTimes) -> str:
    return "never" if times.bound is None else f"{times.bound - times.created:.1f} s"


async def _away(api: KubeApi) -> None:
    for pod in (await api.list(PODS, NAMESPACE)).items:
        try:
            simulated = pod.spec.node_name.startswith("simulated-")
            await api.delete(
                PODS, pod.metadata.name, NAMESPACE, grace_period_seconds=0 if simulated else None
            )
        except NotFound:
            pass
    await scenarios.clean(api, NAMESPACE)
    await api.delete(NAMESPACES, NAMESPACE)

    async def gone() -> bool:
        return NAMESPACE not in {n.metadata.name for n in (await api.list(NAMESPACES)).items}

    await scenarios.until("the namespace to go", gone)


async def compare(arguments: argparse.Namespace) -> None:
    """Everything, in both modes; cleans up whatever happens."""
    path = os.environ.get("KUBECONFIG")
    async with await KubeApi.connect(Path(path) if path else None) as api:
        try:
            if arguments.nodes:
                await simulated_nodes(api, arguments.nodes)
            for mode in arguments.modes:
                started = time.monotonic()
                await allocate_by(api, mode, partitions=bool(arguments.nodes))
                slices = len((await api.list(RESOURCE_SLICES)).items)
                print(f"{mode}: {slices} slices, after {time.monotonic() - started:.0f} s", flush=True)
                if not arguments.nodes:
                    await real_nodes(api, mode)
                    continue
                for gate in (True, False) if mode == "controller" else (False,):
                    figures = await on_simulated_nodes(api, mode, gate=gate, pods=arguments.pods)
                    text = "with the gate" if gate else "without the gate"
                    print(text, mode, figures, f"load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            for what in (api.delete(DEVICE_POLICIES, POLICY), no_simulated_nodes(api)):
                try:
                    await what
                except DraError as e:
                    print(e)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=0, help="simulated nodes; 0: the real nodes alone")
    parser.add_argument("--pods", type=int, default=20, help="pods on simulated nodes")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="who allocates, in turn")
    asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
