"""Health and metrics over HTTP: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from aiohttp import web

from controller.observe.metrics import CONTENT_TYPE, Metrics
from dra_driver.errors import ConfigurationError

__all__ = ["serve_health"]

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def serve_health(
    host: str, port: int, ready: Callable[[], bool], metrics: Metrics
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends; yield host and port.

    Args:
        host: address to listen on.
        port: 0: any.
        ready: answer of ``/readyz``. ``/healthz`` says that the process answers, no more.
        metrics: served as they are at the time of the request.

    Raises:
        ConfigurationError: it cannot listen there.
    """

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", _answer(lambda: True))
    app.router.add_get("/readyz", _answer(ready))
    app.router.add_get("/metrics", get_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as e:
            raise ConfigurationError(f"--health-port: cannot listen on {host}:{port}: {e.strerror}") from e
        address = runner.addresses[0]
        log.info("serving health", host=address[0], port=address[1])
        yield address[0], address[1]
    finally:
        await runner.cleanup()


def _answer(healthy: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        good = healthy()
        return web.Response(text="ok\n" if good else "not ready\n", status=200 if good else 503)

    return handle
