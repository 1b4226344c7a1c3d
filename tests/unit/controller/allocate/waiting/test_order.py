"""The order in which pods get devices: by priority, then by age; namespaces take turns within a priority."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, pod, request
from fake_client import FakeClient

from controller.config import Timings
from dra_driver.api.core import PODS
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS


def waiting(
    cluster: FakeClient, name: str, second: int, priority: int = 0, count: int = 1, **metadata: Any
) -> None:
    """Create a pod with a claim; ``second`` is its age."""
    claim(cluster, name, request(count=count))
    meta = {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z", **metadata}
    pod(cluster, name, name, priority=priority, metadata=meta)


def end(cluster: FakeClient, name: str) -> None:
    cluster.remove(PODS, name, NS)
    cluster.remove(RESOURCE_CLAIMS, name, NS)


def served(h: Harness) -> set[str]:
    return {c.metadata.name for c in h.cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None}


def play(cluster: FakeClient, scenario: Any, **config: Any) -> None:
    async def main() -> None:
        # The pods were created long ago.
        config.setdefault("starvation_seconds", 0.0)
        async with asyncio.timeout(3600), controlling(cluster, **config) as h:
            await scenario(h)

    virtual_time.run(main())


def test_a_device_that_becomes_free_goes_to_the_highest_priority_then_to_the_oldest() -> None:
    cluster = cluster_of(n1=(40,))
    waiting(cluster, "first", 0, 2000)
    for name, second, priority in (("old", 1, 0), ("young", 5, 100), ("younger", 7, 100), ("low", 0, -1)):
        waiting(cluster, name, second, priority)

    async def scenario(h: Harness) -> None:
        order = []
        for _ in range(5):
            await h.quiet()
            (now,) = served(h)
            order.append(now)
            end(cluster, now)
        assert order == ["first", "young", "younger", "old", "low"]

    play(cluster, scenario)


def test_a_pod_that_comes_just_then_does_not_get_the_device_of_one_that_waits() -> None:
    cluster = cluster_of(n1=(40,))
    waiting(cluster, "first", 0)

    async def scenario(h: Harness) -> None:
        waiting(cluster, "waits", 1)
        await h.quiet()
        end(cluster, "first")
        await asyncio.sleep(Timings().wake / 2)
        waiting(cluster, "comes", 2)
        await h.quiet()
        assert served(h) == {"waits"}
        end(cluster, "waits")
        await h.quiet()
        assert served(h) == {"comes"}

    play(cluster, scenario)


def test_a_pod_of_higher_priority_waits_for_nobody() -> None:
    cluster = cluster_of(n1=(40,))
    waiting(cluster, "first", 0)

    async def scenario(h: Harness) -> None:
        waiting(cluster, "waits", 1)
        await h.quiet()
        end(cluster, "first")
        waiting(cluster, "comes", 2, 10)
        await asyncio.sleep(Timings().wake / 2)
        assert served(h) == {"comes"}

    play(cluster, scenario)


def test_changes_that_come_one_after_the_other_keep_no_pod_waiting() -> None:
    cluster = cluster_of(n1=(40, 40))
    waiting(cluster, "first", 0)

    async def scenario(h: Harness) -> None:
        waiting(cluster, "never", 1, count=16)
        await h.quiet()
        for number in range(40):
            cluster.put(DEVICE_CLASSES, builders.device_class(f"other-{number}", "false"))
            if number == 5:
                waiting(cluster, "comes", 2)
            await asyncio.sleep(Timings().wake * 0.9)
            if number == 10:
                assert "comes" in served(h)

    play(cluster, scenario)


def test_the_next_of_a_higher_priority_goes_before_another_request_of_a_lower_one() -> None:
    cluster = cluster_of(n1=(40, 40))
    waiting(cluster, "both", 0, 2000, count=2)
    for name, second, priority, memory in (("a", 1, 9, ""), ("b", 2, 8, ""), ("c", 0, 7, "8Gi")):
        asked = request(memory=memory) if memory else request()
        claim(cluster, name, asked)
        stamp = {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z"}
        pod(cluster, name, name, priority=priority, metadata=stamp)

    async def scenario(h: Harness) -> None:
        assert served(h) == {"both"}
        end(cluster, "both")
        await h.quiet()
        assert served(h) == {"a", "b"}

    play(cluster, scenario)


def test_a_group_goes_by_the_lowest_priority_of_its_pods() -> None:
    cluster = cluster_of(n1=(40, 40))
    waiting(cluster, "both", 0, 2000, count=2)
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}
    waiting(cluster, "g1", 1, 1000, labels=labels)
    waiting(cluster, "g2", 1, 10, labels=labels)
    waiting(cluster, "one", 2, 100, count=2)

    async def scenario(h: Harness) -> None:
        for expected in ({"both"}, {"one"}, {"g1", "g2"}):
            await h.quiet()
            assert served(h) == expected
            for name in expected:
                end(cluster, name)

    play(cluster, scenario)


def test_after_a_start_pods_are_served_in_order_whatever_their_names() -> None:
    cluster = cluster_of(n1=(40,))
    for name, second in (("a", 3), ("b", 1), ("c", 2)):
        waiting(cluster, name, second)

    async def scenario(h: Harness) -> None:
        assert served(h) == {"b"}

    play(cluster, scenario)
