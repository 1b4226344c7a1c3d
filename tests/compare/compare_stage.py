"""What scenarios have in common: the namespace, its pods and claims, and what was measured."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import builders
from compare_audit import Audit, Written
from compare_nodes import standing_in
from compare_plane import Plane, until
from compare_report import Figure
from controller_watch import Follower, following

from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import ALLOCATOR_LABEL, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS

__all__ = ["APART", "Measured", "Scenario", "Stage", "one_gpu"]

APART: Mapping[str, Any] = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
"""Affinity of pods labelled ``app: apart``: no two on one node."""

# Events are written a moment after what they report.
_SETTLED_SECONDS = 2.5


def one_gpu(**exactly: Any) -> dict[str, Any]:
    """Return a request for one device of the class; ``exactly``: more of it."""
    return {"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME, **exactly}}


@dataclass
class Measured:
    """What a scenario has found out about one of the two.

    Attributes:
        values: by the name of the figure.
        written: who wrote what.
        number: of pods, or of what ``per`` says, for which that was written.
        per: what the writes are divided by.
    """

    values: dict[str, float] = field(default_factory=dict)
    written: Written = field(default_factory=Counter)
    number: int = 0
    per: str = "pod"


class Stage:
    """A namespace of its own on a control plane whose nodes are there.

    Attributes:
        namespace: its name.
        ours: whether the controller allocates; else kube-scheduler is alone.
        report: shows progress.
    """

    def __init__(self, plane: Plane, namespace: str, report: Callable[[str], None], *, ours: bool) -> None:
        self.plane = plane
        self.api = plane.api
        self.namespace = namespace
        self.ours = ours
        self.report = report

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Follower]:
        """Follow pods and claims: no device is ever in two claims, or the scenario fails."""
        async with following(self.api, self.namespace) as follower:
            yield follower

    def audit(self) -> Audit:
        """Return what is written to the namespace from now on."""
        return Audit(self.plane.audit, self.namespace)

    async def settled(self) -> None:
        """Wait until what is written late has been written."""
        await asyncio.sleep(_SETTLED_SECONDS)
        self.plane.check()

    async def make(self, *, gates: bool = True) -> None:
        """Make the namespace, with a template for claims of one GPU.

        Args:
            gates: wait until the controller's pods get their gate; otherwise they have to bring it.
        """
        labels = {ALLOCATOR_LABEL: "controller"} if self.ours else {}
        meta = {"name": self.namespace, "labels": labels}
        await self.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        await self.template("gpu", one_gpu())
        if self.ours and gates:
            await until("the gate of pods", self._gates, 30)

    async def template(self, name: str, request: Mapping[str, Any]) -> None:
        """Make a template for claims."""
        body = builders.template(name, dict(request), namespace=self.namespace)
        await self.api.create(RESOURCE_CLAIM_TEMPLATES, body)

    async def clear(self) -> None:
        """Delete the pods, and what makes them, and wait until their devices are free."""
        for kind in ("apis/apps/v1/namespaces/{}/deployments", "api/v1/namespaces/{}/pods"):
            await self.api._call("DELETE", "/" + kind.format(self.namespace))
        async with standing_in(self.api, self.namespace):
            await until("the end of all pods", self._is_empty, 120, 0.3)

    async def _is_empty(self) -> bool:
        for pod in (await self.api.list(PODS, self.namespace)).items:
            if not pod.metadata.deletion_timestamp:  # made by a Deployment that was still there
                await self.api.delete(PODS, pod.metadata.name, self.namespace)
        claims = (await self.api.list(RESOURCE_CLAIMS, self.namespace)).items
        free = all(claim.status.allocation is None for claim in claims)
        return free and not (await self.api.list(PODS, self.namespace)).items

    async def _gates(self) -> bool:
        """Return whether the API server knows the policy that gives pods their gate."""
        body = self.body("probe", source={"resourceClaimTemplateName": "gpu"})
        answer = await self.api._call(
            "POST", f"/api/v1/namespaces/{self.namespace}/pods", body=body, query={"dryRun": "All"}
        )
        return b"schedulingGates" in bytes(answer)

    async def claim(self, name: str, **exactly: Any) -> None:
        """Make a claim."""
        await self.api.create(
            RESOURCE_CLAIMS, builders.claim(name, one_gpu(**exactly), namespace=self.namespace)
        )

    def body(
        self, name: str, *, source: Mapping[str, str] | None = None, app: str = "", **spec: Any
    ) -> dict[str, Any]:
        """Return a pod with a claim of its own name, or from another source."""
        meta = {"name": name, "namespace": self.namespace, "labels": {"app": app or "some"}}
        claims = [{"name": "gpu", **(source or {"resourceClaimName": name})}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": claims,
                **spec,
            },
        }

    async def priority_class(self, name: str, value: int) -> None:
        """Make a PriorityClass."""
        body = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        body["apiVersion"] = "scheduling.k8s.io/v1"
        await self.api._call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body=body)

    async def pod(self, name: str, *, app: str = "", **spec: Any) -> None:
        """Make a pod with a claim of its own."""
        await self.claim(name)
        await self.api.create(PODS, self.body(name, app=app, **spec))

    async def delete(self, name: str) -> None:
        """Delete a pod."""
        await self.api.delete(PODS, name, self.namespace)


@dataclass(frozen=True)
class Scenario:
    """The same pods for both.

    Attributes:
        name: for ``--only``.
        what: in a sentence.
        nodes: how many.
        figures: by name.
        play: does it.
        seconds: about how long it takes for both together.
        gpus: of each node.
        partitions: whether all partitions of them are published.
        alone: whether kube-scheduler plays it alone, too.
        open_pools: whether pools are open.
    """

    name: str
    what: str
    nodes: int
    figures: Mapping[str, Figure]
    play: Callable[[Stage], Awaitable[Measured]]
    seconds: int
    gpus: int = 8
    partitions: bool = False
    alone: bool = True
    open_pools: bool = False

    @property
    def hardware(self) -> tuple[int, int, bool, bool]:
        """What the nodes have, and whether pools are open; scenarios with the same share a control plane."""
        return self.nodes, self.gpus, self.partitions, self.open_pools
