"""What becomes of owned objects when their owner is deleted, for every propagation policy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from apiserver_client import CLAIMS, PODS, Client, Raw, claim, pod

from dra_driver.api.meta import ObjectKey
from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.controlplane.controllers import GarbageCollector


def run(directory: Path, scenario: Callable[[Client, GarbageCollector], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), ApiServer() as server, aiohttp.ClientSession() as session:
            server.registry.collected = GarbageCollector.KINDS
            server.write_kubeconfig(directory / "kubeconfig")
            async with await KubeApi.connect(directory / "kubeconfig") as api:
                collector = GarbageCollector(api)
                task = asyncio.create_task(collector.run())
                try:
                    await scenario(Client(server, session), collector)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    asyncio.run(main())


async def family(client: Client, **finalizers: list[str]) -> None:
    """Pod ``owner`` and its claim ``owned``."""
    made = await client.create(PODS, pod("owner"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": made["metadata"]["uid"]}
    owned: Raw = claim("owned")
    owned["metadata"]["ownerReferences"] = [{**owner, "blockOwnerDeletion": True}]
    owned["metadata"].update(finalizers)
    await client.create(CLAIMS, owned)


async def known(collector: GarbageCollector) -> None:
    """Waits until the collector has seen both of the family."""
    while not all(collector.knows(ObjectKey("default", name)) for name in ("owner", "owned")):
        await asyncio.sleep(0.02)


async def gone(client: Client, path: str) -> None:
    while (await client.get(path))[0] != 404:
        await asyncio.sleep(0.02)


def options(policy: str) -> Raw:
    return {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}


def test_in_the_background_the_owner_goes_first(tmp_path: Path) -> None:
    async def scenario(client: Client, collector: GarbageCollector) -> None:
        await family(client, finalizers=["example.com/hold"])
        await client.delete(f"{PODS}/owner", options("Background"))
        assert (await client.get(f"{PODS}/owner"))[0] == 404
        while "deletionTimestamp" not in (await client.get(f"{CLAIMS}/owned"))[1]["metadata"]:
            await asyncio.sleep(0.02)

    run(tmp_path, scenario)


def test_an_owner_outlives_what_it_owned(tmp_path: Path) -> None:
    async def scenario(client: Client, collector: GarbageCollector) -> None:
        await family(client)
        await known(collector)
        await client.delete(f"{CLAIMS}/owned")
        await gone(client, f"{CLAIMS}/owned")
        await asyncio.sleep(0.3)
        assert (await client.get(f"{PODS}/owner"))[0] == 200

    run(tmp_path, scenario)


def test_in_the_foreground_the_owner_waits(tmp_path: Path) -> None:
    async def scenario(client: Client, collector: GarbageCollector) -> None:
        await family(client, finalizers=["example.com/hold"])
        code, answer = await client.delete(f"{PODS}/owner", options("Foreground"))
        assert (code, answer["metadata"]["finalizers"]) == (200, ["foregroundDeletion"])
        while "deletionTimestamp" not in (await client.get(f"{CLAIMS}/owned"))[1]["metadata"]:
            await asyncio.sleep(0.02)
        assert (await client.get(f"{PODS}/owner"))[0] == 200
        await client.patch(f"{CLAIMS}/owned", {"metadata": {"finalizers": None}})
        await gone(client, f"{PODS}/owner")
        assert (await client.get(f"{CLAIMS}/owned"))[0] == 404

    run(tmp_path, scenario)


def test_orphans_stay_without_their_owner(tmp_path: Path) -> None:
    async def scenario(client: Client, collector: GarbageCollector) -> None:
        await family(client)
        # What is not seen yet cannot be orphaned: as on a real cluster, the collector has to know it.
        await known(collector)
        await client.delete(f"{PODS}/owner", options("Orphan"))
        await gone(client, f"{PODS}/owner")
        code, owned = await client.get(f"{CLAIMS}/owned")
        assert code == 200
        assert "ownerReferences" not in owned["metadata"]

    run(tmp_path, scenario)
