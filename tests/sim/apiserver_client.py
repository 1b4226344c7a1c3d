"""A small client of the embedded API server for its own tests: plain data in and out, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import aiohttp

from dra_driver.sim.apiserver import ApiServer

Raw = dict[str, Any]

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"
SLICES = f"{DRA}/resourceslices"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Client:
    """Sends requests; answers are (status code, body)."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.warnings: list[str] = []

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **headers: str
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        payload = io.BytesIO(data) if data and len(data) > 2**20 else data
        sent = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.session.request(
            method, self.server.url + path, data=payload, headers=sent
        ) as response:
            self.warnings = response.headers.getall("Warning", [])
            text = await response.text()
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, json.loads(text) if is_json else text

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return await self.call("GET", path, **headers)

    async def create(self, path: str, body: Raw) -> Raw:
        code, answer = await self.call("POST", path, body)
        assert code == 201, answer
        return dict(answer)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> tuple[int, Any]:
        return await self.call("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.call("DELETE", path, body)

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, **headers: str
    ) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Raw | None]]]:
        """Gives a function that waits for the next event (None: the server has ended the watch)."""
        async with self.session.get(self.server.url + path, headers=headers) as response:
            assert response.status == 200, await response.text()

            async def following() -> Raw | None:
                line = await asyncio.wait_for(response.content.readline(), 60)
                return json.loads(line) if line else None

            yield following


def run(scenario: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario against a fresh server on a free port."""

    async def main() -> None:
        async with asyncio.timeout(120), ApiServer(**settings) as server, aiohttp.ClientSession() as session:
            await scenario(Client(server, session))

    asyncio.run(main())


def config_map(name: str, **data: str) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> Raw:
    containers = [{"name": "c", "image": "busybox:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def claim(name: str, **exactly: Any) -> Raw:
    request = {"name": "r0", "exactly": {"deviceClassName": "gpu", **exactly}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def resource_slice(name: str, node: str = "n1") -> Raw:
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d0", "capacity": {"memory": {"value": "1048576Ki"}}}],
        },
    }


def causes(answer: Raw) -> set[tuple[str, str]]:
    """(field, reason without its prefix) of every cause."""
    found = (answer.get("details") or {}).get("causes") or []
    return {(c.get("field", ""), c["reason"].removeprefix("FieldValue")) for c in found}
