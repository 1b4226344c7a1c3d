"""Faults on demand: what clients of a disturbed API server live through."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from apiserver_client import CONFIG_MAPS, PODS, Client, config_map, run
from paths import PROJECT

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.http.injection import Injector
from dra_driver.sim.faults import parse as parse_faults


def disturbed(client: Client, text: str) -> Injector:
    injector = client.server.set_faults(parse_faults(text), exempt=("observer",))
    assert injector is not None
    return injector


def test_errors_strike_the_named_requests_as_often_as_said() -> None:
    async def scenario(client: Client) -> None:
        disturbed(client, "error 429 on create configmaps times 2; error 503 on get from other")
        for _ in range(2):
            code, answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
            assert (code, answer["reason"]) == (429, "TooManyRequests")
            assert answer["details"]["retryAfterSeconds"] == 1
        await client.create(CONFIG_MAPS, config_map("a"))
        assert (await client.get(f"{CONFIG_MAPS}/a"))[0] == 200
        code, answer = await client.get(f"{CONFIG_MAPS}/a", User_Agent="other/1")
        assert (code, answer["reason"]) == (503, "ServiceUnavailable")
        client.server.set_faults(None)
        assert (await client.get(f"{CONFIG_MAPS}/a", User_Agent="other/1"))[0] == 200

    run(scenario)


def test_chance_is_seeded() -> None:
    async def draw(seed: int) -> list[int]:
        codes: list[int] = []

        async with ApiServer() as server, aiohttp.ClientSession() as session:
            client = Client(server, session)
            server.set_faults(parse_faults("error 500 50% on list", seed=seed))
            for _ in range(30):
                codes.append((await client.get(CONFIG_MAPS))[0])  # noqa: PERF401
        return codes

    first, again, other = (asyncio.run(draw(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert {200, 500} == set(first)


def test_a_lost_answer_was_carried_out_and_a_reset_request_was_not() -> None:
    async def scenario(client: Client) -> None:
        disturbed(client, "lose on create configmaps times 1; reset on delete")
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.create(CONFIG_MAPS, config_map("a"))
        assert (await client.get(f"{CONFIG_MAPS}/a"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.delete(f"{CONFIG_MAPS}/a")
        assert (await client.get(f"{CONFIG_MAPS}/a"))[0] == 200
        assert (await client.call("DELETE", f"{CONFIG_MAPS}/a", User_Agent="observer"))[0] == 200

    run(scenario)


def test_latency_lasts_as_long_as_said() -> None:
    async def scenario(client: Client) -> None:
        injector = disturbed(client, "latency 200ms on list for 60s")
        loop = asyncio.get_running_loop()
        start = loop.time()
        await client.get(CONFIG_MAPS)
        assert loop.time() - start >= 0.2
        assert injector.struck == [1]
        injector = disturbed(client, "latency 200ms on list for 50ms")
        await asyncio.sleep(0.1)
        await client.get(CONFIG_MAPS)
        assert injector.struck == [0]

    run(scenario)


def test_watches_are_dropped_stalled_and_expired_even_when_older_than_the_plan() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(CONFIG_MAPS, config_map("a"))
        version = made["metadata"]["resourceVersion"]
        path = f"{CONFIG_MAPS}?watch=1&resourceVersion={version}"
        async with client.watch(path) as following:
            disturbed(client, "drop watches on configmaps at 50ms")
            with pytest.raises(aiohttp.ClientPayloadError):
                await following()
        async with client.watch(path) as following:
            disturbed(client, "stall watches for 300ms")
            start = asyncio.get_running_loop().time()
            await client.create(CONFIG_MAPS, config_map("b"))
            event = await following()
            assert event is not None
            assert event["object"]["metadata"]["name"] == "b"
            assert asyncio.get_running_loop().time() - start >= 0.25
            disturbed(client, "expire watches on configmaps")
            event = await following()
            assert event is not None
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        # Those who come back with what they have seen are sent to list again.
        async with client.watch(path) as following:
            event = await following()
            assert event is not None
            assert event["object"]["reason"] == "Expired"
        _, listed = await client.get(CONFIG_MAPS)
        version = listed["metadata"]["resourceVersion"]
        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={version}") as following:
            await client.create(CONFIG_MAPS, config_map("c"))
            event = await following()
            assert event is not None
            assert event["type"] == "ADDED"

    run(scenario)


def test_the_clock_jumps_and_stays_there() -> None:
    async def scenario(client: Client) -> None:
        disturbed(client, "clock +1h; clock -30m at 50ms")
        await asyncio.sleep(0.1)
        made = await client.create(CONFIG_MAPS, config_map("a"))
        assert made["metadata"]["creationTimestamp"] == "2001-09-09T02:16:40Z"
        client.server.set_faults(None)
        made = await client.create(CONFIG_MAPS, config_map("b"))
        assert made["metadata"]["creationTimestamp"] == "2001-09-09T02:16:40Z"

    run(scenario, clock=lambda: 1_000_000_000.0)


def test_a_killed_server_comes_back_with_its_objects_at_its_address() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a"))
        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion=0") as following:
            await following()
            disturbed(client, "kill apiserver for 300ms")
            with pytest.raises(aiohttp.ClientPayloadError):
                await following()
        assert [o["metadata"]["name"] for o in (await back(client))["items"]] == ["a"]

    run(scenario)


def test_a_killed_server_has_closed_its_port() -> None:
    async def scenario(client: Client) -> None:
        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion=0") as following:
            disturbed(client, "kill apiserver")
            with pytest.raises(aiohttp.ClientPayloadError):
                await following()
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get(CONFIG_MAPS)

    run(scenario)


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_arrives_while_the_port_closes_is_ended(turns: int) -> None:
    async def scenario() -> None:
        server = ApiServer()
        await server.start()
        address = urlsplit(server.url)
        # The kernel has accepted it; the server learns of it some turns of the loop later.
        with socket.create_connection((address.hostname, address.port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            for _ in range(10):
                await asyncio.sleep(0)
            client.setblocking(False)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass

    asyncio.run(scenario())


def test_a_plan_that_ends_in_an_outage_leaves_no_server_down() -> None:
    async def scenario(client: Client) -> None:
        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion=0") as following:
            disturbed(client, "kill apiserver for 100ms")
            with pytest.raises(aiohttp.ClientPayloadError):
                await following()
        client.server.set_faults(None)
        assert (await back(client))["items"] == []

    run(scenario)


async def back(client: Client) -> dict[str, Any]:
    """Wait until a server answers that is down, and return what it lists."""
    async with asyncio.timeout(60):
        while True:
            try:
                code, answer = await client.get(CONFIG_MAPS)
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)
                continue
            assert code == 200
            found: dict[str, Any] = answer
            return found


def test_plans_for_resources_that_are_not_there_are_refused() -> None:
    async def scenario(client: Client) -> None:
        with pytest.raises(ConfigurationError, match="no resource 'resourceslice'"):
            disturbed(client, "error 500 on list resourceslice")
        disturbed(client, "error 500 on create pods/binding")
        assert (await client.get(PODS))[0] == 200

    run(scenario)


def test_a_server_that_refuses_its_plan_does_not_listen() -> None:
    async def scenario() -> None:
        server = ApiServer(faults=parse_faults("error 500 on list gpus"))
        with pytest.raises(ConfigurationError, match="no resource 'gpus'"):
            await server.start()
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(server.url)

    asyncio.run(scenario())


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (PROJECT / "docs" / "faults.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/faults.md", "exec"), {"__name__": "page"})
    assert parse_faults(capsys.readouterr().out).faults
