"""The real cluster autoscaler beside our controller, kube-scheduler and kube-controller-manager.

The variable ``AUTOSCALER`` names its binary, ``DRA_K8S_BIN`` the folder of Kubernetes' (docs/autoscaling.md
says how both are built). No root, no cloud: ``cluster_api`` plays Cluster API and the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from builders import CONTAINER, request, template
from cluster_api import NODE_GROUP, ClusterApi
from granting_beside import NAMESPACE, Beside, granting_beside
from real_apiserver import binaries

from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES
from dra_driver.fleet import waiting_condition

__all__ = ["Autoscaled", "autoscaled", "autoscaler"]

VARIABLE: Final = "AUTOSCALER"
_MANAGER: Final = "kube-controller-manager"
_CONTROLLERS: Final = "resourceclaim-controller,replicaset-controller"
# Its usual times are minutes.
_FLAGS: Final = (
    "--cloud-provider=clusterapi",
    "--leader-elect=false",
    "--address=127.0.0.1:0",
    "--write-status-configmap=false",
    "--scan-interval=1s",
    "--kube-client-qps=100",
    "--kube-client-burst=200",
    "--scale-down-delay-after-add=1s",
    "--scale-down-delay-after-failure=1s",
    "--scale-down-unneeded-time=3s",
    "--unremovable-node-recheck-timeout=1s",
    "--node-delete-delay-after-taint=0s",
    "--max-graceful-termination-sec=1",
    "--initial-node-group-backoff-duration=5s",
    "--skip-nodes-with-local-storage=false",
    "--v=4",
)
SECONDS: Final = 90.0
QUIET_SECONDS: Final = 12.0
"""In which nothing must happen: several rounds of the autoscaler, and the time until a node is unneeded."""


def autoscaler() -> Path:
    """Return the binary; skip the test where there is none."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"the real cluster autoscaler is needed: {VARIABLE} names its binary")
    assert os.access(named, os.X_OK), f"{VARIABLE}={named}: is not there, or cannot be run"
    return Path(named)


@contextlib.contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Autoscaled:
    """What a test does and looks at.

    Attributes:
        beside: the world without the autoscaler.
        machines: the machines in it.
    """

    def __init__(self, beside: Beside, machines: ClusterApi, folder: Path) -> None:
        self.beside = beside
        self.machines = machines
        self._folder = folder

    @property
    def log(self) -> str:
        """What the autoscaler has written so far."""
        return (self._folder / "autoscaler.log").read_text(errors="replace")

    @contextlib.asynccontextmanager
    async def autoscaler(self, *flags: str) -> AsyncIterator[None]:
        """Run the autoscaler until the block ends."""
        server = self.beside.world.server
        assert server is not None
        command = [str(autoscaler()), f"--kubeconfig={server.kubeconfig()}", *_FLAGS, *flags]
        with _running(command, self._folder / "autoscaler.log") as process:
            try:
                yield
            except (AssertionError, TimeoutError):
                print("\n".join(self.log.splitlines()[-60:]))
                raise
            assert process.poll() is None, f"the autoscaler has ended:\n{self.log[-4000:]}"

    async def may_grow(self, machine_set: str) -> None:
        """Say that an autoscaler adds nodes like those of a set."""
        expression = {"key": NODE_GROUP, "operator": "In", "values": [machine_set]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        body = {
            "apiVersion": "dra-driver.dev/v1alpha1",
            "kind": "DevicePolicy",
            "metadata": {"name": f"grows-{machine_set}"},
            "spec": {"nodeSelector": selector, "autoscaled": True},
        }
        await self.beside.world.api.create(DEVICE_POLICIES, body)

    # --- pods -----------------------------------------------------------------------------------------------

    async def replica_set(self, name: str, replicas: int, *requests: dict[str, Any], **spec: Any) -> None:
        """Make pods that may be moved, each with a claim of its own.

        Args:
            name: of the set, and of the template of the claims.
            replicas: number of pods.
            requests: of each claim; if there are none, for one whole device.
            spec: more of each pod.
        """
        api = self.beside.world.api
        asked = requests or (request("gpu", "whole"),)
        await api.create(RESOURCE_CLAIM_TEMPLATES, template(name, *asked, namespace=NAMESPACE))
        pod = {
            "containers": [CONTAINER],
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "c", "resourceClaimTemplateName": name}],
            "schedulingGates": [{"name": ALLOCATION_GATE}],
            **spec,
        }
        labels = {"app": name}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        await api._call("POST", f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets", body=body)

    async def scale(self, name: str, replicas: int) -> None:
        """Have another number of pods."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets/{name}"
        kind = "application/merge-patch+json"
        await self.beside.world.api._call(
            "PATCH", path, body={"spec": {"replicas": replicas}}, content_type=kind
        )

    async def pods(self, app: str = "") -> list[Pod]:
        """Return the pods of a set, or all."""
        found = (await self.beside.world.api.list(PODS, NAMESPACE)).items
        return [p for p in found if not app or (p.metadata.labels or {}).get("app") == app]

    async def placed(self, app: str, count: int, seconds: float = SECONDS) -> dict[str, str]:
        """Wait until so many pods of a set, and all of them, are bound; return their nodes."""

        async def all_bound() -> bool:
            found = await self.pods(app)
            return len(found) == count and all(p.spec.node_name for p in found)

        await self.until(f"{count} pods of {app} are bound", all_bound, seconds)
        return {p.metadata.name: p.spec.node_name or "" for p in await self.pods(app)}

    async def why(self, name: str) -> str:
        """Return what the controller says of a pod that waits, in its condition."""
        condition = waiting_condition(await self.beside.world.get(name))
        return str(condition["message"]) if condition is not None else ""

    # --- what is waited for ---------------------------------------------------------------------------------

    async def until(
        self, what: str, condition: Callable[[], Awaitable[object]], seconds: float = SECONDS
    ) -> float:
        """Wait until something is so; return the seconds that it took.

        Raises:
            AssertionError: it does not come; says of each pod what is known.
        """
        began = time.monotonic()
        while not await condition():
            if time.monotonic() > began + seconds:
                known = {p.metadata.name: (p.spec.node_name, p.status.conditions) for p in await self.pods()}
                raise AssertionError(f"waited {seconds:.0f} s in vain until {what}: {known}")
            await asyncio.sleep(0.2)
        return time.monotonic() - began

    async def sizes(self, machine_set: str, count: int, seconds: float = SECONDS) -> float:
        """Wait until a set has so many machines, and as many nodes; return the seconds that it took."""

        async def is_so() -> bool:
            wanted = await self.machines.replicas(machine_set)
            return wanted == count == len(await self.machines.nodes(machine_set))

        return await self.until(f"{machine_set} has {count} machines", is_so, seconds)

    async def stays(self, machine_set: str, count: int, seconds: float = QUIET_SECONDS) -> None:
        """Look for a while that a set has so many machines."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert await self.machines.replicas(machine_set) == count
            await asyncio.sleep(0.2)

    async def events(self, reason: str) -> list[str]:
        """Return the messages of Events with a reason."""
        found = json.loads(await self.beside.world.api._call("GET", f"/api/v1/namespaces/{NAMESPACE}/events"))
        return [e["message"] for e in found["items"] if e["reason"] == reason]


@contextlib.asynccontextmanager
async def autoscaled(folder: Path) -> AsyncIterator[Autoscaled]:
    """Start all but our controller and the autoscaler; fail where a running pod has lost its node.

    Args:
        folder: for logs.
    """
    autoscaler()
    programs = binaries()
    async with granting_beside("real", 20.0) as beside:
        server = beside.world.server
        assert server is not None
        machines = ClusterApi(beside)
        await machines.install()
        manager = [
            str(programs / _MANAGER),
            f"--kubeconfig={server.kubeconfig()}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--controllers={_CONTROLLERS}",
        ]
        with _running(manager, folder / "manager.log"):
            async with machines.running():
                yield Autoscaled(beside, machines, folder)
        assert machines.cut_off == []
