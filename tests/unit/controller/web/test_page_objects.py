"""A page of each device, node, claim and pod; labels, the trend; and what a replica serves that stands by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import builders
import pytest
from controller_harness import NS, OURS, claim, cluster_of, inline, pod, request
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from controller.web import CurrentFeed, serve
from controller.web.feed import MOST_WAITING
from controller.web.objects import MOST_ROWS
from dra_driver.api.core import NODES, PODS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS


@contextlib.asynccontextmanager
async def serving(cluster: FakeClient, **config: Any) -> AsyncIterator[tuple[str, Controller]]:
    """A controller, and the address of its page."""
    settings = ControllerConfig(drivers=(OURS,), **{"leader_elect": False, "web_port": 0, **config})
    controller = Controller(cluster, settings, answers_of=inline)
    task = asyncio.create_task(controller.run())
    try:
        while controller.web_address is None:
            await asyncio.sleep(0.01)
        yield f"http://{controller.web_address[0]}:{controller.web_address[1]}", controller
    finally:
        task.cancel()
        await asyncio.wait([task])


Ask = Callable[[str], Awaitable[tuple[int, Any]]]


def asking(session: aiohttp.ClientSession, url: str) -> Ask:
    async def ask(path: str) -> tuple[int, Any]:
        async with session.get(f"{url}{path}") as response:
            assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
            return response.status, await response.json()

    return ask


def run(scenario: Callable[[Ask], Awaitable[None]], cluster: FakeClient) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            serving(cluster) as (url, controller),
            aiohttp.ClientSession() as session,
        ):
            await controller.ready.wait()
            await scenario(asking(session, url))

    asyncio.run(main())


async def until(ask: Ask, path: str, is_so: Callable[[Any], object]) -> Any:
    while True:
        _, answer = await ask(path)
        if is_so(answer):
            return answer
        await asyncio.sleep(0.02)


def section(answer: dict[str, Any], title: str) -> list[list[Any]]:
    rows: list[list[Any]] = next(s["rows"] for s in answer["sections"] if s["title"] == title)
    return rows


def test_each_object_has_its_facts_its_tables_and_its_history() -> None:
    cluster = cluster_of(n1=(40, 80))

    async def scenario(ask: Ask) -> None:
        claim(cluster, "c", request(memory="60Gi"))
        pod(cluster, "p", "c", priority=5)
        path = f"/fleet/object?claim={NS}/c"
        answer = await until(ask, path, lambda a: a.get("facts", [["", ""]])[0][1] == "allocated")
        device = {"kind": "device", "name": f"{OURS}/n1/gpu-1"}
        assert section(answer, "Devices") == [["gpu", device, "whole"]]
        assert section(answer, "Pods") == [[{"kind": "pod", "name": f"{NS}/p"}]]
        assert [h["kind"] for h in answer["history"]] == ["created", "allocated"]
        assert answer["since"] <= answer["history"][0]["at"] <= answer["now"]

        status, answer = await ask(f"/fleet/object?device={device['name']}")
        assert (status, dict(answer["facts"])["State"]) == (200, "allocated")
        holder = {"kind": "claim", "name": f"{NS}/c"}
        assert section(answer, "Who holds it")[0][0] == holder
        assert answer["history"][-1]["text"] == f"allocated to claim {NS}/c"

        status, answer = await ask(f"/fleet/object?pod={NS}/p")
        assert (status, dict(answer["facts"])["Priority"]) == (200, "5")
        assert section(answer, "Claims")[0][1:] == [holder, "allocated", [device]]

        status, answer = await ask("/fleet/object?node=n1")
        assert (status, [row[3] for row in section(answer, "Devices")]) == (200, [[], [holder]])
        assert dict(answer["facts"])["Devices"] == "2: 1 free, 1 allocated"
        assert answer["history"][-1]["text"] == f"gpu-1: allocated to claim {NS}/c"

        # What is gone is known for its history alone.
        cluster.remove(PODS, "p", NS)
        cluster.remove(RESOURCE_CLAIMS, "c", NS)
        answer = await until(ask, f"/fleet/object?claim={NS}/c", lambda a: a.get("found") is False)
        assert answer["history"][-1]["text"] == "deleted"
        assert (await ask(f"/fleet/object?claim={NS}/never"))[0] == 404

    run(scenario, cluster)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?pod=",
        "?secret=ns/p",
        "?pod=ns/p&pod=ns/q",
        "?pod=ns/p&node=n1",
        "?pod=ns/p&x=1",
        "?node=../../etc/passwd",
        "?pod=ns/p%0a",
        "?pod=%3Cimg%20src=x%3E/p",
        "?device=" + "d" * 800,
    ],
)
def test_names_that_nothing_has_are_refused(query: str) -> None:
    async def main() -> int:
        async with (
            serve("127.0.0.1", 0, CurrentFeed()) as (host, port),
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}/fleet/object{query}") as response,
        ):
            return response.status

    assert asyncio.run(main()) == 400


def test_what_is_long_is_cut_and_what_is_much_is_counted() -> None:
    cluster = cluster_of(n1=(40,))
    cluster.put(NODES, builders.node("n2", labels={f"l-{i}": "v" for i in range(MOST_ROWS + 9)}))
    selectors = [{"cel": {"expression": f"device.driver == '{'x' * 5000}'"}}]
    cluster.put(RESOURCE_CLAIMS, builders.claim("long", request(selectors=selectors)))

    async def scenario(ask: Ask) -> None:
        _, answer = await ask("/fleet/object?node=n2")
        labels = next(s for s in answer["sections"] if s["title"] == "Labels")
        assert (len(labels["rows"]), labels["more"]) == (MOST_ROWS, 10)  # and kubernetes.io/hostname
        _, answer = await ask(f"/fleet/object?claim={NS}/long")
        assert len(section(answer, "Requests")[0][4]) == 1024

    run(scenario, cluster)


def test_what_is_taken_of_a_device_and_by_whom() -> None:
    cluster = cluster_of(n1=(80,))
    share: dict[str, Any] = {"shareID": "s", "consumedCapacity": {"memory": "20Gi", "multiprocessors": "0"}}
    users = [{"resource": "pods", "name": f"p{i:02}", "uid": f"p{i}"} for i in range(40)]
    users += [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}]
    status = {**builders.allocation(builders.result("n1", "gpu-0", **share)), "reservedFor": users}
    cluster.put(RESOURCE_CLAIMS, builders.claim("c", namespace=NS, status=status))

    async def scenario(ask: Ask) -> None:
        _, answer = await ask(f"/fleet/object?device={OURS}/n1/gpu-0")
        [[_, _, pods, taken]] = section(answer, "Who holds it")
        assert taken == "memory 20Gi"
        assert len(pods) == 33
        assert pods[:2] == [{"kind": "pod", "name": f"{NS}/p00"}, {"kind": "pod", "name": f"{NS}/p01"}]
        assert pods[32] == "and 9 more"  # the PodGroup, which has no page, among them

    run(scenario, cluster)


def test_a_claim_says_why_it_waits() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request(memory="500Gi"))
    pod(cluster, "p", "c")

    async def scenario(ask: Ask) -> None:
        answer = await until(
            ask, f"/fleet/object?claim={NS}/c", lambda a: "500Gi" in dict(a["facts"]).get("Why it waits", "")
        )
        assert dict(answer["facts"])["State"] == "waits"

    run(scenario, cluster)


def test_a_filter_looks_through_all_that_waits() -> None:
    cluster = cluster_of(n1=(40,))
    for i in range(MOST_WAITING + 30):
        claim(cluster, f"c{i:03}", request(memory="500Gi"))
        pod(cluster, f"p{i:03}", f"c{i:03}", priority=MOST_WAITING - i)

    async def scenario(ask: Ask) -> None:
        total = MOST_WAITING + 30
        await until(ask, "/fleet", lambda a: a["waitingTotal"] == total)
        status, answer = await ask(f"/fleet/waiting?q=p{total - 1}")
        assert (status, answer["total"], answer["of"]) == (200, 1, total)
        assert [w["pods"] for w in answer["waiting"]] == [[f"p{total - 1}"]]
        _, answer = await ask(f"/fleet/waiting?q=ns:{NS}")
        assert (len(answer["waiting"]), answer["total"]) == (MOST_WAITING, total)
        assert answer["waiting"][0]["pods"] == ["p000"]  # the most urgent one
        assert (await ask("/fleet/waiting?q=pod:none"))[1]["total"] == 0
        for query in ("", "?x=1", "?q=a&q=b", "?q=a&x=1", "?q=" + "x" * 600):
            assert (await ask(f"/fleet/waiting{query}"))[0] == 400, query

    run(scenario, cluster)


def test_labels_by_which_nodes_are_grouped() -> None:
    cluster = cluster_of()
    for i in range(4):
        cluster.put(
            NODES, builders.node(f"n{i}", labels={"rack": f"r{i % 2}", **({"odd": "x"} if i % 2 else {})})
        )

    async def scenario(ask: Ask) -> None:
        _, keys = await ask("/fleet/labels")
        assert {"key": "rack", "values": 2, "nodes": 4} in keys
        assert keys[0]["key"] == "odd"
        assert await ask("/fleet/labels?key=rack") == (200, {"n0": "r0", "n1": "r1", "n2": "r0", "n3": "r1"})
        assert await ask("/fleet/labels?key=none") == (200, {})
        for query in ("?key=", "?key=a&key=b", "?key=a&x=1", "?x=1", "?key=%3Cimg%3E"):
            assert (await ask(f"/fleet/labels{query}"))[0] == 400, query

    run(scenario, cluster)


def test_the_trend_and_nodes_in_trouble() -> None:
    cluster = cluster_of(n1=(40, 80))
    cluster.put(NODES, builders.node("n2", unschedulable=True))

    async def scenario(ask: Ask) -> None:
        samples = await until(ask, "/fleet/trend", bool)
        assert samples[0]["states"] == [0, 0, 0, 0, 2]
        _, answer = await ask("/fleet")
        assert (answer["troubles"], answer["standby"]) == ([["n2", "cordoned"]], "")

    run(scenario, cluster)


def test_what_waits_is_told_with_its_priority_and_age() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request(memory="500Gi"))
    pod(cluster, "p", "c", priority=9)

    async def scenario(ask: Ask) -> None:
        answer = await until(ask, "/fleet", lambda a: a["waiting"])
        [waiting] = answer["waiting"]
        assert (waiting["priority"], waiting["since"]) == (9, "2026-01-01T00:00:00Z")

    run(scenario, cluster)


def test_every_replica_serves_the_page() -> None:
    cluster = cluster_of(n1=(40, 80))

    async def main() -> None:
        election = {"leader_elect": True}
        async with (
            asyncio.timeout(90),
            aiohttp.ClientSession() as session,
            contextlib.AsyncExitStack() as replicas,
        ):
            first = await replicas.enter_async_context(contextlib.AsyncExitStack())
            url, leader = await first.enter_async_context(serving(cluster, identity="first_1", **election))
            await leader.ready.wait()
            other_url, other = await replicas.enter_async_context(
                serving(cluster, identity="second_2", **election)
            )
            ask, ask_other = asking(session, url), asking(session, other_url)
            await until(ask_other, "/fleet", lambda a: "pools" in a)
            claim(cluster, "c", request(memory="500Gi"))
            pod(cluster, "p", "c")
            claim(cluster, "d")
            pod(cluster, "q", "d")

            def is_told(answer: Any) -> bool:
                return any("500Gi" in w["reason"] for w in answer.get("waiting", ()))

            answer = await until(ask_other, "/fleet", is_told)  # by the condition that the leader wrote
            assert answer["standby"] == "this replica stands by: first leads"
            assert not other.ready.is_set()
            told = await until(ask, "/fleet", is_told)
            assert (told["standby"], told["pools"]) == ("", answer["pools"])
            # Plans are of the leader alone, and the other says so.
            assert await ask_other(f"/fleet/plan?pod={NS}/p") == (503, {"error": answer["standby"]})
            _, page = await ask_other(f"/fleet/object?pod={NS}/q")
            assert "created with priority 0" in [h["text"] for h in page["history"]]

            # It remembers what it saw when it leads itself.
            await first.aclose()
            await asyncio.wait_for(other.ready.wait(), 60)
            answer = await until(ask_other, "/fleet", lambda a: "pools" in a)
            assert answer["standby"] == ""
            _, page = await ask_other(f"/fleet/object?pod={NS}/q")
            assert [h["text"] for h in page["history"]].count("created with priority 0") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "path", ["/fleet/labels", "/fleet/object?node=n1", "/fleet/trend", "/fleet/waiting?q=x"]
)
def test_with_rbac_it_is_for_those_who_may_see_the_fleet(path: str) -> None:
    async def status_of(host: str) -> int:
        rbac = serving(cluster_of(n1=(40,)), web_host=host, http_authorization="rbac")
        async with rbac as (url, controller), aiohttp.ClientSession() as session:
            await controller.ready.wait()
            async with session.get(url.replace("0.0.0.0", "127.0.0.1") + path) as response:
                return response.status

    assert asyncio.run(asyncio.wait_for(status_of("127.0.0.1"), 60)) == 200
    assert asyncio.run(asyncio.wait_for(status_of("0.0.0.0"), 60)) == 401


SICK = {
    "reason": "RowRemapPending",
    "severity": "degraded",
    "message": "rows",
    "since": "2026-11-29T00:00:00Z",
}


def ready(name: str, status: str = "True") -> dict[str, Any]:
    body = builders.node(name, uid=f"uid-{name}")
    body["status"] = {"conditions": [{"type": "Ready", "status": status}]}
    return body


def test_readers_are_told_the_problems_and_when_they_are_over() -> None:
    cluster = FakeClient()
    cluster.put(NODES, ready("n1"))
    cluster.put(NODES, ready("n2", "Unknown"))
    cluster.put(
        DEVICE_INVENTORIES, builders.inventory("n1", builders.device("gpu-0", "40Gi") | {"health": [SICK]})
    )
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n2", builders.device("gpu-0", "40Gi")))

    async def scenario(ask: Ask) -> None:
        answer = await until(ask, "/fleet", lambda a: a["problemsTotal"] == 2)
        assert [(p["kind"], p["subject"]) for p in answer["problems"]] == [
            ("DeviceUnhealthy", "device/n1/gpu-0"),
            ("NodeNotReady", "node/n2"),
        ]
        assert answer["problems"][0]["action"] == "reset the GPU"
        cluster.edit(NODES, "n2", ready("n2"))
        answer = await until(ask, "/fleet", lambda a: a["problemsTotal"] == 1)
        assert [p["kind"] for p in answer["problems"]] == ["DeviceUnhealthy"]

    run(scenario, cluster)
