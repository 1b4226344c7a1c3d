"""A backend of a third party that writes down what it is asked, and a preparer with its devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from node_agent import DRIVER, NODE, add_claim, claim

from dra_driver import sdk
from dra_driver.api.meta import PoolName
from dra_driver.preparation import NodeDevice
from kubelet_plugin.claims.locks import NodeLock
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reallocation import InUse
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu.hardware import Hardware

__all__ = ["VERSION", "Npu", "NpuConfig", "given", "node", "run"]

VERSION = "acme.example/v1"
IMPATIENT = Timing(budget=2.0, patience=0.2)


class NpuConfig(sdk.Parameters, frozen=True):
    API_VERSION: ClassVar[str] = VERSION

    watts: Annotated[int, sdk.Meta(ge=50, le=400)]
    mode: str = "fast"


class Npu:
    """A backend that writes down what it is asked, and does it to a table of its own."""

    simulated = True

    def __init__(self, name: str = "acme", kinds: Sequence[Any] = (NpuConfig,)) -> None:
        self.name = name
        self.parameters = kinds
        self.set: dict[str, int] = {}
        self.calls: list[str] = []
        self.in_prepare: Callable[[], None] = lambda: None
        self.in_unprepare: Callable[[], None] = lambda: None
        self.plan: Any = None

    def discover(self) -> Sequence[sdk.DiscoveredDevice]:
        return ()

    def close(self) -> None:
        pass

    def plan_device(self, use: sdk.DeviceUse) -> sdk.DevicePlan | None:
        self.calls.append(f"plan {use.device}")
        if self.plan is not None:
            result: sdk.DevicePlan | None = self.plan(use)
            return result
        watts = use.parameters.watts if use.parameters is not None else 100
        return sdk.DevicePlan({"watts": watts}, sdk.ContainerEdits(env=(f"WATTS={watts}",)))

    def prepare_device(self, work: sdk.DeviceWork) -> None:
        self.calls.append(f"prepare {work.device}")
        self.set[work.device] = work.settings["watts"]
        self.in_prepare()

    def unprepare_device(self, work: sdk.DeviceWork) -> None:
        self.calls.append(f"unprepare {work.device}")
        self.in_unprepare()
        self.set.pop(work.device, None)


def node(
    disk: Disk,
    kube: FakeClient,
    *backends: Npu,
    seconds: float = 5.0,
    boot_id: str = "",
    effects: BackendEffects | None = None,
    looked: Callable[[], bool] = lambda: True,
    node_lock: NodeLock | None = None,
    changed: Mapping[str, NodeDevice] | None = None,
    hardware: Hardware | None = None,
    timing: Timing = IMPATIENT,
    in_use: InUse | None = None,
) -> Preparer:
    """A preparer with two devices of each backend, and one that no backend prepares.

    ``changed`` are those that are otherwise now; a test changes it.
    """
    devices = {
        f"{b.name}-{i}": NodeDevice(f"{b.name}-{i}", "U", "U", prepared_by=b.name, simulated=True)
        for b in backends
        for i in range(2)
    }
    devices["gpu-0"] = NodeDevice("gpu-0", "G", "G", simulated=True)
    return Preparer(
        driver=DRIVER,
        pool=PoolName(NODE),
        client=kube,
        reservations=DeviceReservations(DiskCheckpoints(disk), node_lock=node_lock, boot_id=boot_id),
        specs=DiskSpecs(disk),
        devices=lambda: {**devices, **(changed or {})} if looked() else {},
        complete=looked,
        hardware=hardware,
        timing=timing,
        backends=effects or BackendEffects(list(backends), seconds=seconds),
        in_use=in_use,
    )


def given(
    kube: FakeClient, name: str, *devices: str, parameters: dict[str, Any] | None = None, **more: Any
) -> ClaimReference:
    body = claim(name, *devices, **more)
    if parameters is not None:
        opaque = {"driver": DRIVER, "parameters": {"apiVersion": VERSION, "kind": "NpuConfig", **parameters}}
        config = {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}
        body["status"]["allocation"]["devices"]["config"] = [config]
    return ClaimReference("ns", name, add_claim(kube, body)["metadata"]["uid"])


def run(scenario: Callable[[FakeClient, Disk], Any]) -> None:
    asyncio.run(scenario(FakeClient(), Disk()))
