"""``KubeApi``: the API server over HTTP, as ``ports.KubeClient`` wants it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
import structlog
import tenacity

import dra_driver
from dra_driver.api import codec
from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.server.watch import ObjectList, Unreadable, WatchEvent
from dra_driver.errors import (
    ApiError,
    ApiUnavailable,
    ConfigurationError,
    Gone,
    InvalidInput,
    NotFound,
    ServerBusy,
)
from dra_driver.kube.http import config, decoding, status
from dra_driver.kube.http.paging import LARGEST_OBJECT, PageSize
from dra_driver.kube.http.sending import GuardedBody, make_socket
from dra_driver.ports import WriteGuard

__all__ = ["KubeApi"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

CONCURRENT_PAGES = 2  # of lists: each may take megabytes
LIST_TRIES = 3
# Decoded without a pause.
BYTES_AT_A_TIME = 256 * 1024
CONCURRENT_CALLS = 64  # watches are not counted
CALL_SECONDS = 30.0
# The server answers 429 before it has done anything, so every verb may be repeated.
BUSY_TRIES = 4
LONGEST_RETRY_AFTER = 10.0

_CALL = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=10)

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class KubeApi:
    """Implements ``ports.KubeClient``. Use ``async with await KubeApi.connect(path) as api``.

    Calls time out after 30 s (``ApiUnavailable``). 429 is waited out as the server asks, a few times; 401
    refreshes the credential once. Everything else is raised to the caller.
    """

    def __init__(
        self, connection: config.Connection, *, field_manager: str = "", user_agent: str = ""
    ) -> None:
        self._connection = connection
        self._field_manager = field_manager
        self._calls = asyncio.Semaphore(CONCURRENT_CALLS)
        self._list_pages = asyncio.Semaphore(CONCURRENT_PAGES)
        self._guard: WriteGuard | None = None
        connector = aiohttp.TCPConnector(
            limit=0,
            ssl=connection.ssl_context if connection.ssl_context is not None else True,
            socket_factory=make_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={
                "Accept": "application/json",
                "User-Agent": user_agent or f"dra-driver/{dra_driver.__version__}",
            },
            # A pushed redirect would carry our token elsewhere; cookies mean nothing here.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | None = None,
        *,
        context: str = "",
        field_manager: str = "",
        user_agent: str = "",
    ) -> Self:
        """Read the configuration; no request is sent yet.

        Args:
            kubeconfig: a file; if None, the KUBECONFIG variable, the pod's service account, ~/.kube/config.
            context: of the kubeconfig; empty: its current one.
            field_manager: owner of what we write, as ``managedFields`` shows it.
            user_agent: as the audit log shows it.

        Raises:
            ConfigurationError: the configuration is missing or cannot be used; says which file and why.
        """
        connection = await config.connect(kubeconfig, context)
        return cls(connection, field_manager=field_manager, user_agent=user_agent)

    @property
    def host(self) -> str:
        """Address of the API server."""
        return self._connection.host

    @property
    def namespace(self) -> str:
        """Namespace of the context of the kubeconfig, or of the pod, as kubectl takes it by default."""
        return self._connection.namespace

    def guarded(self, guard: WriteGuard) -> KubeApi:
        """See ``ports.Guardable``. The connections are shared and stay this object's to close."""
        other = copy.copy(self)
        other._guard = guard
        return other

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- ports.KubeClient -----------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        path = _path(resource, namespace, name)
        return decoding.decode_answer(resource, await self._call("GET", path), f"GET {path}")

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """Read all objects, in pages of a few megabytes.

        Those that cannot be read are among the ``unreadable``.
        """
        query = _selectors(label_selector, field_selector)
        for left in range(LIST_TRIES - 1, -1, -1):
            try:
                return await self._pages(resource, namespace, query)
            except Gone:
                # The continue token outlived the server's history: once more from the beginning, never in one
                # piece, as that may be all the memory there is.
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield events after ``resource_version`` until the server ends the watch.

        An object that cannot be read ends nothing: its event says so.

        Raises:
            Gone: the resourceVersion is too old: list again.
        """
        query = {
            **_selectors(label_selector, field_selector),
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        }
        timeout = aiohttp.ClientTimeout(total=timeout_seconds + 30, sock_connect=10)
        async with self._response(
            "GET", _path(resource, namespace), query=query, timeout=timeout
        ) as response:
            if response.status >= 400:
                raise status.to_error(response.status, await response.read(), response.headers)
            async with contextlib.aclosing(decoding.lines(response)) as lines:
                async for line in lines:
                    event = decoding.decode_event(resource, line)
                    if event is not None:
                        yield event

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        """Send a POST."""
        path = _path(resource, namespace or str(body.get("metadata", {}).get("namespace", "")))
        data = await self._call("POST", path, body=body, query=self._query(dry_run))
        return decoding.decode_answer(resource, data, f"POST {path}")

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        """Send a PUT."""
        metadata = body["metadata"]
        path = _path(resource, str(metadata.get("namespace", "")), str(metadata["name"]), subresource)
        data = await self._call("PUT", path, body=body, query=self._query(dry_run))
        return decoding.decode_answer(resource, data, f"PUT {path}")

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Send a PATCH in the form of RFC 7386."""
        path = _path(resource, namespace, name, subresource)
        data = await self._call(
            "PATCH", path, body=patch, query=self._query(dry_run), content_type=MERGE_PATCH
        )
        return decoding.decode_answer(resource, data, f"PATCH {path}")

    async def apply(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> T:
        """Send a server-side apply."""
        metadata = body["metadata"]
        query = {**self._query(dry_run), "fieldManager": field_manager, "force": "true" if force else "false"}
        path = _path(resource, str(metadata.get("namespace", "")), str(metadata["name"]), subresource)
        # JSON is YAML.
        data = await self._call("PATCH", path, body=body, query=query, content_type=APPLY_PATCH)
        return decoding.decode_answer(resource, data, f"PATCH {path}")

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Send a DELETE, with preconditions where given."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._call("DELETE", _path(resource, namespace, name), body=options)

    async def evict(self, name: str, namespace: str, *, uid: str = "", resource_version: str = "") -> None:
        """Send an Eviction; a budget that keeps the pod is not asked again here."""
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": preconditions},
        }
        path = _path(PODS, namespace, name, "eviction")
        await self._once("POST", path, self._query(False), codec.encode(body), "application/json")

    async def served(self, group: str, version: str) -> frozenset[str]:
        """Return what discovery says, without subresources."""
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            body = codec.from_json(decoding.RESOURCES, await self._call("GET", path))
        except NotFound:
            return frozenset()
        except msgspec.DecodeError as e:
            raise ApiUnavailable(f"GET {path}: not a list of resources: {e}") from e
        return frozenset(r.name for r in body.resources or () if "/" not in r.name)

    # --- plumbing -------------------------------------------------------------------------------------------

    def _query(self, dry_run: bool) -> dict[str, str]:
        query = {"fieldManager": self._field_manager} if self._field_manager else {}
        if dry_run:
            query["dryRun"] = "All"
        return query

    async def _pages(self, resource: Resource[T], namespace: str, query: dict[str, str]) -> ObjectList[T]:
        items: list[T] = []
        left: list[Unreadable] = []
        path = _path(resource, namespace)
        query = dict(query)
        size = PageSize()
        while True:
            async with self._list_pages:
                body = await self._page(resource, path, query, size)
                decoded = 0
                for raw in body.items or ():
                    item, unreadable = decoding.decode_object(resource, raw)
                    if item is not None:
                        items.append(item)
                    if unreadable is not None:
                        left.append(unreadable)
                    decoded += len(raw)
                    if decoded >= BYTES_AT_A_TIME:
                        decoded = 0
                        await asyncio.sleep(0)
            if not body.metadata.continue_:
                return ObjectList(tuple(items), body.metadata.resource_version, tuple(left))
            query["continue"] = body.metadata.continue_

    async def _page(
        self, resource: Resource[Any], path: str, query: Mapping[str, str], size: PageSize
    ) -> decoding.ListBody:
        """Return a page that is as long as it may be; a single object that is longer is left out."""
        while True:
            data, longest = bytearray(), size.longest
            if await self._call_into(data, path, {**query, "limit": str(size.items)}, longest):
                try:
                    body = codec.from_json(decoding.LISTS, data)
                except msgspec.DecodeError as e:
                    raise ApiUnavailable(f"GET {path}: not a list: {e}") from e
                size.fits(len(body.items or ()), len(data))
                return body
            if size.items > 1:
                size.exceeds()
                continue
            found = decoding.list_without_items(data)
            if found is None:
                raise ApiUnavailable(f"GET {path}: an object of more than {LARGEST_OBJECT} bytes")
            log.error("object left out: it is too long", resource=repr(resource), most=LARGEST_OBJECT)
            return found

    async def _call_into(self, data: bytearray, path: str, query: Mapping[str, str], longest: int) -> bool:
        """Read an answer into ``data``; return False, with its beginning there, where it is too long."""
        async for attempt in _busy_tries():
            with attempt:
                async with self._calls, self._response("GET", path, query=query, timeout=_CALL) as response:
                    if response.status >= 400:
                        raise status.to_error(response.status, await response.read(), response.headers)
                    async for chunk in response.content.iter_any():
                        data += chunk
                        if len(data) > longest:
                            response.close()  # the rest is not read
                            return False
                    return True
        raise AssertionError("tenacity gives a result or raises")

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        data = codec.encode(body) if body is not None else None
        async for attempt in _busy_tries():
            with attempt:
                return await self._once(method, path, query or {}, data, content_type)
        raise AssertionError("tenacity gives a result or raises")

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], data: bytes | None, content_type: str
    ) -> bytes:
        async with (
            self._calls,
            self._response(
                method, path, query=query, data=data, content_type=content_type, timeout=_CALL
            ) as response,
        ):
            answer = await response.read()
            if response.status >= 400:
                raise status.to_error(response.status, answer, response.headers)
            return answer

    @contextlib.asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
        content_type: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make one exchange, after a 401 once more with a fresh credential.

        Raises:
            ApiUnavailable: there is no answer.
        """
        try:
            for refresh in (False, True):
                headers = {"Content-Type": content_type} if data is not None else {}
                authorization = await self._connection.authorization(refresh=refresh)
                if authorization:
                    headers["Authorization"] = authorization
                body: bytes | GuardedBody | None = data
                sending: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
                if data is not None and self._guard is not None:
                    body = GuardedBody(data, self._guard)
                    timeout, sending = body.timeout(timeout), body.sending()
                with sending:
                    async with self._session.request(
                        method,
                        self._connection.host + path,
                        params=query,
                        data=body,
                        headers=headers,
                        timeout=timeout,
                        proxy=self._connection.proxy,
                        server_hostname=self._connection.server_name,
                        allow_redirects=False,
                    ) as response:
                        if response.status == 401 and not refresh and authorization:
                            continue
                        yield response
                        return
        except TimeoutError as e:
            raise ApiUnavailable(f"{method} {self.host}{path}: no answer in {timeout.total:g} s") from e
        except (aiohttp.ClientError, OSError, ConfigurationError) as e:
            raise ApiUnavailable(f"{method} {self.host}{path}: {e}") from e


def _busy_tries() -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_is_too_many_requests),
        wait=_wait_as_asked,
        stop=tenacity.stop_after_attempt(BUSY_TRIES),
        reraise=True,
    )


def _is_too_many_requests(error: BaseException) -> bool:
    return isinstance(error, ServerBusy) and error.code == 429


def _wait_as_asked(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ApiError) else None
    spread: float = tenacity.wait_random_exponential(multiplier=0.2, max=LONGEST_RETRY_AFTER)(state)
    return min(asked if asked is not None else 0.5, LONGEST_RETRY_AFTER) + spread


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {k: v for k, v in given.items() if v}


def _path(resource: Resource[Any], namespace: str = "", name: str = "", subresource: str = "") -> str:
    for what, part in (("namespace", namespace), ("name", name)):
        # These come from claims and pods: a slash or a question mark would address something else.
        if part and (part in (".", "..") or any(c in "/?#%\\" or c <= " " or c > "~" for c in part)):
            raise InvalidInput(f"{part!r} cannot be the {what} of a {resource.kind}")
    return resource.path(namespace, name, subresource)
