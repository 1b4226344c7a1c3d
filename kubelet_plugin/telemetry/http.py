"""What the node agent answers over HTTP: metrics, probes, and what it holds, for people.

=============  ===========================================================================================
/metrics       for Prometheus
/healthz       200 while the sockets that the kubelet uses answer (for a liveness probe)
/readyz        200 while the kubelet has the plugin registered (for a readiness probe)
/debug/state   JSON: devices, prepared claims, registration; names of claims and pods are in it
=============  ===========================================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiohttp import web

from dra_driver.errors import ConfigurationError
from kubelet_plugin.core.addresses import parse_address
from kubelet_plugin.telemetry import metrics

__all__ = ["serve"]

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def serve(
    address: str,
    *,
    metrics_text: Callable[[], Awaitable[bytes]],
    unhealthy: Callable[[], Awaitable[str]],
    unready: Callable[[], str],
    state: Callable[[], object],
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends, and give host and port.

    Args:
        address: ``HOST:PORT``, checked; if empty, nothing is served.
        metrics_text: the metrics.
        unhealthy: why the plugin cannot be called; empty where it can.
        unready: why the kubelet does not call it; empty where it does.
        state: plain data.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    if not address:
        yield "", 0
        return

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await metrics_text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def get_health(_: web.Request) -> web.Response:
        return _verdict(await unhealthy())

    async def get_ready(_: web.Request) -> web.Response:
        return _verdict(unready())

    async def get_state(_: web.Request) -> web.Response:
        body: Any = msgspec.json.format(msgspec.json.encode(state()), indent=2) + b"\n"
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_ready)
    app.router.add_get("/debug/state", get_state)
    # A slow reader of metrics must not hold up the end of the plugin.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        host, port = parse_address(address)
        try:
            await web.TCPSite(runner, host or None, port).start()
        except OSError as e:
            raise ConfigurationError(f"--metrics-address {address}: cannot listen there: {e.strerror}") from e
        bound = runner.addresses[0]
        log.info("serving metrics", host=bound[0], port=bound[1])
        yield str(bound[0]), int(bound[1])
    finally:
        await runner.cleanup()


def _verdict(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
