"""Which claims and templates the controller finds to tolerate its taint: those that kube-scheduler serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from tolerations import TAINT, cases, claim, template

from controller.publish.tolerators import Tolerators
from dra_driver.api import codec
from dra_driver.api.meta import DriverName, PoolName, Resource
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    DeviceTaint,
    ResourceSlice,
)
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID, is_controller_taint, protected_pools

DRIVER = DriverName("gpu.example.com")
# Classes, and whether devices of ours may be among what they select.
CLASSES = {
    "ours": ('device.driver == "gpu.example.com"', True),
    "own": ('device.attributes["gpu.example.com"].type == "gpu"', True),
    "everything": ("", True),
    "others": ('device.driver == "nic.example.com"', False),
    "others-of-a-kind": (
        'device.attributes["nic.example.com"].fast && "nic.example.com" == device.driver',
        False,
    ),
    "others-two": ('device.driver in ["nic.example.com", "fpga.example.com"]', False),
    "either": ('device.driver == "nic.example.com" || device.driver.startsWith("gpu.")', True),
    "all-but": ('!(device.driver == "nic.example.com")', True),
    "all-but-too": ('device.driver != "nic.example.com"', True),
    "prefix": ('device.driver == "nic.example.com" ? false : true', True),
    "broken": ("device.driver ==", True),
}


def put_classes(cluster: FakeClient) -> None:
    for name, (expression, _) in CLASSES.items():
        selectors = [{"cel": {"expression": expression}}] if expression else []
        cluster.put(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors}})


@contextlib.asynccontextmanager
async def following(cluster: FakeClient) -> AsyncIterator[Tolerators]:
    informers = [Informer(cluster, r) for r in (RESOURCE_CLAIMS, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES)]
    claims, classes, templates = informers
    tolerators = Tolerators((DRIVER,), claims, classes, lambda: None, templates)
    tasks = [asyncio.create_task(i.run()) for i in informers]
    try:
        async with asyncio.timeout(60):
            for informer in informers:
                await informer.synced.wait()
            yield tolerators
    finally:
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("resource", "wrap", "kind"),
    [(RESOURCE_CLAIMS, claim, "claim"), (RESOURCE_CLAIM_TEMPLATES, template, "template")],
)
def test_the_verdict_is_that_of_the_allocator_for_every_toleration_and_class(
    resource: Resource[Any], wrap: Callable[[str, dict[str, Any]], dict[str, Any]], kind: str
) -> None:
    cluster = FakeClient()
    put_classes(cluster)
    table = {f"c{i:05}": case for i, case in enumerate(cases("ours", "own", "others"))}
    for name, case in table.items():
        cluster.put(resource, wrap(name, case.spec))
    expected = {
        f"{kind} default/{name}"
        for name, case in table.items()
        if case.covers and CLASSES[case.class_name][1]
    }

    async def main() -> None:
        async with following(cluster) as tolerators:
            assert set(tolerators.found()) == expected

    asyncio.run(main())


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("key", ["", TAINT.key])
def test_classes_count_that_may_select_our_devices_whatever_they_are_called(
    class_name: str, key: str
) -> None:
    cluster = FakeClient()
    put_classes(cluster)
    toleration = {"operator": "Exists", **({"key": key} if key else {})}
    asked = {"deviceClassName": class_name, "tolerations": [toleration]}
    cluster.put(RESOURCE_CLAIMS, claim("c", {"devices": {"requests": [{"name": "r", "exactly": asked}]}}))

    async def main() -> None:
        async with following(cluster) as tolerators:
            assert bool(tolerators.found()) is CLASSES[class_name][1]

    asyncio.run(main())


def test_a_class_that_comes_later_or_changes_is_looked_at_again() -> None:
    cluster = FakeClient()
    asked = {"deviceClassName": "late", "tolerations": [{"operator": "Equal", "value": TAINT.value}]}
    cluster.put(RESOURCE_CLAIMS, claim("c", {"devices": {"requests": [{"name": "r", "exactly": asked}]}}))

    def put_class(expression: str) -> None:
        body = {"metadata": {"name": "late"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        cluster.put(DEVICE_CLASSES, body)

    async def main() -> None:
        async with following(cluster) as tolerators:
            assert tolerators.found() == ()  # kube-scheduler can do nothing with it
            put_class(CLASSES["own"][0])
            while tolerators.found() != ("claim default/c",):
                await asyncio.sleep(0)
            put_class(CLASSES["others"][0])
            while tolerators.found():
                await asyncio.sleep(0)

    asyncio.run(main())


# --- the taint itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["None", "NoExecute", "PreferNoSchedule"])
def test_a_pool_is_protected_by_the_very_taint_only(effect: str) -> None:
    """With effect None kube-scheduler allocates freely."""

    def pools(*taints: DeviceTaint) -> frozenset[PoolID]:
        raw = {
            "metadata": {"name": "s"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": "gpu-0", "taints": [msgspec.json.decode(codec.encode(t)) for t in taints]}
                ],
            },
        }
        return protected_pools([codec.convert(ResourceSlice, raw)])

    other = DeviceTaint(key=TAINT.key, value=TAINT.value, effect=effect)
    dated = DeviceTaint(
        key=TAINT.key, value=TAINT.value, effect=TAINT.effect, time_added="2026-01-01T00:00:00Z"
    )
    assert pools(other) == frozenset()
    assert pools(other, dated) == pools(TAINT) == {PoolID(DRIVER, PoolName("n1"))}
    assert not is_controller_taint(other)
