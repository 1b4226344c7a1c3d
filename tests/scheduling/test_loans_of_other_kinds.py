"""Loans for pods that the controller could serve by a guess, beside the real kube-scheduler, which knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import builders
import pytest
from builders import request
from lending_beside import NAMESPACE, Beside, gpu, lending_beside

from dra_driver.api.meta import Resource
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.storage import BIND_COMPLETED, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SELECTED_NODE
from dra_driver.sim.objects import MetaObject

pytestmark = [pytest.mark.slow, pytest.mark.long]

HOST = "kubernetes.io/hostname"
NODES = ("n0", "n1", "n2")
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", MetaObject, namespaced=False)


@contextlib.asynccontextmanager
async def provisioner(beside: Beside, refuses: str) -> AsyncIterator[None]:
    """Make the volume of a claim where kube-scheduler wants it, but on one node, and bind it."""
    api = beside.world.api

    async def run() -> None:
        while True:
            for found in (await api.list(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)).items:
                node = (found.metadata.annotations or {}).get(SELECTED_NODE, "")
                if not node or found.spec.volume_name:
                    continue
                name = found.metadata.name
                if node == refuses:
                    bare = {"metadata": {"annotations": {SELECTED_NODE: None}}}
                    await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, bare, NAMESPACE)
                    continue
                common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
                terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]
                reference = {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name}
                volume = {
                    "capacity": {"storage": "1Gi"},
                    "csi": {"driver": "disks.example.com", "volumeHandle": name},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                    "claimRef": {**reference, "uid": found.metadata.uid},
                    **common,
                }
                body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
                await api.create(PERSISTENT_VOLUMES, {**body, "spec": volume})
                bound = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
                await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, bound, NAMESPACE)
                phase = {"status": {"phase": "Bound"}}
                await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, phase, NAMESPACE, subresource="status")
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def asks(beside: Beside, name: str, **spec: Any) -> frozenset[tuple[str, str]]:
    """Make a pod with a claim for a GPU; return what was lent for it when it is bound."""
    body = builders.claim(name, request("gpu", "whole"), namespace=NAMESPACE)
    await beside.world.api.create(RESOURCE_CLAIMS, body)
    await beside.pod(name, name, **spec)
    since = asyncio.get_running_loop().time()
    await beside.bound(name)
    lent = frozenset(device for device, at in beside.seen.untainted.items() if at >= since)
    print(f"{name}: bound {beside.seconds_to_bind(name):.3f} s after the slice was written; {sorted(lent)}")
    assert beside.seen.has(name) <= lent
    await beside.back()
    return lent


def test_pods_of_which_kube_scheduler_alone_knows_the_node() -> None:
    async def scenario(beside: Beside) -> None:
        for node in NODES:
            await beside.node(node, gpu(0))
        labels = {"labels": {"app": "web"}}
        await beside.world.pod("resident", gated=False, metadata=labels, nodeName="n0")
        async with beside.controller():
            await beside.published(*NODES)
            await asyncio.sleep(8.0)
            term = {
                "labelSelector": {"matchLabels": {"app": "web"}},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "topologyKey": HOST,
            }
            apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            await asks(beside, "apart", affinity=apart)
            assert {node for node, _ in beside.seen.has("apart")} <= {"n1", "n2"}
            meta = {"metadata": {"name": "late"}, "provisioner": "disks.example.com"}
            await beside.world.api.create(
                CLASSES,
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "volumeBindingMode": "WaitForFirstConsumer",
                    **meta,
                },
            )
            asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
            body["spec"] = {**asked, "storageClassName": "late"}
            await beside.world.api.create(PERSISTENT_VOLUME_CLAIMS, body, NAMESPACE)
            async with provisioner(beside, "n0"):
                await asks(beside, "volume", volume="data")
            await beside.all_is_ours(3)

    async def main() -> None:
        async with asyncio.timeout(290), lending_beside("real") as beside:
            await scenario(beside)

    asyncio.run(main())
