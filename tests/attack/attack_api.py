"""HTTP to the embedded API server, and to the ports of the controllers, with nothing on top."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from apiserver_support import MERGE_PATCH, Connection

__all__ = ["MERGE_PATCH", "Api", "Manifest", "exchange"]

Manifest = dict[str, Any]
_CONNECTIONS = 12
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Secret": ("/api/v1", "secrets"),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices"),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses"),
    "DeviceInventory": ("/apis/dra-driver.dev/v1alpha1", "deviceinventories"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "MutatingAdmissionPolicy": (_ADMISSION, "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": (_ADMISSION, "mutatingadmissionpolicybindings"),
    "ValidatingAdmissionPolicy": (_ADMISSION, "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, "validatingadmissionpolicybindings"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}


async def exchange(
    connection: Connection, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
) -> tuple[int, bytes]:
    """Send a request over an open connection, return status and body of the answer."""
    connection.writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    head = (await connection.reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(h[15:]) for h in head.split("\r\n") if h.lower().startswith("content-length:"))
    return int(head.split(" ", 2)[1]), await connection.reader.readexactly(length)


class Api:
    """A client of the API server with a few connections, for everyone in the suite."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Return status and answer of a request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._slots, asyncio.timeout(60):
            connection = self._idle.pop() if self._idle else await Connection.open(self.port)
            try:
                status, answer = await exchange(connection, method, path, data, content_type)
            except (
                BaseException
            ):  # the answer of a request that is given up must not be taken for the next one's
                connection.writer.close()
                raise
            self._idle.append(connection)
        return status, json.loads(answer) if answer else None

    async def create(self, manifest: Mapping[str, Any]) -> tuple[int, Any]:
        """Create an object."""
        return await self.call("POST", path_of(manifest, collection=True), manifest)

    async def patch(self, path: str, patch: Mapping[str, Any]) -> int:
        """Send a merge patch; return the status of the answer."""
        return (await self.call("PATCH", path, patch, MERGE_PATCH))[0]

    async def items(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind, of all namespaces."""
        base, plural = _PATHS[kind]
        found: list[Manifest] = []
        token = ""
        while True:
            _, page = await self.call("GET", f"{base}/{plural}?limit=500&continue={token}")
            found += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return found

    async def some(self, kind: str, number: int) -> list[Manifest]:
        """Return the first objects of a kind."""
        base, plural = _PATHS[kind]
        _, page = await self.call("GET", f"{base}/{plural}?limit={number}")
        return list(page["items"])

    async def delete_all(self, kind: str, namespace: str) -> None:
        """Delete all objects of a kind in a namespace; those with finalizers stay, marked as deleted."""
        path = path_of({"kind": kind, "metadata": {"namespace": namespace}}, collection=True)
        await self.call("DELETE", f"{path}?gracePeriodSeconds=0")

    async def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object at once, whether it is there or not."""
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        await self.call("DELETE", f"{path_of({'kind': kind, 'metadata': meta})}?gracePeriodSeconds=0")

    async def free(self, claim: Mapping[str, Any]) -> None:
        """Deallocate and delete a claim, as the controller-manager does when its last pod is gone."""
        path = path_of({**claim, "kind": "ResourceClaim"})
        await self.patch(f"{path}/status", {"status": {"reservedFor": None, "allocation": None}})
        await self.call("DELETE", path)
        await self.patch(path, {"metadata": {"finalizers": None}})

    async def watch(self, kind: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield events until the server ends the watch."""
        base, plural = _PATHS[kind]
        connection = await Connection.open(self.port)
        try:
            events = connection.events(f"{base}/{plural}?watch=1&resourceVersion={version}")
            async for event in events:
                yield event
        finally:
            connection.writer.close()

    async def create_all(self, manifests: Iterable[Mapping[str, Any]]) -> list[tuple[int, Any]]:
        """Create objects side by side; return the answers in no order."""
        waiting = iter(manifests)
        answers: list[tuple[int, Any]] = []

        async def work() -> None:
            for manifest in waiting:
                answer = await self.create(manifest)
                answers.append(answer)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(work())
        return answers

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.writer.close()


def path_of(manifest: Mapping[str, Any], *, collection: bool = False) -> str:
    """Return the path of an object, or of the collection that it belongs to."""
    base, plural = _PATHS[manifest["kind"]]
    meta = manifest["metadata"]
    inside = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
    return f"{base}{inside}/{plural}" + ("" if collection else f"/{meta['name']}")
