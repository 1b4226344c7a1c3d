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
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from dra_driver.serving import Authorizer, Limits, Port, Recent, protected
from dra_driver.serving import serve as listen
from kubelet_plugin.core.addresses import parse_address
from kubelet_plugin.telemetry import metrics

__all__ = ["serve"]

log = structlog.get_logger(__name__)

LIMITS: Final = Limits(connections=64, silent=256)
# What names claims and pods.
_PROTECTED: Final = frozenset({"/metrics", "/debug/state"})


@contextlib.asynccontextmanager
async def serve(
    address: str,
    *,
    metrics_text: Callable[[], Awaitable[bytes]],
    unhealthy: Callable[[], Awaitable[str]],
    unready: Callable[[], str],
    state: Callable[[], object],
    authorizer: Authorizer | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends, and give host and port.

    Args:
        address: ``HOST:PORT``, checked; if empty, nothing is served.
        metrics_text: the metrics.
        unhealthy: why the plugin cannot be called; empty where it can.
        unready: why the kubelet does not call it; empty where it does.
        state: plain data.
        authorizer: decides who may read metrics and state; if None, everybody may. Probes are open.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    if not address:
        yield "", 0
        return

    async def get_problem() -> bytes:
        return (await unhealthy()).encode()

    async def get_dump() -> bytes:
        dump: Any = msgspec.json.format(msgspec.json.encode(state()), indent=2) + b"\n"
        return bytes(dump)

    text, dump = Recent(metrics_text), Recent(get_dump)
    problem = Recent(get_problem, seconds=0.0)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await text.get(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def get_health(_: web.Request) -> web.Response:
        return _verdict((await problem.get()).decode())

    async def get_ready(_: web.Request) -> web.Response:
        return _verdict(unready())

    async def get_state(_: web.Request) -> web.Response:
        return web.Response(body=await dump.get(), content_type="application/json")

    def make_app(opened: Port) -> web.Application:
        app = web.Application(middlewares=[opened.middleware, protected(authorizer, _PROTECTED)])
        app.router.add_get("/metrics", get_metrics)
        app.router.add_get("/healthz", get_health)
        app.router.add_get("/readyz", get_ready)
        app.router.add_get("/debug/state", get_state)
        return app

    host, port = parse_address(address)
    flag = f"--metrics-address {address}"
    async with listen(host, port, make_app, flag=flag, limits=LIMITS) as opened:
        log.info("serving metrics", host=opened.address[0], port=opened.address[1])
        yield opened.address


def _verdict(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
