"""What the API server keeps of ResourceSlices and of claims, found out before the first slice is published.

The server drops fields of disabled feature gates in silence, and a slice without its counters or taints means
something else than the one that was sent. Version numbers say nothing about gates, so each field is sent once
in a dry run and looked for in the answer.
"""

from __future__ import annotations

import structlog

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.errors import ApiError, ApiUnavailable, Invalid
from dra_driver.ports import KubeClient
from dra_driver.resourceslice import ServerFeatures, altered

__all__ = ["drops_capacity", "keeps_capacity", "probe_features"]

log = structlog.get_logger(__name__)

_NAME = "dra-driver-probe"
_ONE = Quantity.of(1)


async def probe_features(client: KubeClient, driver: DriverName, node_name: str = _NAME) -> ServerFeatures:
    """Ask the server by dry runs which fields it keeps; nothing is stored.

    Args:
        client: the server.
        driver: ours.
        node_name: of the slices that are sent, and of their pool; a node agent may send its own node's only.

    Raises:
        ApiError, ApiUnavailable: the server could not be asked (``Forbidden``: no right to create slices).
    """
    features = ServerFeatures(
        taints=await _survives(client, driver, node_name, _tainted()),
        counters=await _survives(client, driver, node_name, None, counters=True),
        multi_allocation=await _survives(client, driver, node_name, _shareable()),
        lists=await _survives(client, driver, node_name, _listed()),
    )
    log.info(
        "API server asked which fields of slices it keeps",
        taints=features.taints,
        counters=features.counters,
        multi_allocation=features.multi_allocation,
        lists=features.lists,
        gates_off=",".join(features.missing_gates()) or "none",
    )
    return features


async def drops_capacity(client: KubeClient, driver: DriverName) -> bool:
    """Ask the server by a dry run of a slice whether DRAConsumableCapacity is off; nothing is stored.

    Args:
        client: the server.
        driver: ours.

    Raises:
        ApiError, ApiUnavailable: the server could not be asked.
    """
    return not await _survives(client, driver, _NAME, _shareable())


async def keeps_capacity(client: KubeClient, namespace: str) -> bool | None:
    """Ask the server by a dry run whether it keeps ``capacity`` in the requests of claims; nothing is stored.

    Args:
        client: the server.
        namespace: of the claim that is sent.

    Returns:
        None where it does not say: no right to create claims there, for example.
    """
    exactly = {"deviceClassName": "probe", "capacity": {"requests": {"memory": "1"}}}
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"generateName": f"{_NAME}-", "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "probe", "exactly": exactly}]}},
    }
    try:
        answer = await client.create(RESOURCE_CLAIMS, body, namespace, dry_run=True)
    except (ApiError, ApiUnavailable) as e:
        log.debug("probe refused", problem=str(e))
        # By our webhook, which is there where capacity is dropped.
        return False if "DRAConsumableCapacity is off" in str(e) else None
    requests = answer.spec.devices.requests or ()
    return any(r.exactly is not None and r.exactly.capacity is not None for r in requests)


def _tainted() -> Device:
    return Device(name="probe", taints=(DeviceTaint(key="dra-driver.dev/probe", effect="NoSchedule"),))


def _shareable() -> Device:
    return Device(
        name="probe", allow_multiple_allocations=True, capacity={"memory": DeviceCapacity(value=_ONE)}
    )


def _listed() -> Device:
    return Device(name="probe", attributes={"probe": DeviceAttribute(strings=("a", "b"))})


async def _survives(
    client: KubeClient, driver: DriverName, node_name: str, device: Device | None, *, counters: bool = False
) -> bool:
    spec = ResourceSliceSpec(
        driver=driver,
        pool=ResourcePool(name=PoolName(node_name), generation=1, resource_slice_count=1),
        node_name=node_name,
        devices=(device,) if device is not None else (),
        shared_counters=(CounterSet(name="probe", counters={"memory": Counter(value=_ONE)}),)
        if counters
        else (),
    )
    slice_ = ResourceSlice(metadata=ObjectMeta(generate_name=f"{_NAME}-"), spec=spec)
    try:
        answer = await client.create(RESOURCE_SLICES, codec.to_raw(RESOURCE_SLICES, slice_), dry_run=True)
    except Invalid as e:
        # What is left after dropping the field may not be a valid slice; then the field was dropped.
        log.debug("probe refused", problem=str(e))
        return False
    return not altered(spec, answer.spec)
