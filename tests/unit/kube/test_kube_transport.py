"""KubeApi against a small HTTP server on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.watch import WatchEvent, WatchEventType
from dra_driver.errors import (
    ApiError,
    ApiUnavailable,
    ConfigurationError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    InvalidInput,
    NotFound,
    ServerBusy,
)
from dra_driver.kube import KubeApi
from dra_driver.kube.http.paging import LARGEST_OBJECT, LARGEST_PAGE, MOST_ITEMS

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user or {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, handle: Handle, user: dict[str, Any] | None = None
) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}", user)
        async with await KubeApi.connect(config, field_manager="test") as api:
            yield api
    finally:
        await runner.cleanup()


def status(code: int, reason: str = "", message: str = "", **details: object) -> web.Response:
    return web.json_response(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details},
        status=code,
    )


def test_list_follows_continue_tokens_and_reports_the_version_of_the_last_page(tmp_path: Path) -> None:
    queries = []

    async def handle(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        second = request.query.get("continue") == "next"
        return web.json_response(
            {
                "metadata": {"resourceVersion": "7", "continue": "" if second else "next"},
                "items": [{"metadata": {"name": "b" if second else "a"}}],
            }
        )

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            found = await api.list(NODES, label_selector="x=y")
            assert [n.metadata.name for n in found.items] == ["a", "b"]
            assert found.resource_version == "7"

    asyncio.run(main())
    assert int(queries[0]["limit"]) < 500  # nothing is known of the objects yet
    assert queries[0]["labelSelector"] == queries[1]["labelSelector"] == "x=y"


def test_list_starts_over_in_pages_when_the_continue_token_has_expired(tmp_path: Path) -> None:
    queries: list[dict[str, str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        if "continue" in request.query and len(queries) < 3:
            return status(410, "Expired", "too old")
        more = "" if "continue" in request.query else "next"
        return web.json_response({"metadata": {"resourceVersion": "7", "continue": more}, "items": None})

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            assert (await api.list(NODES)).items == ()

    asyncio.run(main())
    assert ["continue" in q for q in queries] == [False, True, False, True]
    assert all(int(q["limit"]) <= MOST_ITEMS for q in queries)


def test_a_history_that_is_too_short_for_the_list_is_reported(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if "continue" in request.query:
            return status(410, "Expired", "too old")
        return web.json_response({"metadata": {"resourceVersion": "7", "continue": "next"}, "items": None})

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            with pytest.raises(Gone):
                await api.list(NODES)

    asyncio.run(main())


class Pages:
    """Serves nodes of given sizes in bytes, page by page."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.items = [self._node(i, size) for i, size in enumerate(sizes)]
        self.pages: list[tuple[int, int]] = []

    @staticmethod
    def _node(i: int, size: int) -> bytes:
        head = b'{"metadata":{"name":"n%d","uid":"u"},"filling":"' % i
        return head + b"x" * (size - len(head) - 2) + b'"}'

    async def handle(self, request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        items, end = self.items[start : start + limit], start + limit
        more = b"%d" % end if end < len(self.items) else b""
        head = b'{"kind":"NodeList","metadata":{"resourceVersion":"7","continue":"' + more + b'"},"items":['
        body = head + b",".join(items) + b"]}"
        self.pages.append((len(items), len(body)))
        return web.Response(body=body, content_type="application/json")


def listed(tmp_path: Path, pages: Pages) -> list[str]:
    async def main() -> list[str]:
        async with serving(tmp_path, pages.handle) as api:
            return [node.metadata.name for node in (await api.list(NODES)).items]

    return asyncio.run(main())


def test_pages_of_small_objects_get_as_large_as_others_use(tmp_path: Path) -> None:
    pages = Pages([500] * 2_000)
    assert listed(tmp_path, pages) == [f"n{i}" for i in range(2_000)]
    numbers = [number for number, _ in pages.pages]
    assert numbers[0] < MOST_ITEMS
    assert MOST_ITEMS in numbers
    assert max(numbers) <= MOST_ITEMS


@pytest.mark.long
def test_pages_of_large_objects_are_small(tmp_path: Path) -> None:
    pages = Pages([1_000_000] * 30)
    assert listed(tmp_path, pages) == [f"n{i}" for i in range(30)]
    # The first is not read, the second shows how large the objects are.
    assert [number for number, _ in pages.pages] == [30, 16, 4, 4, 4, 2]


@pytest.mark.long
def test_a_page_that_is_too_long_is_asked_for_in_parts(tmp_path: Path) -> None:
    pages = Pages([500] * 1_000 + [1_000_000] * 20 + [500] * 10)
    assert listed(tmp_path, pages) == [f"n{i}" for i in range(1_030)]
    assert max(size for _, size in pages.pages) > LARGEST_PAGE  # it was offered, and not read


@pytest.mark.long
def test_no_more_is_read_of_a_page_than_it_may_have(tmp_path: Path) -> None:
    sent = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if int(request.query["limit"]) == 1:
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                await response.write(b" " * 1_000_000)
                sent += 1
        return response

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            assert (await api.list(NODES)).items == ()

    asyncio.run(main())
    tries = 3  # of 64, 16 and 4 items
    assert sent < tries * (LARGEST_PAGE / 1_000_000 + 10)


@pytest.mark.long
def test_an_object_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    exactly = Pages([500, LARGEST_OBJECT - 200, 500])
    assert listed(tmp_path, exactly) == ["n0", "n1", "n2"]
    beyond = Pages([500, LARGEST_OBJECT, 500])
    assert listed(tmp_path, beyond) == ["n0", "n2"]


@pytest.mark.long
def test_a_line_of_a_watch_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    def event(name: str, size: int) -> bytes:
        head = b'{"type":"ADDED","object":{"metadata":{"name":"%s"},"filling":"' % name.encode()
        return head + b"x" * (size - len(head) - 3) + b'"}}\n'

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (event("a", 500), event("long", LARGEST_OBJECT + 1), event("b", LARGEST_OBJECT)):
            await response.write(part)
        return response

    async def main() -> list[str]:
        async with serving(tmp_path, handle) as api:
            return [e.object.metadata.name async for e in api.watch(NODES, resource_version="1")]

    assert asyncio.run(main()) == ["a", "b"]


def test_a_claim_does_not_keep_its_page_in_memory() -> None:
    config = {"opaque": {"driver": "d", "parameters": {"a": 1}}}
    small = {"metadata": {"name": "small"}, "spec": {"devices": {"config": [config]}}}
    data = json.dumps({**small, "filling": "x" * 10_000}).encode()
    before = sys.getrefcount(data)
    claim = codec.decode(RESOURCE_CLAIMS.type, data)
    assert sys.getrefcount(data) == before
    (found,) = claim.spec.devices.config
    assert found.opaque is not None
    assert bytes(found.opaque.parameters) == b'{"a": 1}'


def test_an_undecodable_item_costs_only_itself(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        items = [{"metadata": {"name": "bad"}, "spec": {"nodeName": 5}}, _inventory("good")]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            found = await api.list(DEVICE_INVENTORIES)
            assert [i.metadata.name for i in found.items] == ["good"]

    asyncio.run(main())


def test_an_item_with_parameters_of_many_levels_costs_nothing(tmp_path: Path) -> None:
    value = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    deep = b'{"metadata":{"name":"deep"},"spec":{"devices":{"config":[{"opaque":{"driver":"d","parameters":'
    deep += value + b"}}]}}}"

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return web.Response(body=b'{"type":"ADDED","object":' + deep + b"}\n")
        body = b'{"metadata":{"resourceVersion":"1"},"items":[' + deep + b',{"metadata":{"name":"flat"}}]}'
        return web.Response(body=body, content_type="application/json")

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            found = await api.list(RESOURCE_CLAIMS)
            assert [c.metadata.name for c in found.items] == ["deep", "flat"]
            opaque = found.items[0].spec.devices.config[0].opaque
            assert opaque is not None
            assert bytes(opaque.parameters) == value
            async for event in api.watch(RESOURCE_CLAIMS, resource_version="1"):
                assert event.object == found.items[0]
                break

    asyncio.run(main())


async def collect(api: KubeApi, into: list[WatchEvent[DeviceInventory]]) -> None:
    async for event in api.watch(DEVICE_INVENTORIES, resource_version="1"):
        into.append(event)  # noqa: PERF401 - what came before the error counts


def _inventory(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": name, "driver": "d"}}


def test_watch_gives_typed_events_of_any_length_bookmarks_and_gone(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        big = _inventory("n1")
        big["metadata"]["annotations"] = {"a": "x" * 300_000}
        line = json.dumps({"type": "ADDED", "object": big}).encode() + b"\n"
        for start in range(0, len(line), 50_000):
            await response.write(line[start : start + 50_000])
        for event in (
            {"type": "BOOKMARK", "object": {"kind": "DeviceInventory", "metadata": {"resourceVersion": "9"}}},
            {"type": "DELETED", "object": _inventory("n1")},
            {
                "type": "ERROR",
                "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"},
            },
        ):
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def main() -> None:
        seen: list[WatchEvent[DeviceInventory]] = []
        async with serving(tmp_path, handle) as api:
            with pytest.raises(Gone):
                await collect(api, seen)
        assert [e.type for e in seen] == [
            WatchEventType.ADDED,
            WatchEventType.BOOKMARK,
            WatchEventType.DELETED,
        ]
        assert seen[1].object.metadata.resource_version == "9"
        assert seen[0].object.spec.node_name == "n1"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (500, ServerBusy),
        (503, ServerBusy),
        (504, ServerBusy),
    ],
)
def test_an_error_status_becomes_our_exception_with_its_parts(
    tmp_path: Path, code: int, kind: type[ApiError]
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        cause = {"field": "spec.x", "reason": "FieldValueInvalid", "message": "no"}
        return status(code, "Because", "it is so", causes=[cause], retryAfterSeconds=3)

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            with pytest.raises(kind, match="it is so") as caught:
                await api.get(NODES, "n")
        assert caught.value.code == code
        assert caught.value.reason == "Because"
        assert caught.value.causes == (("spec.x", "FieldValueInvalid", "no"),)
        assert caught.value.retry_after == 3

    asyncio.run(main())


def test_a_write_to_an_object_that_another_has_replaced_is_a_conflict(tmp_path: Path) -> None:
    """The answer of Kubernetes 1.36 to a patch that names the UID of a pod that is gone."""

    async def handle(request: web.Request) -> web.StreamResponse:
        text = 'Invalid value: "1": field is immutable'
        cause = {"field": "metadata.uid", "reason": "FieldValueInvalid", "message": text}
        return status(422, "Invalid", f'Node "n" is invalid: metadata.uid: {text}', causes=[cause, cause])

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            with pytest.raises(Conflict, match="field is immutable"):
                await api.merge_patch(NODES, "n", {"metadata": {"uid": "1"}})

    asyncio.run(main())


def test_an_error_that_is_no_status_keeps_its_text(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="404 page not found\n")

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            with pytest.raises(NotFound, match="404 page not found"):
                await api.get(NODES, "n")

    asyncio.run(main())


def test_429_is_waited_out(tmp_path: Path) -> None:
    calls = []

    async def handle(request: web.Request) -> web.StreamResponse:
        calls.append(request.method)
        if len(calls) == 1:
            return web.Response(status=429, headers={"Retry-After": "0"}, text="slow down")
        return web.json_response({"metadata": {"name": "n"}})

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            assert (await api.get(NODES, "n")).metadata.name == "n"

    asyncio.run(main())
    assert len(calls) == 2


def test_writes_carry_field_manager_dry_run_content_type_and_preconditions(tmp_path: Path) -> None:
    seen: list[tuple[str, str, dict[str, str], str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        seen.append((request.method, request.path, dict(request.query), request.content_type, body))
        return web.json_response({"metadata": {"name": "p"}})

    async def main() -> None:
        async with serving(tmp_path, handle) as api:
            body = {"metadata": {"name": "p", "namespace": "ns"}}
            await api.create(PODS, body, dry_run=True)
            await api.replace(PODS, body, subresource="status")
            await api.merge_patch(PODS, "p", {"spec": None}, "ns")
            await api.apply(PODS, body, field_manager="me", force=True)
            await api.delete(PODS, "p", "ns", uid="u", resource_version="5", grace_period_seconds=0)

    asyncio.run(main())
    create, replace, patch, apply, delete = seen
    assert create[:3] == ("POST", "/api/v1/namespaces/ns/pods", {"fieldManager": "test", "dryRun": "All"})
    assert replace[:2] == ("PUT", "/api/v1/namespaces/ns/pods/p/status")
    assert patch[3] == "application/merge-patch+json"
    assert apply[2:4] == ({"fieldManager": "me", "force": "true"}, "application/apply-patch+yaml")
    assert delete[4]["preconditions"] == {"uid": "u", "resourceVersion": "5"}
    assert delete[4]["gracePeriodSeconds"] == 0


def test_a_token_file_is_sent_and_read_again_after_401(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    seen = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        if seen[-1] != "Bearer new":
            token.write_text("new\n")
            return status(401, "Unauthorized")
        return web.json_response({"metadata": {"name": "n"}})

    async def main() -> None:
        async with serving(tmp_path, handle, {"tokenFile": str(token)}) as api:
            await api.get(NODES, "n")

    asyncio.run(main())
    assert seen == ["Bearer old", "Bearer new"]


def test_an_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    script = tmp_path / "plugin"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-exec"},
    }
    script.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    script.chmod(0o755)
    seen = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"metadata": {"name": "n"}})

    async def main() -> None:
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(script),
                "interactiveMode": "Never",
            }
        }
        async with serving(tmp_path, handle, user) as api:
            await api.get(NODES, "n")

    asyncio.run(main())
    assert seen == ["Bearer from-exec"]


def test_no_server_is_api_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        config = kubeconfig(tmp_path / "c", "http://127.0.0.1:9")
        async with await KubeApi.connect(config) as api:
            with pytest.raises(ApiUnavailable, match=r"127\.0\.0\.1:9"):
                await api.get(NODES, "n")
            with pytest.raises(ApiUnavailable):
                async for _ in api.watch(NODES, resource_version="1"):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../secrets", "a/b", "a?b", "..", "a b", "ä"])
def test_a_name_that_would_change_the_path_is_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        config = kubeconfig(tmp_path / "c", "http://127.0.0.1:9")
        async with await KubeApi.connect(config) as api:
            with pytest.raises(InvalidInput):
                await api.get(PODS, name, "ns")

    asyncio.run(main())


def connect_error(path: Path | None) -> str:
    async def main() -> None:
        async with await KubeApi.connect(path):
            pass

    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(main())
    return str(caught.value)


CONTEXTS = "contexts: [{name: c, context: {cluster: c}}]"
TLS = "{server: 'https://h', certificate-authority: /nowhere}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("a: [", "not YAML"),
        ("- 1", "a list"),
        ("apiVersion: v1", "clusters, contexts, current-context missing"),
        (
            f"current-context: x\n{CONTEXTS}\nclusters: [{{name: c, cluster: {{}}}}]",
            "x",
        ),
        (
            f"current-context: c\n{CONTEXTS}\nclusters: [{{name: c, cluster: {{}}}}]",
            "server",
        ),
        (
            f"current-context: c\n{CONTEXTS}\nclusters: [{{name: c, cluster: {TLS}}}]",
            "nowhere",
        ),
    ],
)
def test_a_malformed_kubeconfig_is_named_with_its_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    message = connect_error(path)
    assert str(path) in message
    assert problem in message


def test_an_absent_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in connect_error(tmp_path / "absent")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert "KUBECONFIG" in connect_error(None)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "--kubeconfig" in connect_error(None)


def test_the_kubeconfig_variable_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "c", "http://127.0.0.1:9")))

    async def main() -> None:
        async with await KubeApi.connect(None) as api:
            assert api.host == "http://127.0.0.1:9"

    asyncio.run(main())
