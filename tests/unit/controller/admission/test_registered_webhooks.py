"""Which webhooks are registered: requests for capacity are refused where the API server drops them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from fake_client import FakeClient

from controller.admission import AdmissionConfig, Registration
from controller.admission.pki import Material, renewed
from dra_driver.api.meta import DriverName
from dra_driver.api.server.admission import MUTATING_WEBHOOKS
from dra_driver.cel.policies import compile_policy
from dra_driver.errors import Forbidden
from dra_driver.kube.features import drops_capacity

DRIVER = DriverName("gpu.dra-driver.dev")
CAPACITY = [
    f"{kind}.capacity.admission.dra-driver.dev" for kind in ("resourceclaims", "resourceclaimtemplates")
]


def material() -> Material:
    found = renewed(None, frozenset({"localhost"}), 1_800_000_000.0, trusted=False)
    assert found is not None
    return found


def gate_off(body: dict[str, Any]) -> None:
    """Do as an API server without DRAConsumableCapacity."""
    for device in body.get("spec", {}).get("devices", ()):
        device.pop("allowMultipleAllocations", None)


def registered(cluster: FakeClient) -> dict[str, dict[str, Any]]:
    raw = cluster.raw(MUTATING_WEBHOOKS, "dra-driver-admission")
    return {w["name"]: w for w in raw.get("webhooks", ())}


def registration(cluster: FakeClient) -> Registration:
    drops = partial(drops_capacity, cluster, DRIVER)
    return Registration(cluster, AdmissionConfig(port=0), "default", [DRIVER], drops_capacity=drops)


def test_capacity_is_refused_as_long_as_it_is_dropped() -> None:
    cluster, keys = FakeClient(), material()

    async def main() -> None:
        webhooks = registration(cluster)
        await webhooks.apply(keys)
        assert not registered(cluster).keys() & set(CAPACITY)
        cluster.strip = gate_off
        await webhooks.apply(keys)
        found = registered(cluster)
        assert set(CAPACITY) <= found.keys()
        assert {w["failurePolicy"] for name, w in found.items() if name in CAPACITY} == {"Fail"}

        def refuse(verb: str, kind: str, *_: str) -> None:
            if (verb, kind) == ("dry-run", "ResourceSlice"):
                raise Forbidden("no", code=403)

        cluster.strip, cluster.before = None, refuse
        await webhooks.apply(keys)  # it is not known: what was known holds
        assert set(CAPACITY) <= registered(cluster).keys()
        cluster.before = lambda *_: None
        await webhooks.apply(keys)
        assert not registered(cluster).keys() & set(CAPACITY)
        assert not [w for w in cluster.writes if w.kind == "ResourceSlice"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("requests", "sent"),
    [
        (None, False),
        ([], False),
        ([{"name": "r", "exactly": {"deviceClassName": "c"}}], False),
        ([{"name": "r", "exactly": {"deviceClassName": "c", "capacity": {"requests": {"m": "1"}}}}], True),
        ([{"name": "r", "firstAvailable": [{"name": "a"}, {"name": "b", "capacity": {}}]}], True),
        ([{"name": "r"}, {"name": "s", "firstAvailable": [{"name": "a"}]}], False),
    ],
)
def test_only_what_asks_for_capacity_is_sent(requests: object, sent: bool) -> None:
    """Else a controller that is down would keep others from making claims."""
    cluster = FakeClient()
    cluster.strip = gate_off
    asyncio.run(registration(cluster).apply(material()))
    found = registered(cluster)
    devices = {"devices": {"requests": requests}}
    for name, spec in zip(CAPACITY, (devices, {"spec": devices}), strict=True):
        (condition,) = found[name]["matchConditions"]
        policy = compile_policy(condition["expression"], ["object"])
        assert policy.value({"object": {"spec": spec}}) is sent
        nothing: list[dict[str, Any]] = [{}]
        for empty in (*nothing, {"spec": {}}, {"spec": {"devices": {}}}, {"spec": {"spec": {"devices": {}}}}):
            assert policy.value({"object": empty}) is False
