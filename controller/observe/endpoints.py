"""Health and metrics over HTTP: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web

from controller.observe.metrics import CONTENT_TYPE, Metrics
from dra_driver.serving import Authorizer, Limits, Port, Recent, protected, serve

__all__ = ["serve_health"]

log = structlog.get_logger(__name__)

LIMITS: Final = Limits(connections=128)


@contextlib.asynccontextmanager
async def serve_health(
    host: str,
    port: int,
    ready: Callable[[], bool],
    metrics: Metrics,
    authorizer: Authorizer | None = None,
    *,
    detail: Callable[[], str] = str,
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends; yield host and port.

    Args:
        host: address to listen on.
        port: 0: any.
        ready: answer of ``/readyz``. ``/healthz`` says that the process answers, no more.
        metrics: served as they are at the time of the request, or were a moment before.
        authorizer: decides who may read ``/metrics``; if None, everybody may. Probes are open.
        detail: lines of ``/readyz`` after the first; everybody may read them.

    Raises:
        ConfigurationError: it cannot listen there.
    """

    async def render() -> bytes:
        return metrics.text()

    text = Recent(render)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await text.get(), headers={"Content-Type": CONTENT_TYPE})

    def make_app(opened: Port) -> web.Application:
        app = web.Application(middlewares=[opened.middleware, protected(authorizer, {"/metrics"})])
        app.router.add_get("/healthz", _answer(lambda: True))
        app.router.add_get("/readyz", _answer(ready, detail))
        app.router.add_get("/metrics", get_metrics)
        return app

    async with serve(host, port, make_app, flag="--health-port", limits=LIMITS) as opened:
        log.info("serving health", host=opened.address[0], port=opened.address[1])
        yield opened.address


def _answer(
    healthy: Callable[[], bool], detail: Callable[[], str] = str
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        good = healthy()
        text = f"{'ok' if good else 'not ready'}\n{detail()}"
        return web.Response(text=text, status=200 if good else 503)

    return handle
