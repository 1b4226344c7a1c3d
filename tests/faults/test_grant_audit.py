"""The audit of grants finds what it looks for: fault schedules rest on it."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
from builders import DRIVER
from grant_audit import GrantAudit

from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.meta import DriverName, PoolName, Resource
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.ownership import Grants, PoolID
from dra_driver.sim.apiserver.storage.store import Key, Store

POOL = PoolID(DriverName(DRIVER), PoolName("n1"))


def put(store: Store, resource: Resource[Any], body: dict[str, Any]) -> None:
    meta = body["metadata"]
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    key = Key(meta.get("namespace", ""), meta["name"])
    store.collection(resource.group, resource.plural).put(key, {**kind, **body})


def say(store: Store, grants: Grants) -> None:
    meta = {"name": GRANTS, "namespace": SYSTEM_NAMESPACE}
    put(store, CONFIG_MAPS, {"metadata": meta, "data": grants.data()})


def granted_to(uid: str, *devices: str) -> Grants:
    return Grants({f"_claim_{uid}": frozenset((POOL, device) for device in devices)})


def world(grants: Grants) -> Store:
    """Return a store with a pool of two devices, and what is granted of it."""
    store = Store()
    devices = [builders.device(name, "40Gi") for name in ("gpu-0", "gpu-1")]
    put(store, RESOURCE_SLICES, builders.resource_slice("n1", *devices))
    say(store, grants)
    return store


def allocate(store: Store, manager: str, device: str) -> None:
    name, _, share = device.partition("#")
    result = {**builders.result("n1", name), **({"shareID": "s"} if share else {})}
    claim = builders.claim("c", status=builders.allocation(result))
    fields: dict[str, Any] = {"f:status": {"f:allocation": {}}}
    claim["metadata"]["uid"] = "u"
    claim["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
    put(store, RESOURCE_CLAIMS, builders.claim("c"))
    put(store, RESOURCE_CLAIMS, claim)


@pytest.mark.parametrize(
    ("manager", "device", "found"),
    [
        ("controller", "gpu-0", "gpu-0 is granted to _claim_u"),
        ("controller", "gpu-1", ""),
        ("scheduler", "gpu-0", ""),
        ("scheduler", "gpu-1", "was allocated by others to _claim_u, which has no grant for it"),
        ("scheduler", "gpu-0#share", "gpu-0#share of"),
    ],
)
def test_each_allocates_what_is_its_own(manager: str, device: str, found: str) -> None:
    async def main() -> None:
        store = world(granted_to("u", "gpu-0"))
        audit = GrantAudit(store, DriverName(DRIVER), "controller")
        assert list(audit.look()) == []
        allocate(store, manager, device)
        texts = list(audit.look())
        assert len(texts) == bool(found)
        assert found in "".join(texts)
        assert (audit.granted, audit.own, audit.taken) == (
            1,
            manager == "controller",
            (manager, device) == ("scheduler", "gpu-0"),
        )

    asyncio.run(main())


def test_what_was_granted_to_another_claim_or_is_over_is_not_granted() -> None:
    async def main() -> None:
        store = world(granted_to("another", "gpu-0"))
        audit = GrantAudit(store, DriverName(DRIVER), "controller")
        assert list(audit.look()) == []
        assert audit.left() == ("_claim_another",)
        allocate(store, "scheduler", "gpu-0")
        (text,) = audit.look()
        assert "has no grant" in text
        say(store, Grants(turn=1))
        assert list(audit.look()) == []
        assert audit.left() == ()
        assert audit.longest >= 0.0

    asyncio.run(main())


def test_pods_that_were_refused_are_counted_once() -> None:
    async def main() -> None:
        store = world(Grants())
        audit = GrantAudit(store, DriverName(DRIVER), "controller")
        pod = builders.pod("p")
        put(store, PODS, pod)
        message = "denied request: these devices are allocated by the controller of dra-driver, for which"
        pod["status"] = {"conditions": [{"type": "PodScheduled", "message": message}]}
        for _ in range(2):
            put(store, PODS, pod)
            list(audit.look())
        assert audit.refused == 1

    asyncio.run(main())
