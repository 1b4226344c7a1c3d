"""What the page answers about a pod that waits: to whom, about what, and how it is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import builders
import pytest
from browser import BROWSER, Page, browsing
from controller_harness import NS, OURS, bind_pods, claim, cluster_of, inline, pod, request
from fake_client import FakeClient
from virtual_time import LoopClock

from controller.app import Controller
from controller.config import ControllerConfig
from controller.web import CurrentFeed, serve
from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube import LeaderConfig, LeaderElector


@contextlib.asynccontextmanager
async def pages(cluster: FakeClient, **config: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    settings = ControllerConfig(drivers=(OURS,), leader_elect=False, web_port=0, **config)
    controller = Controller(cluster, settings, answers_of=inline)
    task = asyncio.create_task(controller.run())
    try:
        await controller.ready.wait()
        assert controller.web_address is not None
        url = f"http://127.0.0.1:{controller.web_address[1]}"
        async with aiohttp.ClientSession() as session:
            yield url, session
    finally:
        task.cancel()
        await asyncio.wait([task])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            await scenario()

    asyncio.run(main())


async def get(url: str, session: aiohttp.ClientSession, query: str) -> tuple[int, dict[str, Any]]:
    async with session.get(f"{url}/fleet/plan{query}") as response:
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        return response.status, await response.json()


def holding(cluster: FakeClient, name: str, node: str, *devices: str, priority: int = 0) -> None:
    """A pod that runs with devices, in the namespace ``other``."""
    results = [builders.result(node, device) for device in devices]
    status = builders.allocation(*results)
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, namespace="other", status=status))
    body = builders.pod(name, name, namespace="other", cpu="1")
    body["spec"] |= {"nodeName": node, "priority": priority}
    cluster.put(PODS, body)


def full_cluster() -> FakeClient:
    """A node with two devices, both held, and a pod that waits for one."""
    cluster = cluster_of(n1=(40, 40))
    holding(cluster, "low", "n1", "gpu-0")
    holding(cluster, "high", "n1", "gpu-1", priority=1000)
    claim(cluster, "c")
    pod(cluster, "p", "c")
    return cluster


def test_the_plan_of_a_pod_that_waits() -> None:
    async def scenario() -> None:
        async with pages(full_cluster()) as (url, session):
            status, answer = await get(url, session, f"?pod={NS}/p")
            assert (status, answer["pod"]) == (200, f"{NS}/p")
            plan = answer["plan"]
            assert not plan["fits"]
            (holder,) = plan["free"]["holders"]
            assert (holder["name"], holder["priority"]) == ("other/low", 0)
            assert plan["free"]["proven"]

    run(scenario)


def test_what_the_plan_names_is_told_to_nobody_else() -> None:
    cluster = full_cluster()

    async def scenario() -> None:
        async with pages(cluster) as (url, session):
            assert (await get(url, session, f"?pod={NS}/p"))[0] == 200
            await asyncio.sleep(1.0)
            told = [e for e in cluster.all(EVENTS) if e.metadata.namespace == NS]
            texts = [
                repr(cluster.raw(PODS, "p", NS)),
                repr(cluster.raw(RESOURCE_CLAIMS, "c", NS)),
                repr(told),
            ]
            assert all("other/" not in text and "'low'" not in text for text in texts)

    run(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?pod=",
        "?pod=p",
        "?pod=/p",
        "?pod=a/b/c",
        "?pod=ns/../../etc",
        "?pod=ns/p&pod=ns/q",
        "?pod=ns/p&seconds=9999",
        "?pod=NS/P",
        "?pod=ns/p%0a",
        "?pod=" + "n" * 64 + "/p",
        "?pod=ns/" + "p" * 254,
        "?pod=%3Cimg%20src=x%3E/p",
    ],
)
def test_names_that_no_pod_has_are_refused(query: str) -> None:
    async def main() -> None:
        async with serve("127.0.0.1", 0, CurrentFeed()) as (host, port), aiohttp.ClientSession() as session:
            status, answer = await get(f"http://{host}:{port}", session, query)
            assert status == 400
            assert answer == {"error": "ask for one pod that waits: /fleet/plan?pod=NAMESPACE/NAME"}

    asyncio.run(main())


def test_pods_that_do_not_wait_have_no_plan() -> None:
    cluster = full_cluster()
    cluster.put(PODS, builders.pod("plain", cpu="1"))
    done = builders.pod("done", "c", cpu="1")
    done["status"] = {"phase": "Succeeded"}
    cluster.put(PODS, done)

    async def scenario() -> None:
        async with pages(cluster) as (url, session):
            for name in ("missing", "plain", "done"):
                status, answer = await get(url, session, f"?pod={NS}/{name}")
                assert (status, answer["error"]) == (404, f"no pod {NS}/{name} waits for claims")
            async with session.post(f"{url}/fleet/plan?pod={NS}/p") as response:
                assert response.status == 405

    run(scenario)


def test_a_pod_whose_claim_is_missing_is_told_so() -> None:
    cluster = cluster_of(n1=(40,))
    pod(cluster, "p", "nowhere")

    async def scenario() -> None:
        async with pages(cluster) as (url, session):
            status, answer = await get(url, session, f"?pod={NS}/p")
            assert (status, answer["plan"]["error"]) == (200, True)
            assert f"ResourceClaim {NS}/nowhere does not exist" in answer["plan"]["reason"]

    run(scenario)


def test_a_standby_names_the_replica_that_leads() -> None:
    async def main() -> None:
        client = FakeClient()
        leading = LeaderElector(client, LeaderConfig("ns", "lease", "first-pod_1234"), LoopClock())
        standing_by = LeaderElector(client, LeaderConfig("ns", "lease", "second_5678"), LoopClock())
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        tasks = [asyncio.create_task(leading.run(work))]
        await begun.wait()
        tasks.append(asyncio.create_task(standing_by.run(work)))
        while not standing_by.holder:
            await asyncio.sleep(0.01)
        current = CurrentFeed(leader=lambda: standing_by.holder)
        async with serve("127.0.0.1", 0, current) as (host, port), aiohttp.ClientSession() as session:
            url = f"http://{host}:{port}"
            text = "this replica stands by: first-pod leads"
            assert await get(url, session, "?pod=ns/p") == (503, {"error": text})
            async with session.get(f"{url}/fleet") as response:
                assert (await response.json())["error"] == text
            async with session.get(f"{url}/fleet/events") as response:
                assert json.dumps(text) in (await response.text()).replace('":"', '": "')
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_with_rbac_plans_are_for_those_who_may_see_the_fleet() -> None:
    async def scenario(host: str) -> int:
        async with (
            pages(full_cluster(), web_host=host, http_authorization="rbac") as (url, session),
            session.get(f"{url}/fleet/plan?pod={NS}/p") as response,
        ):
            return response.status

    # Who comes by the loopback address was let in by the API server (pods/portforward).
    assert asyncio.run(asyncio.wait_for(scenario("127.0.0.1"), 60)) == 200
    assert asyncio.run(asyncio.wait_for(scenario("0.0.0.0"), 60)) == 401


# --- in a browser -------------------------------------------------------------------------------------------

EVIL = "<img src=x onerror=alert(1)>"
PLAN = "document.querySelector('tr.plan')"


async def press(page: Page, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
        await page.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.slow
def test_a_plan_is_drawn_beside_the_pod_in_a_real_browser(tmp_path: Path) -> None:
    cluster = full_cluster()

    async def scenario() -> None:
        async with pages(cluster) as (url, _), browsing(tmp_path, f"{url}/#/waiting") as page:
            # By the keyboard: the button is reached and pressed, and keeps the focus.
            await page.until("document.querySelector('tbody .ask') !== null")
            await page.evaluate("document.querySelector('tbody .ask').focus()")
            await press(page, "Enter", 13)
            await page.until(f"{PLAN}?.textContent.includes('other/low')")
            text = await page.evaluate(f"{PLAN}.innerText")
            assert "does not fit now" in text
            assert "1 (the fewest), then it fits on n1" in text
            assert "More nodes like n1" in text
            assert await page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"

            # What happens elsewhere leaves it as it is, with its focus.
            claim(cluster, "d", request(memory="500Gi"))
            pod(cluster, "q", "d")
            await page.until("document.querySelectorAll('tbody > tr:not(.plan) .ask').length === 2")
            assert await page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
            assert "other/low" in await page.evaluate(f"{PLAN}.innerText")

            # On a narrow screen nothing is wider than the screen.
            narrow = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **narrow)
            await page.until("document.documentElement.scrollWidth <= 360")
            # In the dark, text and ground are told apart.
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            await page.call("Emulation.setEmulatedMedia", features=features)
            colour = await page.evaluate(f"getComputedStyle({PLAN}.querySelector('td')).color")
            assert colour == "rgb(230, 235, 240)"

            # The plan goes with the second press, and with the pod.
            await press(page, "Enter", 13)
            await page.until(f"!{PLAN}")
            await press(page, "Enter", 13)
            await page.until(f"{PLAN}?.textContent.includes('other/low')")
            cluster.remove(PODS, "low", "other")
            cluster.remove(RESOURCE_CLAIMS, "low", "other")
            await page.until(f"!document.querySelector('main').textContent.includes('{NS}/c')")
            assert await page.evaluate("document.images.length") == 1  # the page's own
            assert page.complaints == []

    run(scenario)


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.slow
def test_a_pod_that_is_not_in_the_list_is_asked_about_by_its_name(tmp_path: Path) -> None:
    cluster = full_cluster()
    for i in range(201):
        claim(cluster, f"many-{i:03}", request(memory="500Gi"))
        pod(cluster, f"many-{i:03}", f"many-{i:03}")

    async def ask(page: Page, name: str) -> None:
        await page.evaluate("location.hash = '#/waiting'")
        await page.until("document.getElementById('other-pod') !== null")
        await page.evaluate(
            f"document.getElementById('other-pod').value = {json.dumps(name)};"
            "document.querySelector('#other button').click()"
        )

    async def scenario() -> None:
        async with pages(cluster) as (url, _), browsing(tmp_path, f"{url}/#/waiting") as page:
            await page.until("document.querySelector('main')?.innerText.includes('and 2 more claims')")
            await ask(page, f"{NS}/p")
            await page.until("document.querySelector('.plan button') !== null")
            await page.evaluate("document.querySelector('.plan button').click()")
            await page.until("document.querySelector('.plan').innerText.includes('other/low')")
            assert page.complaints == []
            await ask(page, f"ns/{EVIL[:4]}")
            await page.until("document.querySelector('.state')?.innerText.includes('ask for one of')")
            assert await page.evaluate("document.images.length") == 1

    run(scenario)


def test_the_pod_runs_when_the_named_holder_is_gone() -> None:
    cluster = full_cluster()

    async def scenario() -> None:
        async with pages(cluster) as (url, session):
            _, answer = await get(url, session, f"?pod={NS}/p")
            (holder,) = answer["plan"]["free"]["holders"]
            namespace, _, name = holder["name"].partition("/")
            cluster.remove(PODS, name, namespace)
            cluster.remove(RESOURCE_CLAIMS, name, namespace)
            while not cluster.raw(PODS, "p", NS)["spec"].get("nodeName"):
                bind_pods(cluster)
                await asyncio.sleep(0.02)
            node = answer["plan"]["free"]["placement"][0]["node"]
            assert cluster.raw(PODS, "p", NS)["spec"]["nodeName"] == node

    run(scenario)
