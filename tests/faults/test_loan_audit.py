"""The audit of loans finds what it looks for: fault schedules rest on it."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED
from loan_audit import LoanAudit

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.storage.store import Key, Store

STRAY_SECONDS = 0.05


def put(store: Store, resource: Resource[Any], body: dict[str, Any]) -> None:
    meta = body["metadata"]
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    key = Key(meta.get("namespace", ""), meta["name"])
    store.collection(resource.group, resource.plural).put(key, {**kind, **body})


def world(*, lent: tuple[str, ...] = (), bare: tuple[str, ...] = ()) -> Store:
    """Return a store with a pool of the controller: what is noted, and what is without taint."""
    store = Store()
    names = ("gpu-0", "gpu-1")
    devices = [builders.device(n, "40Gi", **({} if n in bare else {"taints": [PROTECTED]})) for n in names]
    put(store, RESOURCE_SLICES, builders.resource_slice("n1", *devices))
    inventory = builders.inventory("n1", *(builders.device(n, "40Gi") for n in names))
    inventory["status"]["publication"] = {
        "allocator": "controller",
        "lent": [{"unit": name, "devices": [name]} for name in lent],
    }
    put(store, DEVICE_INVENTORIES, inventory)
    return store


def allocate(store: Store, manager: str, device: str) -> None:
    claim = builders.claim("c", status=builders.allocation(builders.result("n1", device)))
    fields: dict[str, Any] = {"f:status": {"f:allocation": {}}}
    claim["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
    put(store, RESOURCE_CLAIMS, builders.claim("c"))
    put(store, RESOURCE_CLAIMS, claim)


@pytest.mark.parametrize(
    ("manager", "device", "found"),
    [("controller", "gpu-0", 1), ("controller", "gpu-1", 0), ("scheduler", "gpu-0", 0)],
    ids=["the controller of what is lent", "the controller of the rest", "kube-scheduler of what is lent"],
)
def test_the_controller_allocates_nothing_that_is_lent(manager: str, device: str, found: int) -> None:
    async def main() -> None:
        store = world(lent=("gpu-0",))
        audit = LoanAudit(store, DRIVER, "controller", STRAY_SECONDS)
        assert list(audit.look()) == []
        allocate(store, manager, device)
        assert len(list(audit.look())) == found
        assert (audit.taken, audit.own) == (device == "gpu-0", manager == "controller")

    asyncio.run(main())


@pytest.mark.parametrize(("lent", "found"), [((), True), (("gpu-0",), False)], ids=["not noted", "noted"])
def test_devices_are_not_left_without_taint_and_note(lent: tuple[str, ...], found: bool) -> None:
    async def main() -> None:
        store = world(lent=lent, bare=("gpu-0",))
        audit = LoanAudit(store, DRIVER, "controller", STRAY_SECONDS)
        assert list(audit.look()) == []
        await asyncio.sleep(2 * STRAY_SECONDS)
        put(store, RESOURCE_SLICES, builders.resource_slice("n2", driver="other"))
        assert bool(list(audit.look())) is found
        assert audit.bare() == {("n1", "gpu-0")}

    asyncio.run(main())


def test_refusals_are_counted_once() -> None:
    async def main() -> None:
        store = world()
        audit = LoanAudit(store, DRIVER, "controller", STRAY_SECONDS)
        message = "a device was lent to kube-scheduler and is not any more; the pod is scheduled again"
        condition = {"type": "PodScheduled", "status": "False", "message": message}
        body = builders.pod("p")
        body["status"] = {"conditions": [condition]}
        for _ in range(2):
            put(store, PODS, body)
            assert list(audit.look()) == []
        assert audit.refused == 1

    asyncio.run(main())
