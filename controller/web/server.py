"""Serves the page. Read-only: there is no way to change anything through it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from controller.web.feed import MOST_READERS, CurrentFeed, TooManyReaders
from controller.web.objects import KINDS
from dra_driver import serving
from dra_driver.api.meta import ObjectKey
from dra_driver.serving import Authorizer, Limits, Recent, protected

__all__ = ["serve"]

log = structlog.get_logger(__name__)

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Names of claims and pods come from users: even if one got into the page as markup, nothing would run.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

# For which the labels of nodes are told again: to count them takes a look at every node.
LABEL_SECONDS: Final = 10.0
# Of a filter, as in the address of the page.
LONGEST_QUERY: Final = 512
# Of the readers that stay, there are places for others beside them.
LIMITS: Final = Limits(connections=MOST_READERS + 32, silent=128)
# What names claims and pods; all else is the same for everybody.
_PROTECTED: Final = frozenset(
    {
        "/fleet",
        "/fleet/events",
        "/fleet/labels",
        "/fleet/object",
        "/fleet/plan",
        "/fleet/trend",
        "/fleet/waiting",
    }
)
# Of a namespace, and of a pod (RFC 1123).
_POD: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")

# Of what has a page: names of drivers, pools, devices, namespaces, claims, pods and nodes.
_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/]{0,767}")
_LABEL: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/]{0,316}")

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

    async def encode_labels() -> bytes:
        return msgspec.json.encode(await current.feed.labels()) if current.feed is not None else b""

    fleet, labels = Recent(encode), Recent(encode_labels, LABEL_SECONDS)

    async def get_fleet(_: web.Request) -> web.StreamResponse:
        return _answer(current, await fleet.get())

    async def get_labels(request: web.Request) -> web.StreamResponse:
        return await _labels(request, current, labels)

    async def get_object(request: web.Request) -> web.StreamResponse:
        return _object(request, current)

    async def get_plan(request: web.Request) -> web.StreamResponse:
        return await _plan(request, current)

    searches = _Turns()

    async def get_waiting(request: web.Request) -> web.StreamResponse:
        return await _waiting(request, current, searches)

    async def get_trend(_: web.Request) -> web.StreamResponse:
        feed = current.feed
        return _answer(current, msgspec.json.encode(feed.trend()) if feed is not None else b"")

    def make_app(opened: serving.Port) -> web.Application:
        check = protected(None if local else authorizer, _PROTECTED)
        app = web.Application(middlewares=[opened.middleware, _guard(local=local), check])
        for path, handle in _files().items():
            app.router.add_get(path, handle)
        app.router.add_get("/fleet", get_fleet)
        app.router.add_get("/fleet/events", get_events)
        app.router.add_get("/fleet/labels", get_labels)
        app.router.add_get("/fleet/object", get_object)
        app.router.add_get("/fleet/plan", get_plan)
        app.router.add_get("/fleet/trend", get_trend)
        app.router.add_get("/fleet/waiting", get_waiting)
        return app

    async with serving.serve(
        host, port, make_app, flag="--web-port", limits=LIMITS, ending=stopping.set, shutdown_seconds=1.0
    ) as opened:
        log.info("serving the page", host=opened.address[0], port=opened.address[1])
        yield opened.address


def _files() -> dict[str, Handle]:
    """Return what serves the files of the page: nothing else of the machine can be asked for."""
    found: dict[str, Handle] = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        content_type = _TYPES.get(PurePosixPath(file.name).suffix)
        if content_type is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = _file(file.read_bytes(), content_type)
    return found


def _file(body: bytes, content_type: str) -> Handle:
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


def _answer(current: CurrentFeed, body: bytes) -> web.StreamResponse:
    """Return an answer about the fleet; without a body, that this replica knows nothing of it yet."""
    if not body:
        return web.json_response({"error": current.standby()}, status=503)
    return web.Response(body=body, content_type="application/json")


async def _labels(request: web.Request, current: CurrentFeed, labels: Recent) -> web.StreamResponse:
    keys = request.query.getall("key", [])
    if len(keys) != len(request.query) or len(keys) > 1 or not all(map(_LABEL.fullmatch, keys)):
        return web.json_response({"error": "ask for one label: /fleet/labels?key=LABEL"}, status=400)
    feed = current.feed
    if feed is None:
        return _answer(current, b"")
    if not keys:
        return _answer(current, await labels.get())
    return _answer(current, msgspec.json.encode(feed.label(keys[0])))


def _object(request: web.Request, current: CurrentFeed) -> web.StreamResponse:
    asked = [(kind, name) for kind, name in request.query.items() if kind in KINDS and _NAME.fullmatch(name)]
    if len(asked) != 1 or len(request.query) != 1:
        text = f"ask for one of {', '.join(KINDS)}: /fleet/object?pod=NAMESPACE/NAME"
        return web.json_response({"error": text}, status=400)
    feed = current.feed
    if feed is None or feed.objects is None:
        return _answer(current, b"")
    page = feed.objects.describe(*asked[0])
    if page is None:
        kind, name = asked[0]
        return web.json_response({"error": f"nothing is known about {kind} {name}"}, status=404)
    return _answer(current, msgspec.json.encode(page))


async def _plan(request: web.Request, current: CurrentFeed) -> web.StreamResponse:
    names = request.query.getall("pod", [])
    if len(names) != 1 or len(request.query) != 1 or not _POD.fullmatch(names[0]):
        text = "ask for one pod that waits: /fleet/plan?pod=NAMESPACE/NAME"
        return web.json_response({"error": text}, status=400)
    if current.plans is None:
        return web.json_response({"error": current.standby()}, status=503)
    namespace, _, name = names[0].partition("/")
    reply = await current.plans.get(ObjectKey(namespace, name))
    headers = {"Retry-After": str(reply.retry_after)} if reply.retry_after else {}
    return web.Response(
        body=reply.body, status=reply.status, content_type="application/json", headers=headers
    )


class _Turns:
    """One at a time, with a pause after each that is as long as it took: half of the time at most."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._next = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        now = asyncio.get_running_loop().time
        async with self._lock:
            await asyncio.sleep(max(0.0, self._next - now()))
            begin = now()
            try:
                yield
            finally:
                self._next = 2 * now() - begin


async def _waiting(request: web.Request, current: CurrentFeed, searches: _Turns) -> web.StreamResponse:
    queries = request.query.getall("q", [])
    if len(queries) != 1 or len(request.query) != 1 or len(queries[0]) > LONGEST_QUERY:
        text = f"ask with one filter of at most {LONGEST_QUERY} characters: /fleet/waiting?q=WORDS"
        return web.json_response({"error": text}, status=400)
    async with searches.turn():  # each looks at every claim that waits
        feed = current.feed
        if feed is None:
            return _answer(current, b"")
        return _answer(current, msgspec.json.encode(await feed.search(queries[0])))


async def _events(request: web.Request, current: CurrentFeed, stopping: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    feed = current.feed
    if feed is None:
        told = msgspec.json.encode({"text": current.standby()})
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
