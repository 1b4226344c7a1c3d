"""Serves the page. Read-only: there is no way to change anything through it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from controller.web.feed import MOST_READERS, CurrentFeed, TooManyReaders
from dra_driver import serving
from dra_driver.api.meta import ObjectKey
from dra_driver.serving import Authorizer, Limits, Recent, protected

__all__ = ["serve"]

log = structlog.get_logger(__name__)

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/fleet.js": ("fleet.js", "text/javascript"),
    "/plans.js": ("plans.js", "text/javascript"),
    "/fleet.css": ("fleet.css", "text/css"),
}
# Names of claims and pods come from users: even if one got into the page as markup, nothing would run.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

# Of the readers that stay, there are places for others beside them.
LIMITS: Final = Limits(connections=MOST_READERS + 32, silent=128)
# What names claims and pods; all else is the same for everybody.
_PROTECTED: Final = frozenset({"/fleet", "/fleet/events", "/fleet/plan"})
# Of a namespace, and of a pod (RFC 1123).
_POD: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve(
    host: str, port: int, current: CurrentFeed, authorizer: Authorizer | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serve until the block ends; yield host and port.

    Args:
        host: address to listen on.
        port: 0: any.
        current: the feed of the fleet, which may be another one at each request.
        authorizer: decides who may read the fleet. If None, everybody may who reaches the address; and on a
            loopback address in any case: those come by ``kubectl port-forward``, which the API server allows.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    stopping = asyncio.Event()
    local = _is_loopback(host)

    async def get_events(request: web.Request) -> web.StreamResponse:
        return await _events(request, current, stopping)

    async def encode() -> bytes:
        return msgspec.json.encode(await current.feed.whole()) if current.feed is not None else b""

    fleet = Recent(encode)

    async def get_fleet(_: web.Request) -> web.StreamResponse:
        if current.feed is None or not (body := await fleet.get()):
            return web.json_response({"error": _standby(current)}, status=503)
        return web.Response(body=body, content_type="application/json")

    async def get_plan(request: web.Request) -> web.StreamResponse:
        return await _plan(request, current)

    def make_app(opened: serving.Port) -> web.Application:
        check = protected(None if local else authorizer, _PROTECTED)
        app = web.Application(middlewares=[opened.middleware, _guard(local=local), check])
        for path, (name, content_type) in _FILES.items():
            app.router.add_get(path, _file(name, content_type))
        app.router.add_get("/fleet", get_fleet)
        app.router.add_get("/fleet/events", get_events)
        app.router.add_get("/fleet/plan", get_plan)
        return app

    async with serving.serve(
        host, port, make_app, flag="--web-port", limits=LIMITS, ending=stopping.set, shutdown_seconds=1.0
    ) as opened:
        log.info("serving the page", host=opened.address[0], port=opened.address[1])
        yield opened.address


def _file(name: str, content_type: str) -> Handle:
    body = resources.files(__package__).joinpath("static", name).read_bytes()

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handle


def _guard(*, local: bool) -> Middleware:
    """Set headers, and refuse other names for a loopback address.

    A web site that somebody visits could otherwise read the page through a name of its own that it points to
    127.0.0.1.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handle) -> web.StreamResponse:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if local and not _is_loopback(name.strip("[]")):
            raise web.HTTPForbidden(text=f"the page is served to this machine only, not as {name[:100]}\n")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    return middleware


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _standby(current: CurrentFeed) -> str:
    # What is behind the "_" differs from start to start (``identity_of``).
    return f"this replica stands by: {current.leader().rpartition('_')[0] or 'another one'} leads"


async def _plan(request: web.Request, current: CurrentFeed) -> web.StreamResponse:
    names = request.query.getall("pod", [])
    if len(names) != 1 or len(request.query) != 1 or not _POD.fullmatch(names[0]):
        text = "ask for one pod that waits: /fleet/plan?pod=NAMESPACE/NAME"
        return web.json_response({"error": text}, status=400)
    if current.plans is None:
        return web.json_response({"error": _standby(current)}, status=503)
    namespace, _, name = names[0].partition("/")
    reply = await current.plans.get(ObjectKey(namespace, name))
    headers = {"Retry-After": str(reply.retry_after)} if reply.retry_after else {}
    return web.Response(
        body=reply.body, status=reply.status, content_type="application/json", headers=headers
    )


async def _events(request: web.Request, current: CurrentFeed, stopping: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    feed = current.feed
    if feed is None:
        told = msgspec.json.encode({"text": _standby(current)})
        await response.write(b"event: standby\ndata: " + told + b"\n\n")
        return response
    try:
        async with contextlib.aclosing(feed.changes()) as changes, asyncio.TaskGroup() as group:
            writer = group.create_task(_write(response, changes))
            end = group.create_task(stopping.wait())
            await asyncio.wait((writer, end), return_when=asyncio.FIRST_COMPLETED)
            writer.cancel()
            end.cancel()
    except* TooManyReaders:
        await response.write(b"event: busy\ndata: {}\n\n")
    except* ConnectionError:
        pass  # the reader went away
    return response


async def _write(response: web.StreamResponse, changes: AsyncIterator[object]) -> None:
    async for change in changes:
        await response.write(b"event: change\ndata: " + msgspec.json.encode(change) + b"\n\n")
