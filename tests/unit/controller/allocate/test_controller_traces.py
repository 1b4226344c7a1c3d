"""Traces: what a collector receives, and that without one nothing is done."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from controller_harness import Harness, claim, cluster_of, controlling, pod, run
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controller.config import ControllerConfig
from controller.observe.tracing import span, tracing
from dra_driver.errors import ConfigurationError


@contextlib.asynccontextmanager
async def collector(received: list[Span]) -> AsyncIterator[str]:
    """A collector that keeps the spans, as (name, parent's id, id, attributes)."""

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            received.extend(s for scope in resource.scope_spans for s in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_pods_allocation_is_one_trace_with_its_calls() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")
    received: list[Span] = []

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            collector(received) as url,
            controlling(cluster, otlp_endpoint=url) as harness,
        ):
            while harness.gates("p"):
                await asyncio.sleep(0.02)

    asyncio.run(main())
    root = next(
        s
        for s in received
        if s.name == "allocate" and any(c.parent_span_id == s.span_id and "patch" in c.name for c in received)
    )
    assert not root.parent_span_id
    assert {a.key: a.value.string_value for a in root.attributes} == {"dra.key": "default/p"}
    children = [s for s in received if s.parent_span_id == root.span_id]
    assert all(c.trace_id == root.trace_id for c in children)
    assert {"decide", "patch resourceclaims", "patch pods"} <= {c.name for c in children}


def test_without_a_collector_spans_are_nothing() -> None:
    with span("a") as nothing:
        assert nothing is None

    async def scenario(harness: Harness) -> None:
        await harness.quiet()

    run(cluster_of(n1=(40,)), scenario)


def test_a_failure_is_in_its_span() -> None:
    received: list[Span] = []

    async def main() -> None:
        async with collector(received) as url, tracing(url):
            with pytest.raises(ValueError, match="broken"), span("work"):
                raise ValueError("broken")

    asyncio.run(main())
    [failed] = received
    assert failed.events[0].name == "exception"


def test_wrong_addresses_and_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="--otlp-endpoint 'collector:4318': must be an"):
        ControllerConfig(otlp_endpoint="collector:4318")
    original = builtins.__import__

    def without(name: str, *more: Any) -> object:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)

    async def main() -> None:
        async with tracing("http://127.0.0.1:1"):
            pass

    with pytest.raises(ConfigurationError, match=r"pip install 'dra-driver\[tracing\]' is needed"):
        asyncio.run(main())
