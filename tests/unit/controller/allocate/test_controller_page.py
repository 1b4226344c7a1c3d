"""The controller's page: what is served, to whom, and what a reader is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from browser import BROWSER, browsing
from controller_harness import NS, OURS, claim, cluster_of, inline, pod, pool, request
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from controller.web import CurrentFeed, serve
from controller.web.feed import MOST_READERS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import ConfigurationError

T = TypeVar("T")


@contextlib.asynccontextmanager
async def page_of(cluster: FakeClient, **config: Any) -> AsyncIterator[str]:
    """The address of the page of a controller that works."""
    settings = ControllerConfig(drivers=(OURS,), leader_elect=False, web_port=0, **config)
    controller = Controller(cluster, settings, answers_of=inline)
    task = asyncio.create_task(controller.run())
    try:
        await controller.ready.wait()
        assert controller.web_address is not None
        host, port = controller.web_address
        yield f"http://{host}:{port}"
    finally:
        task.cancel()
        await asyncio.wait([task])


def run(scenario: Callable[[str, aiohttp.ClientSession], Awaitable[T]], cluster: FakeClient) -> T:
    async def main() -> T:
        async with asyncio.timeout(90), page_of(cluster) as url, aiohttp.ClientSession() as session:
            return await scenario(url, session)

    return asyncio.run(main())


async def changes(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """The messages of the event stream."""
    kind = ""
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("event: "):
            kind = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield kind, json.loads(text.removeprefix("data: "))


def test_the_page_brings_everything_with_it() -> None:
    async def scenario(url: str, session: aiohttp.ClientSession) -> None:
        async with session.get(url) as response:
            assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            html = await response.text()
        for name in re.findall(r'(?:href|src)="([^"]+)"', html):
            assert "//" not in name
            async with session.get(f"{url}/{name}") as response:
                assert response.status == 200, name

    run(scenario, cluster_of(n1=(40,)))


def test_nothing_can_be_changed_and_other_names_are_refused() -> None:
    async def scenario(url: str, session: aiohttp.ClientSession) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with session.request(method, f"{url}/fleet") as response:
                assert response.status == 405
        async with session.get(f"{url}/fleet", headers={"Host": "evil.example.com"}) as response:
            assert response.status == 403
        async with session.get(f"{url}/../etc/passwd") as response:
            assert response.status == 404

    run(scenario, cluster_of(n1=(40,)))


def test_the_whole_fleet_as_data() -> None:
    cluster = cluster_of(n1=(40, 24), n2=(80,))
    claim(cluster, "c", request(memory="60Gi"))
    pod(cluster, "p", "c")
    claim(cluster, "d", request(memory="500Gi"))
    pod(cluster, "q", "d")

    async def scenario(url: str, session: aiohttp.ClientSession) -> Any:
        while True:
            async with session.get(f"{url}/fleet") as response:
                data = await response.json()
            devices = [d for p in data["pools"] for d in p["devices"]]
            told = any(w["reason"] != "not looked at yet" for w in data["waiting"])
            if told and "allocated" in [d["state"] for d in devices]:
                return data
            await asyncio.sleep(0.05)

    data = run(scenario, cluster)
    held = [(p["node"], h["claim"]) for p in data["pools"] for d in p["devices"] for h in d["holders"]]
    assert held == [("n2", f"{NS}/c")]
    assert data["nodes"] == 2
    [waiting] = data["waiting"]
    assert (waiting["claim"], waiting["pods"]) == (f"{NS}/d", ["q"])
    assert "500Gi" in waiting["reason"]


def test_a_reader_is_told_everything_and_then_what_changes() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,))

    async def scenario(url: str, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/fleet/events") as response:
            told = changes(response)
            kind, first = await anext(told)
            assert (kind, first["first"]) == ("change", True)
            pools = {}
            async for _, change in told:
                pools.update({p["pool"]: p for p in change["pools"]})
                if change["complete"]:
                    break
            assert sorted(pools) == ["n1", "n2"]
            claim(cluster, "c")
            pod(cluster, "p", "c")
            later = {}
            async for _, change in told:
                later.update({p["pool"]: p for p in change["pools"]})
                if any(d["state"] == "allocated" for p in later.values() for d in p["devices"]):
                    break
            assert len(later) == 1  # the other node's pool did not change
            cluster.remove(RESOURCE_CLAIMS, "c", NS)
            async for _, change in told:
                if any(d["state"] == "free" for p in change["pools"] for d in p["devices"]):
                    return

    run(scenario, cluster)


def test_a_standby_says_so_and_too_many_readers_are_told_to_wait() -> None:
    async def main() -> None:
        async with serve("127.0.0.1", 0, CurrentFeed()) as (host, port), aiohttp.ClientSession() as session:
            async with session.get(f"http://{host}:{port}/fleet/events") as response:
                assert [kind async for kind, _ in changes(response)] == ["standby"]
            async with session.get(f"http://{host}:{port}/fleet") as response:
                assert response.status == 503

    asyncio.run(main())

    async def scenario(url: str, session: aiohttp.ClientSession) -> None:
        async with contextlib.AsyncExitStack() as readers:
            for _ in range(MOST_READERS):
                reader = await readers.enter_async_context(session.get(f"{url}/fleet/events"))
                assert (await anext(changes(reader)))[0] == "change"
            async with session.get(f"{url}/fleet/events") as response:
                assert [kind async for kind, _ in changes(response)] == ["busy"]

    run(scenario, cluster_of())


def test_a_taken_port_is_told() -> None:
    async def main() -> None:
        async with serve("127.0.0.1", 0, CurrentFeed()) as (host, port):
            with pytest.raises(ConfigurationError, match=f"--web-port: cannot listen on {host}:{port}"):
                async with serve(host, port, CurrentFeed()):
                    pass

    asyncio.run(main())
    with pytest.raises(ConfigurationError, match="--web-port 70000: must be between 0 and 65535"):
        ControllerConfig(web_port=70000)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.slow
def test_the_page_follows_the_fleet_in_a_real_browser(tmp_path: Path) -> None:
    cluster: FakeClient = cluster_of(n1=(40, 24), n2=(80,))
    evil = "<img src=x onerror=alert(1)>"

    def count(state: str) -> str:
        return f"Number(document.querySelector('[data-bucket={state}] .n')?.textContent)"

    async def scenario(url: str, _: aiohttp.ClientSession) -> None:
        async with browsing(tmp_path, url) as page:
            await page.until(f"{count('free')} === 3")
            assert "on 2 of 2 nodes" in await page.evaluate("document.querySelector('.kpis').innerText")

            # somebody gets a device: the map changes by itself, the lists tell who
            claim(cluster, "c", request(memory="60Gi"))
            pod(cluster, "p", "c")
            await page.until(f"{count('allocated')} === 1")
            await page.evaluate("location.hash = '#/claims'")
            await page.until(f"document.querySelector('.c-name a')?.textContent === '{NS}/c'")
            await page.evaluate("document.querySelector('.c-name a').click()")
            await page.until("document.querySelector('.facts')?.innerText.includes('allocated')")
            assert "gpu-0" in await page.evaluate("document.querySelector('.plain').innerText")

            # what does not fit is listed with the reason, as text and never as markup
            claim(cluster, "d", request(memory="500Gi"))
            pod(cluster, "q", "d")
            await page.evaluate("location.hash = '#/waiting'")
            await page.until(
                "document.querySelector('.c-reason')?.textContent && main.innerText.includes('500Gi')"
            )

            # a new node appears, in order; the filter narrows the list to what it names
            pool(cluster, evil.replace(" ", "-"), 16)
            await page.evaluate("location.hash = '#/nodes'")
            await page.until("document.querySelectorAll('tr.row').length === 3")
            assert await page.evaluate("document.images.length") == 1  # the page's own
            assert await page.evaluate(
                "document.querySelector('.row .c-name').textContent.startsWith('<img')"
            )
            await page.evaluate("q.value = 'node:n2'; q.dispatchEvent(new Event('input'))")
            await page.until("document.querySelectorAll('tr.row').length === 1")
            assert await page.evaluate("location.hash") == "#/nodes?q=node%3An2"
            await page.evaluate("location.hash = '#/fleet'")
            await page.until(f"{count('free')} === 3")

            # and what is gone, goes
            cluster.remove(RESOURCE_CLAIMS, "c", NS)
            await page.until(f"{count('free')} === 4")
            assert page.complaints == []

    run(scenario, cluster)


async def statuses(base: str, *paths: str) -> list[int]:
    async with aiohttp.ClientSession(base) as session:
        found = []
        for path in paths:
            async with session.get(path) as answer:
                found.append(answer.status)
        return found


def test_with_rbac_names_are_for_those_who_may_and_probes_are_for_all() -> None:
    async def main(host: str) -> list[int]:
        settings = ControllerConfig(
            drivers=(OURS,),
            leader_elect=False,
            health_port=0,
            web_port=0,
            web_host=host,
            http_authorization="rbac",
        )
        controller = Controller(cluster_of(n1=(40,)), settings)
        task = asyncio.create_task(controller.run())
        try:
            await controller.ready.wait()
            assert controller.health_address is not None
            assert controller.web_address is not None
            health = f"http://127.0.0.1:{controller.health_address[1]}"
            page = f"http://127.0.0.1:{controller.web_address[1]}"
            return [
                *await statuses(health, "/healthz", "/readyz", "/metrics"),
                *await statuses(page, "/", "/fleet"),
            ]
        finally:
            task.cancel()
            await asyncio.wait([task])

    # Who reads the page on a loopback address came by way of the API server, which has allowed it.
    assert asyncio.run(asyncio.wait_for(main("127.0.0.1"), 60)) == [200, 200, 401, 200, 200]
    assert asyncio.run(asyncio.wait_for(main("0.0.0.0"), 60)) == [200, 200, 401, 200, 401]
