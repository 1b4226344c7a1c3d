"""The handlers of HTTP requests: which verb is called, and in which form it answers."""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import structlog
from aiohttp import web
from aiohttp.client_exceptions import ClientConnectionResetError

from dra_driver.sim.apiserver.http import discovery, identity, listing, tables
from dra_driver.sim.apiserver.http.injection import Injector, OpenWatch, cut
from dra_driver.sim.apiserver.http.requests import (
    Accept,
    Route,
    accept,
    decode_body,
    delete_options,
    find_duplicates,
    is_watch,
    resource_of,
    route,
    verb_of,
    write_options,
)
from dra_driver.sim.apiserver.http.responses import (
    JSON,
    bytes_response,
    formed,
    json_response,
    no_page,
    partial,
    unsupported,
    warning,
)
from dra_driver.sim.apiserver.http.watching import Watch
from dra_driver.sim.apiserver.objects.protobuf import decode_protobuf
from dra_driver.sim.apiserver.objects.status import Raw, StatusError
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.apiserver.writing import pods
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.apiserver.writing.registry import DeleteOptions, Registry
from dra_driver.sim.apiserver.writing.reviews import Reviews, Unanswered
from dra_driver.sim.apiserver.writing.webhooks import Services, Webhooks

__all__ = ["Handlers"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PROTOBUF = "application/vnd.kubernetes.protobuf"
_BODY_TYPES = ("", "application/json", "application/yaml", "*/*")
_PATCHES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
# How often webhooks are called again for a write whose object others keep changing in the meantime.
_MOST_REVIEWS = 20
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Handlers:
    """Answers every request.

    Attributes:
        stopping: whether watches have to end.
        injector: the faults that are in force; None if there are none.
        watches: the open watches.
        webhooks: the admission webhooks.

    Args:
        registry: the verbs.
        token: bearer token that requests must carry; if None, none is needed.
        services: Service → address at which the webhook behind it listens.
    """

    def __init__(self, registry: Registry, token: str | None, services: Services) -> None:
        self.registry = registry
        self.stopping = False
        self.injector: Injector | None = None
        self.watches: set[OpenWatch] = set()
        # Namespace, name and container of a pod (an empty container is the only one) → what it printed.
        self.pod_log: Callable[[str, str, str], str] = lambda _namespace, _name, _container: ""
        self.webhooks = Webhooks(registry.store, registry.kinds, services)
        self._token = token
        self._tokens = identity.Tokens(registry.store, token or "")

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            return await self._limited(request)
        except StatusError as e:
            return json_response(e.code, e.raw(), e.headers)
        except RecursionError:
            # Types of 1.37 refer to themselves, so a body can be as deep as its author likes.
            return json_response(400, StatusError.bad_request("the object is nested too deeply").raw())
        except Exception as e:
            # A bug of ours must look like an answer, or clients wait and tests hang. The log says where.
            if isinstance(e, web.HTTPException | ConnectionError):
                raise
            log.exception("request failed", method=request.method, path=request.path)
            return json_response(
                500, StatusError(500, "InternalError", f"Internal error occurred: {e!r}").raw()
            )

    async def _limited(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except web.HTTPRequestEntityTooLarge:
            error = StatusError(
                413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728", bare=True
            )
            return json_response(413, error.raw())

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        self._authenticate(request)
        if path.startswith(("/api/", "/apis/")):
            parts = path.strip("/").split("/")
            if len(parts) > (2 if parts[0] == "api" else 3):
                return await self._resource(request)
        lost = self.injector is not None and await self.injector.enter(request, "get", "")
        answer = self._document(request)
        if lost:
            cut(request)
        return answer

    def _authenticate(self, request: web.BaseRequest) -> None:
        given = _bearer(request)
        if self._token is None or given in self._tokens:
            return
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise StatusError(401, "Unauthorized", "Unauthorized", bare=True)

    # --- discovery ---

    def _document(self, request: web.BaseRequest) -> web.Response:
        path = request.path.rstrip("/")
        kinds, release = self.registry.kinds, self.registry.served.release
        parts = path.strip("/").split("/")
        if path in ("/api", "/apis"):
            if "APIGroupDiscoveryList" in request.headers.get("Accept", ""):
                body = msgspec.json.encode(discovery.aggregated(kinds, core=path == "/api"))
                return web.Response(body=body, headers={"Content-Type": _AGGREGATED, "Vary": "Accept"})
            if path == "/apis":
                return json_response(200, discovery.group_list(kinds))
            return json_response(
                200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            )
        if path == "/version":
            return json_response(200, discovery.version(release))
        if path == "/openapi/v3":
            return json_response(200, discovery.openapi_index(kinds))
        if parts[:2] == ["openapi", "v3"]:
            group, version = (
                (parts[3], parts[4]) if parts[2] == "apis" and len(parts) > 4 else ("", parts[-1])
            )
            return json_response(200, discovery.openapi_document(kinds, release, group, version))
        if parts[0] == "api" and len(parts) == 2:
            return self._group_version("", parts[1])
        if parts[0] == "apis" and len(parts) in (2, 3) and parts[1] in discovery.groups(kinds):
            if len(parts) == 3:
                return self._group_version(parts[1], parts[2])
            return json_response(
                200, {"kind": "APIGroup", "apiVersion": "v1", **discovery.group_document(kinds, parts[1])}
            )
        return no_page()

    def _group_version(self, group: str, version: str) -> web.Response:
        if version not in discovery.groups(self.registry.kinds).get(group, []):
            raise StatusError.no_resource()
        return json_response(200, discovery.resource_list(self.registry.kinds, group, version))

    # --- resources ---

    async def _resource(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith("/apis/authorization.k8s.io/"):
            return await self._review(request)
        found = route(self.registry.kinds, request.path)
        if found is None:
            return no_page()
        form = accept(request.headers.get("Accept", ""))
        if self.injector is None:
            return await self._verb(request, found, form)
        lost = await self.injector.enter(request, verb_of(request, found), resource_of(found))
        answer = await self._verb(request, found, form)
        if lost:
            cut(request)
        return answer

    async def _verb(self, request: web.BaseRequest, found: Route, form: Accept) -> web.StreamResponse:
        headers = {"Warning": warning(found.kind.deprecation)} if found.kind.deprecation else {}
        try:
            if found.subresource and found.subresource != "status":
                return await self._subresource(request, found)
            match request.method:
                case "GET":
                    return await self._get(request, found, form, headers)
                case "POST" if not found.name and bool(found.namespace) == found.kind.namespaced:
                    return await self._create(request, found, form, headers)
                case "PUT" if found.name:
                    return await self._update(request, found, form, headers)
                case "PATCH" if found.name:
                    return await self._patch(request, found, form, headers)
                case "DELETE" if found.name and not found.subresource:
                    return await self._delete(request, found, form, headers)
                case "DELETE" if (
                    not found.name
                    and bool(found.namespace) == found.kind.namespaced
                    and "deletecollection" in found.kind.verbs
                ):
                    return await self._delete_all(request, found, form, headers)
        except StatusError as e:
            e.headers = {**headers, **e.headers}
            raise
        raise StatusError.method_not_allowed()

    async def _get(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.StreamResponse:
        query = request.query
        if is_watch(request, found):
            return await self._watch(request, found, form, headers)
        if found.name:
            version = query.get("resourceVersion", "")
            if version and not version.isdigit():
                raise StatusError.internal(f'resourceVersion: Invalid value: "{version}": invalid syntax')
            listing.check_version(self.registry, version)
            stored = self.registry.get(found.kind, found.namespace, found.name)
            if form == _PLAIN and "pretty" not in query:
                return bytes_response(200, listing.object_bytes(found.kind, stored), headers)
            return self._object(200, found, stored.raw, form, query, headers)
        page = listing.list_page(self.registry, found, query)
        if not form.transform:
            return formed(200, listing.encode_list(found.kind, page), form, headers)
        objects = [listing.object_raw(found.kind, s.raw) for s in page.items]
        include = query.get("includeObject", "Metadata")
        if form.transform == "Table":
            now = self.registry.clock()
            made = tables.table(found.kind, objects, page.metadata, include, now)
        else:
            made = {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": page.metadata,
                "items": [partial(raw) for raw in objects],
            }
        return formed(200, msgspec.json.encode(made), form, headers)

    async def _watch(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.StreamResponse:
        watch = Watch(self.registry, found, request.query, form)
        response = web.StreamResponse(headers={"Content-Type": JSON, **headers})
        opened = OpenWatch(found.kind.plural, request.headers.get("User-Agent", ""), request)
        try:
            await response.prepare(request)
            self.watches.add(opened)
            async for chunk in watch.lines(lambda: self.stopping):
                if self.injector is not None:
                    await self.injector.passes(opened)
                await response.write(chunk)
            await response.write_eof()
        except (ClientConnectionResetError, ConnectionResetError):
            pass  # the client has gone
        finally:
            self.watches.discard(opened)
        return response

    async def _create(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.Response:
        body, options = await self._write(request, found, "CreateOptions")
        raw = await self._reviewed(
            found, options, lambda: self.registry.create(found.kind, found.namespace, body, options)
        )
        return self._object(201, found, raw, form, request.query, headers, options)

    async def _update(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.Response:
        body, options = await self._write(request, found, "UpdateOptions")
        raw, new = await self._reviewed(
            found,
            options,
            lambda: self.registry.update(
                found.kind, found.namespace, found.name, body, options, found.subresource
            ),
        )
        return self._object(201 if new else 200, found, raw, form, request.query, headers, options)

    async def _reviewed(self, found: Route, options: Options | DeleteOptions, write: Callable[[], T]) -> T:
        """Do a write; its admission webhooks are called before anything is stored."""
        try:
            return await self._asking(found, options, write)
        except StatusError as e:
            if isinstance(options, Options) and options.warnings:
                e.headers["Warning"] = ", ".join(map(warning, options.warnings))
            raise

    async def _asking(self, found: Route, options: Options | DeleteOptions, write: Callable[[], T]) -> T:
        if not self.webhooks.wanted(found.kind):
            return write()
        reviews = options.reviews = Reviews()
        for _ in range(_MOST_REVIEWS):
            warnings = list(options.warnings) if isinstance(options, Options) else []
            try:
                result = write()
            except Unanswered as question:
                if isinstance(options, Options):
                    options.warnings = warnings
                await self.webhooks.ask(question, found.kind, reviews)
            else:
                if isinstance(options, Options):
                    options.warnings += reviews.warnings
                return result
        raise StatusError.conflict(found.kind.plural, found.kind.group, found.name, "it changes too often")

    async def _write(self, request: web.BaseRequest, found: Route, kind: str) -> tuple[Any, Options]:
        content_type = _content_type(request)
        protobuf = content_type == _PROTOBUF and not found.kind.custom and not found.subresource
        if content_type not in _BODY_TYPES and not protobuf:
            raise unsupported("application/json, application/yaml, application/vnd.kubernetes.protobuf")
        options = write_options(request.query, request.headers.get("User-Agent", ""), kind)
        options.user = self._tokens.user(_bearer(request))
        data = await request.read()
        if protobuf:
            return decode_protobuf(data, found.kind.type), options
        body = decode_body(data, content_type, found.kind.kind)
        options.duplicates = find_duplicates(data, body)
        return body, options

    async def _patch(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.Response:
        content_type = _content_type(request)
        patch_form = _PATCHES.get(content_type)
        if patch_form is None or (patch_form == "strategic" and found.kind.custom):
            raise unsupported(", ".join(t for t in _PATCHES if not (found.kind.custom and "strategic" in t)))
        agent = request.headers.get("User-Agent", "")
        options = write_options(request.query, agent, "PatchOptions", applying=patch_form == "apply")
        options.user = self._tokens.user(_bearer(request))
        data = await request.read()
        patch = decode_body(data, content_type, found.kind.kind)
        if patch_form in ("merge", "strategic"):
            options.duplicates = find_duplicates(data, patch)
        raw, new = await self._reviewed(
            found,
            options,
            lambda: self.registry.patch(
                found.kind, found.namespace, found.name, patch_form, patch, options, found.subresource
            ),
        )
        return self._object(201 if new else 200, found, raw, form, request.query, headers, options)

    async def _delete(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.Response:
        options = delete_options(request.query, await _optional_body(request))
        options.user = self._tokens.user(_bearer(request))
        raw = await self._reviewed(
            found, options, lambda: self.registry.delete(found.kind, found.namespace, found.name, options)
        )
        if raw["kind"] == "Status":
            return json_response(200, raw, headers)
        return self._object(200, found, raw, form, request.query, headers)

    async def _delete_all(
        self, request: web.BaseRequest, found: Route, form: Accept, headers: dict[str, str]
    ) -> web.Response:
        options = delete_options(request.query, await _optional_body(request))
        options.user = self._tokens.user(_bearer(request))
        page = listing.list_page(self.registry, found, request.query)
        for stored in page.items:
            delete = functools.partial(
                self.registry.delete, found.kind, stored.key.namespace, stored.key.name, options
            )
            try:
                await self._reviewed(found, options, delete)
            except StatusError as e:
                if e.code != 404:
                    raise
        return formed(200, listing.encode_list(found.kind, page), form, headers)

    def _object(
        self,
        code: int,
        found: Route,
        raw: Raw,
        form: Accept,
        query: Mapping[str, str],
        headers: dict[str, str],
        options: Options | None = None,
    ) -> web.Response:
        if options is not None and options.warnings:
            headers = {
                "Warning": ", ".join(
                    [*filter(None, [headers.get("Warning")]), *map(warning, options.warnings)]
                )
            }
        kind = found.kind
        if not form.transform and options is not None and not options.dry_run:
            stored = self.registry.collection(kind).get(Key(found.namespace, raw["metadata"].get("name", "")))
            if stored is not None and stored.raw is raw:
                return formed(code, listing.object_bytes(kind, stored), form, headers)
        shown = listing.object_raw(kind, raw)
        if form.transform == "Table":
            include = query.get("includeObject", "Metadata")
            metadata = {"resourceVersion": raw["metadata"].get("resourceVersion", "")}
            shown = tables.table(kind, [shown], metadata, include, self.registry.clock())
        elif form.transform:
            shown = partial(shown)
        body = msgspec.json.encode(shown)
        if query.get("pretty", "").lower() in ("true", "1"):
            body = msgspec.json.format(body, indent=2)
        return formed(code, body, form, headers)

    # --- subresources and reviews that are not stored ---

    async def _subresource(self, request: web.BaseRequest, found: Route) -> web.Response:
        kind, method = found.kind, request.method
        match (kind.plural, found.subresource, method):
            case ("pods", "binding", "POST"):
                body, options = await self._write(request, found, "CreateOptions")
                return json_response(
                    201, pods.bind(self.registry, kind, found.namespace, found.name, body, options)
                )
            case ("pods", "eviction", "POST"):
                body, _ = await self._write(request, found, "CreateOptions")
                return json_response(201, pods.evict(self.registry, kind, found.namespace, found.name, body))
            case ("pods", "log", "GET"):
                self.registry.get(kind, found.namespace, found.name)
                text = self.pod_log(found.namespace, found.name, request.query.get("container", ""))
                return web.Response(text=text)
            case ("namespaces", "finalize", "PUT"):
                body, options = await self._write(request, found, "UpdateOptions")
                raw, _ = self.registry.update(kind, "", found.name, body, options)
                return json_response(200, raw)
            case ("serviceaccounts", "token", "POST"):
                return await self._token_request(request, found)
            case _:
                pass
        raise StatusError.method_not_allowed()

    def token_of(self, namespace: str, account: str) -> str:
        """Return a new token of a service account."""
        return self._tokens.issue({}, namespace, account)

    async def _token_request(self, request: web.BaseRequest, found: Route) -> web.Response:
        """Answer a ``TokenRequest`` with a token that this server knows as the account's."""
        content_type = _content_type(request)
        body = decode_body(await request.read(), JSON, "TokenRequest") if content_type == JSON else {}
        self.registry.get(found.kind, found.namespace, found.name)
        token = self._tokens.issue(body, found.namespace, found.name)
        made = identity.token_request(body, found.namespace, found.name, token, self.registry.now())
        return json_response(201, made)

    async def _review(self, request: web.BaseRequest) -> web.Response:
        """Answer a ``SelfSubjectAccessReview``: every authenticated client may do everything."""
        if request.path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            raise StatusError.no_resource()
        if request.method != "POST":
            raise StatusError.method_not_allowed()
        body: Any = {}
        if _content_type(request) in ("", JSON):
            body = decode_body(await request.read(), JSON, "SelfSubjectAccessReview")
        return json_response(201, identity.access_review(body))


_PLAIN = Accept("json", "")


def _bearer(request: web.BaseRequest) -> str:
    """Return the bearer token of a request; empty if it has none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _content_type(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def _optional_body(request: web.BaseRequest) -> Any:
    data = await request.read()
    return decode_body(data, _content_type(request), "DeleteOptions") if data.strip() else None
