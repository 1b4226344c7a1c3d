"""A claim that the controller cannot read: no other one gets its devices, and its pod waits for a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, pod
from fake_client import FakeClient

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS

GARBLED: dict[str, Any] = {"spec": {"devices": {"requests": 5}}}


def garble(cluster: FakeClient, name: str, patch: dict[str, Any] = GARBLED) -> dict[str, Any]:
    whole = cluster.raw(RESOURCE_CLAIMS, name, NS)
    cluster.edit(RESOURCE_CLAIMS, name, patch, NS, as_is=True)
    return whole


def unreadable(h: Harness, kind: str = "ResourceClaim") -> float | None:
    registry = h.controller.metrics.registry
    return registry.get_sample_value("dra_driver_controller_unreadable_objects", {"kind": kind})


def test_its_devices_go_to_nobody_else_also_after_a_restart() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "first")
    pod(cluster, "p", "first")

    async def main() -> None:
        async with controlling(cluster) as h:
            assert h.devices("first") == [("n1", "gpu-0")]
            h.bind("p", "n1")
            whole = garble(cluster, "first")
            claim(cluster, "second")
            pod(cluster, "q", "second")
            await h.quiet()
            assert h.devices("second") == []
            assert unreadable(h) == 1.0
        async with controlling(cluster) as h:  # which has never seen it otherwise
            await asyncio.sleep(2)
            assert h.devices("second") == []
            assert unreadable(h) == 1.0
            (text,) = set(h.events("Unreadable"))
            assert "cannot read this ResourceClaim: ResourceClaim: Expected `array" in text
            assert "$.spec.devices.requests" in text
            assert h.controller._detail() == "cannot be read: 1 ResourceClaim\n"
            cluster.put(RESOURCE_CLAIMS, whole)
            await h.quiet()
            assert (unreadable(h), h.controller._detail(), h.devices("second")) == (0.0, "", [])
            cluster.remove(RESOURCE_CLAIMS, "first", NS)
            await h.quiet()
            assert h.devices("second") == [("n1", "gpu-0")]

    virtual_time.run(main())


def test_its_pod_waits_and_says_why_and_another_one_is_served() -> None:
    cluster = cluster_of(n1=(40, 40))
    claim(cluster, "bad")
    garble(cluster, "bad")
    pod(cluster, "p", "bad")

    async def main() -> None:
        async with controlling(cluster) as h:
            claim(cluster, "good")
            pod(cluster, "q", "good")
            await h.quiet()
            assert len(h.devices("good")) == 1
            assert h.gates("p")
            await asyncio.sleep(20)  # what passes by itself is not shown
            assert "cannot be read: ResourceClaim: Expected `array | null`" in h.reason("p").message
            assert not [c for c in cluster.calls if c.name == "bad"]
            fixed = {
                "spec": {
                    "devices": {
                        "requests": cluster.raw(RESOURCE_CLAIMS, "good", NS)["spec"]["devices"]["requests"]
                    }
                }
            }
            cluster.edit(RESOURCE_CLAIMS, "bad", fixed, NS)
            await h.quiet()
            assert len(h.devices("bad")) == 1

    virtual_time.run(main())


@pytest.mark.parametrize("readable", [True, False])
def test_it_is_not_deallocated_while_no_pod_uses_it(readable: bool) -> None:
    """An allocated claim that no pod uses is deallocated, unless it cannot be read."""
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def main() -> None:
        async with controlling(cluster) as h:
            assert h.devices("c")
            if not readable:
                garble(cluster, "c")
            await h.quiet()
            calls = len(cluster.calls)
            cluster.remove(PODS, "p", NS)
            await asyncio.sleep(120)
            assert bool([c for c in cluster.calls[calls:] if c.name == "c"]) is readable

    virtual_time.run(main())
