"""Parts of a request: the resource that its path names, what it accepts, its options and its body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from aiohttp import web

from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.status import Causes, StatusError
from dra_driver.sim.apiserver.writing.deletion import DeleteOptions
from dra_driver.sim.apiserver.writing.options import Options

__all__ = [
    "Accept",
    "Route",
    "accept",
    "decode_body",
    "delete_options",
    "find_duplicates",
    "is_watch",
    "resource_of",
    "route",
    "verb_of",
    "write_options",
]


@dataclass(frozen=True, slots=True)
class Route:
    """What a path names.

    Attributes:
        kind: the resource.
        namespace: empty for cluster-scoped kinds and for collections over all namespaces.
        name: empty for collections.
        subresource: for example ``status``.
    """

    kind: Kind
    namespace: str
    name: str
    subresource: str


def route(kinds: Kinds, path: str) -> Route | None:
    """Return the resource of a path below ``/api`` or ``/apis``; None if no such group is served.

    Raises:
        StatusError: 404 for resources that the group does not have.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[1:]
    else:
        group, rest = parts[1], parts[2:]
        if not kinds.has_group(group):
            return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        raise StatusError.no_resource()
    kind = kinds.get(group, version, rest[0])
    if kind is None or (namespace and not kind.namespaced) or "" in rest:
        raise StatusError.no_resource()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and kind.namespaced and not namespace:
        raise StatusError.no_resource()
    known = ("status",) if kind.status else ()
    if subresource and subresource not in (*known, *(s[0] for s in kind.subresources)):
        raise StatusError.no_resource()
    return Route(kind, namespace, name, subresource)


def is_watch(request: web.BaseRequest, found: Route) -> bool:
    """Return whether a GET request is a watch."""
    return request.query.get("watch", "").lower() in ("true", "1") and not found.subresource


def resource_of(found: Route) -> str:
    """Return the resource in the words of RBAC, for example ``pods`` or ``pods/status``."""
    return f"{found.kind.plural}/{found.subresource}" if found.subresource else found.kind.plural


def verb_of(request: web.BaseRequest, found: Route) -> str:
    """Return the verb of the request in the words of RBAC, or ``apply``."""
    match request.method:
        case "GET" if is_watch(request, found):
            return "watch"
        case "GET":
            return "get" if found.name else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "apply" if "apply" in request.headers.get("Content-Type", "") else "patch"
        case _:
            return "delete" if found.name else "deletecollection"


@dataclass(frozen=True, slots=True)
class Accept:
    """The form of the answer.

    Attributes:
        form: ``json`` or ``yaml``.
        transform: empty, ``Table`` or ``PartialObjectMetadata``.
    """

    form: str
    transform: str


_PLAIN = Accept("json", "")


def accept(header: str) -> Accept:
    """Return the first form in the ``Accept`` header that the server supports.

    Raises:
        StatusError: 406.
    """
    if not header or header == "application/json":
        return _PLAIN
    for entry in header.split(","):
        media, *parameters = (p.strip() for p in entry.split(";"))
        values = dict(p.split("=", 1) for p in parameters if "=" in p)
        transform = values.get("as", "")
        if transform and (values.get("g") != "meta.k8s.io" or values.get("v") != "v1"):
            continue
        if transform not in ("", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"):
            continue
        if media in ("application/json", "*/*", "application/*"):
            return Accept("json", transform.removesuffix("List"))
        if media == "application/yaml":
            return Accept("yaml", transform.removesuffix("List"))
    raise StatusError(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml",
    )


# --- options ---


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def write_options(query: Mapping[str, str], agent: str, kind: str, *, applying: bool = False) -> Options:
    """Return ``dryRun``, ``fieldManager``, ``fieldValidation`` and ``force`` of a write.

    Args:
        query: parameters of the request.
        agent: ``User-Agent``; its first word is the field manager if the query names none.
        kind: kind that errors name: ``CreateOptions``, ``UpdateOptions`` or ``PatchOptions``.
        applying: whether it is server-side apply, which needs a manager and may force.

    Raises:
        StatusError: 422.
    """
    options = Options(manager=agent.partition("/")[0] or "unknown")
    if not query:
        if applying:
            _refuse_options(kind, _missing_manager())
        return options
    causes = Causes()
    dry = query.get("dryRun")
    if dry is not None and dry != "All":
        causes.not_supported("dryRun", [dry], ("All",))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > 128:
        causes.too_long("fieldManager", 128)
    elif not manager.isprintable():
        causes.invalid("fieldManager", manager, "should only contain printable characters")
    level = query.get("fieldValidation", "") or "Warn"
    if level not in ("Ignore", "Warn", "Strict"):
        causes.not_supported("fieldValidation", level, ("", "Ignore", "Warn", "Strict"))
    if applying and not manager:
        causes += _missing_manager()
    if kind == "PatchOptions" and not applying and "force" in query:
        causes.forbidden("force", "may not be specified for non-apply patch")
    _refuse_options(kind, causes)
    options.dry_run = dry == "All"
    options.manager = manager or options.manager
    options.validation = level
    options.force = _flag(query, "force")
    return options


def _missing_manager() -> Causes:
    causes = Causes()
    causes.required("fieldManager", "is required for apply patch")
    return causes


def _refuse_options(kind: str, causes: Causes) -> None:
    if causes:
        raise StatusError.invalid(kind, "meta.k8s.io", "", causes)


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    """Return the ``DeleteOptions`` of the body, or of the query if there is no body.

    Raises:
        StatusError: 400 for a body that is no ``DeleteOptions``, 422 for bad values.
    """
    if body is None:
        body = {}
    else:
        query = {}  # with a body, parameters are ignored
    if not isinstance(body, dict):
        raise StatusError.bad_request("the body must be DeleteOptions")
    given = body.get("kind") or "DeleteOptions"
    if given != "DeleteOptions":
        raise StatusError.bad_request(f"the body must be DeleteOptions, not {given}")
    causes = Causes()
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise StatusError.bad_request(
            "json: cannot unmarshal into Go struct field gracePeriodSeconds of type int64"
        )
    if "gracePeriodSeconds" in query:
        try:
            grace = int(query["gracePeriodSeconds"])
        except ValueError:
            raise StatusError.bad_request(
                f"gracePeriodSeconds: {query['gracePeriodSeconds']!r} is no number"
            ) from None
    dry = body.get("dryRun") or ([query["dryRun"]] if "dryRun" in query else [])
    if any(d != "All" for d in dry):
        causes.not_supported("dryRun", dry, ("All",))
    policy = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if policy not in ("", "Background", "Foreground", "Orphan"):
        causes.not_supported("propagationPolicy", policy, ("Background", "Foreground", "Orphan", "nil"))
    if policy and ("orphanDependents" in body or "orphanDependents" in query):
        causes.invalid(
            "propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"
        )
    _refuse_options("DeleteOptions", causes)
    return DeleteOptions(
        grace=grace,
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
        dry_run=bool(dry),
        propagation=policy,
    )


# --- bodies ---


class _Loader(yaml.SafeLoader):
    """YAML without times: they stay text, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    key: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode_body(data: bytes, content_type: str, wanted: str) -> Any:
    """Decode the body of a request into plain data.

    Args:
        data: the body.
        content_type: media type without parameters; an empty one is JSON.
        wanted: the kind that the body should have, for errors.

    Raises:
        StatusError: 400.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        error = str(e)
    if "yaml" in content_type:
        try:
            # _Loader is a SafeLoader.
            return yaml.load(data, Loader=_Loader)  # noqa: S506
        except yaml.YAMLError as e:
            error = str(e)
    raise StatusError.bad_request(
        f"the object provided is unrecognized (must be of type {wanted}): couldn't get version/kind; "
        f"json parse error: {error}"
    )


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_count_keys(v) for v in value.values() if isinstance(v, dict | list))
    return sum(_count_keys(v) for v in value if isinstance(v, dict | list))


def find_duplicates(data: bytes, value: Any) -> list[str]:
    """Return the paths of keys that an object of the JSON text has twice; the decoder keeps the last one."""
    if not isinstance(value, dict) or data.count(b'":') == _count_keys(value):
        return []
    found: list[str] = []
    try:
        _walk(json.loads(data, object_pairs_hook=_Pairs), "", found)
    except ValueError:
        return []
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as pairs of key and value."""


def _walk(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen = set()
        for key, item in value:
            here = f"{path}.{key}" if path else key
            if key in seen:
                found.append(here)
            seen.add(key)
            _walk(item, here, found)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _walk(item, f"{path}[{i}]", found)
