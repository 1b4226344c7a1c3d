"""Clusters that the end-to-end suite can run against, and a loop that keeps one open over many tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dra_driver.api.core import Pod
from dra_driver.errors import DraError
from dra_driver.kube import KubeApi
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.cluster import ClusterConfig, EmbeddedCluster

T = TypeVar("T")

# For clusters that cannot pull it; needs sh, env, grep, sort and sleep.
IMAGE = os.environ.get("E2E_IMAGE") or "busybox:1.37"


class Cluster(Protocol):
    """What the suite needs of a cluster."""

    api: KubeApi

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        """What each container of a running pod sees; None where that cannot be told."""

    async def node_leftovers(self) -> list[str]:
        """Files that claims left on nodes, as far as they can be looked at."""


class Embedded:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        sandbox = self.cluster.nodes[pod.spec.node_name].kubelet.runtime.sandboxes.get(pod.metadata.uid)
        return {name: c.view for name, c in sandbox.containers.items()} if sandbox is not None else {}

    async def node_leftovers(self) -> list[str]:
        found: list[str] = []
        for node in self.cluster.nodes.values():
            found += node.leftovers()
        return found


class Existing:
    def __init__(self, api: KubeApi) -> None:
        self.api = api

    async def containers(self, pod: Pod) -> Mapping[str, ContainerView] | None:
        # The examples print the variables that they got, shortly after they have started.
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

    async def node_leftovers(self) -> list[str]:
        return []


class Background:
    """An event loop in a thread of its own, so that one cluster serves many synchronous tests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="cluster", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.asynccontextmanager
async def open_cluster(kind: str) -> AsyncIterator[Cluster]:
    if kind == "embedded":
        async with EmbeddedCluster(ClusterConfig.of(3)) as cluster:
            await cluster.ready()
            yield Embedded(cluster)
    else:
        path = os.environ.get("KUBECONFIG")
        async with await KubeApi.connect(Path(path) if path else None) as api:
            yield Existing(api)
