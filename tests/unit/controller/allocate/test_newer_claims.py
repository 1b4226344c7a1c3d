"""A claim with a field that this version does not know waits and says so; nothing of it is lost."""

from __future__ import annotations

import asyncio

import virtual_time
from controller_harness import NS, claim, cluster_of, controlling, pod

from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS


def test_it_waits_with_the_name_of_the_field_and_others_are_served() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "new")
    whole = cluster.raw(RESOURCE_CLAIMS, "new", NS)
    devices = whole["spec"]["devices"]
    devices["requests"][0]["exactly"]["brandNew"] = {"a": 1}
    cluster.edit(RESOURCE_CLAIMS, "new", {"spec": {"devices": devices}}, NS, as_is=True)
    pod(cluster, "p", "new")

    async def main() -> None:
        async with controlling(cluster) as h:
            claim(cluster, "old")
            pod(cluster, "q", "old")
            await h.quiet()
            assert len(h.devices("old")) == 1
            await asyncio.sleep(20)
            assert h.devices("new") == []
            field = "spec.devices.requests[0].exactly.brandNew"
            assert f"needs a newer controller: {field} is not known" in h.reason("p").message
            assert h.controller._detail() == ""  # it can be read
            assert cluster.raw(RESOURCE_CLAIMS, "new", NS)["spec"] == whole["spec"]

    virtual_time.run(main())


def test_a_class_with_an_unknown_field_is_named() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    (request,) = cluster.raw(RESOURCE_CLAIMS, "c", NS)["spec"]["devices"]["requests"]
    name = request["exactly"]["deviceClassName"]
    cluster.edit(DEVICE_CLASSES, name, {"spec": {"brandNew": 1}}, as_is=True)

    async def main() -> None:
        async with controlling(cluster) as h:
            await asyncio.sleep(20)
            assert "needs a newer controller: spec.brandNew of DeviceClass" in h.reason("p").message
            cluster.edit(DEVICE_CLASSES, name, {"spec": {"brandNew": None}}, as_is=True)
            await h.quiet()
            assert len(h.devices("c")) == 1

    virtual_time.run(main())
