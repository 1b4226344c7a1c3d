"""An object that cannot be read stops neither a list nor a watch, and is not taken for one that is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import builders
import pytest
import structlog
import virtual_time
from builders import NAMESPACE as NS
from fake_client import FakeClient

from dra_driver.api.core import NODES
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.watch import Unreadable
from dra_driver.api.unreadable import unreadable_claim
from dra_driver.errors import ApiUnavailable
from dra_driver.kube import Handler, Informer

GARBLED = {"spec": {"taints": 5}}
RESULT = {"request": "gpu", "driver": "d", "pool": "p", "device": "gpu-0"}


class Following:
    """An informer, and what it has reported."""

    def __init__(self, cluster: FakeClient, resource: Resource[Any]) -> None:
        self.informer = Informer(cluster, resource)
        self.seen: list[tuple[str, str]] = []
        self.problems: list[Unreadable] = []
        self.informer.found_unreadable.append(self.problems.append)
        self.informer.add_handler(
            Handler(
                added=lambda i: self.seen.append(("added", i.metadata.name)),
                updated=lambda _, i: self.seen.append(("updated", i.metadata.name)),
                deleted=lambda i: self.seen.append(("deleted", i.metadata.name)),
            )
        )

    def names(self) -> list[str]:
        return [i.metadata.name for i in self.informer.items()]

    def unreadable(self) -> list[str]:
        return sorted(map(str, self.informer.unreadable))


@contextlib.asynccontextmanager
async def following(
    cluster: FakeClient, resource: Resource[Any] = NODES, *, filled: bool = True
) -> AsyncIterator[Following]:
    found = Following(cluster, resource)
    task = asyncio.create_task(found.informer.run())
    try:
        if filled:
            await asyncio.wait_for(found.informer.synced.wait(), 5)
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def node(cluster: FakeClient, name: str, **more: Any) -> None:
    cluster.put(NODES, {"metadata": {"name": name}, **more})


def test_what_was_known_stays_and_the_rest_goes_on() -> None:
    cluster = FakeClient()
    node(cluster, "a")
    node(cluster, "b")

    async def main() -> None:
        async with following(cluster) as f:
            cluster.edit(NODES, "a", GARBLED, as_is=True)
            node(cluster, "c")
            await asyncio.sleep(0.1)
            assert f.names() == ["a", "b", "c"]
            assert f.unreadable() == ["a"]
            assert ("deleted", "a") not in f.seen
            (problem,) = f.problems
            assert problem.key == ObjectKey("", "a")
            assert "Expected `array`, got `int` - at `$.spec.taints`" in problem.problem
            # Listed anew: it is among what is left out, and still not gone.
            cluster.expire()
            cluster.wake()
            cluster.remove(NODES, "b")
            await asyncio.sleep(1)
            assert f.names() == ["a", "c"]
            assert f.problems == [problem]
            cluster.edit(NODES, "a", {"spec": {"taints": None}, "metadata": {"labels": {"x": "y"}}})
            await asyncio.sleep(0.1)
            assert (f.unreadable(), f.seen[-1]) == ([], ("updated", "a"))

    virtual_time.run(main())


def test_it_is_taken_up_when_it_can_be_read_and_forgotten_when_it_is_gone() -> None:
    cluster = FakeClient()
    for name in "ab":
        node(cluster, name)
        cluster.edit(NODES, name, GARBLED, as_is=True)

    async def main() -> None:
        async with following(cluster) as f:
            assert (f.names(), f.unreadable()) == ([], ["a", "b"])
            for _ in range(3):  # each event is the same problem
                cluster.edit(NODES, "a", {"metadata": {"labels": {"n": "1"}}}, as_is=True)
                cluster.edit(NODES, "a", {"metadata": {"labels": None}}, as_is=True)
            await asyncio.sleep(0.1)
            assert len(f.problems) == 2
            cluster.remove(NODES, "b")
            cluster.edit(NODES, "a", {"spec": None})
            await asyncio.sleep(0.1)
            assert (f.names(), f.unreadable()) == (["a"], [])
            assert f.seen == [("added", "a")]
            cluster.edit(NODES, "a", GARBLED, as_is=True)
            await asyncio.sleep(0.1)
            cluster.remove(NODES, "a")
            await asyncio.sleep(0.1)
            assert (f.names(), f.unreadable(), f.seen[-1]) == ([], [], ("deleted", "a"))

    with structlog.testing.capture_logs() as logs:
        virtual_time.run(main())
    told = [log["name"] for log in logs if log["log_level"] == "error"]
    assert sorted(told) == ["a", "a", "b"]  # once for each time that it became so


def test_another_object_of_the_same_name_is_not_what_was_known() -> None:
    cluster = FakeClient()
    node(cluster, "a")

    async def main() -> None:
        async with following(cluster) as f:
            new = {"metadata": {"uid": "another"}, **GARBLED}
            cluster.edit(NODES, "a", new, as_is=True)
            await asyncio.sleep(0.1)
            assert (f.names(), f.unreadable(), f.seen) == ([], ["a"], [("added", "a"), ("deleted", "a")])

    virtual_time.run(main())


def claim(cluster: FakeClient, **result: Any) -> None:
    status = {"allocation": {"devices": {"results": [{**RESULT, **result}]}}}
    cluster.put(RESOURCE_CLAIMS, {**builders.claim("c", builders.request()), "status": status})


def test_a_claim_keeps_its_devices_though_it_cannot_be_read() -> None:
    cluster = FakeClient()
    claim(cluster)
    cluster.edit(RESOURCE_CLAIMS, "c", {"spec": {"devices": {"requests": 5}}}, NS, as_is=True)

    async def main() -> None:
        async with following(cluster, RESOURCE_CLAIMS) as f:
            (found,) = f.informer.items()
            assert found.status.allocation.devices.results[0].device == "gpu-0"
            assert "got `int` - at `$.spec.devices.requests`" in unreadable_claim(found)
            cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": None}}, NS, as_is=True)
            await asyncio.sleep(0.1)
            (found,) = f.informer.items()
            assert (found.status.allocation, f.unreadable()) == (None, [f"{NS}/c"])

    virtual_time.run(main())


def test_nothing_begins_while_a_claim_has_devices_that_are_not_known() -> None:
    cluster = FakeClient()
    claim(cluster)
    cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": {"devices": 5}}}, NS, as_is=True)

    async def main() -> None:
        async with following(cluster, RESOURCE_CLAIMS, filled=False) as f:
            await asyncio.sleep(5)
            assert not f.informer.synced.is_set()
            assert (f.unreadable(), len(f.problems)) == ([f"{NS}/c"], 1)
            claim(cluster)
            await asyncio.wait_for(f.informer.synced.wait(), 60)
            assert (len(f.names()), f.unreadable()) == (1, [])
            # Where it was known which they are, that is what holds.
            cluster.edit(RESOURCE_CLAIMS, "c", {"status": {"allocation": {"devices": 5}}}, NS, as_is=True)
            cluster.expire()
            cluster.wake()
            await asyncio.sleep(1)
            (found,) = f.informer.items()
            assert found.status.allocation.devices.results[0].device == "gpu-0"
            assert (f.unreadable(), f.informer.failing) == ([f"{NS}/c"], False)

    virtual_time.run(main())


def test_an_answer_that_cannot_be_read_says_nothing_of_what_was_done() -> None:
    cluster = FakeClient()
    node(cluster, "a")
    cluster.edit(NODES, "a", GARBLED, as_is=True)

    async def main() -> None:
        with pytest.raises(
            ApiUnavailable, match="the answer cannot be read: Node: Expected `array`, got `int`"
        ):
            await cluster.get(NODES, "a")

    asyncio.run(main())
