"""Lists: selectors, versions, pages, and their JSON put together from the JSON of the objects."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dra_driver.sim.apiserver.http.requests import Route
from dra_driver.sim.apiserver.objects import versions
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Cause, Causes, Raw, StatusError
from dra_driver.sim.apiserver.storage.selectors import Selector, field_selector, label_selector
from dra_driver.sim.apiserver.storage.store import Key, Stored
from dra_driver.sim.apiserver.writing.registry import Registry

__all__ = ["Page", "check_version", "encode_list", "list_page", "object_bytes", "object_raw", "selector"]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: Sequence[Stored]
    metadata: Raw


def selector(kind: Kind, query: Mapping[str, str]) -> Selector | None:
    """Return the label and field selectors of a request, combined; None if it has none."""
    label = label_selector(query.get("labelSelector", ""))
    fields = field_selector(query.get("fieldSelector", ""), kind)
    if label is None:
        return fields
    if fields is None:
        return label
    return lambda raw: label(raw) and fields(raw)


def check_version(registry: Registry, text: str) -> int | None:
    """Return a ``resourceVersion`` parameter as a number; None if any version will do.

    Raises:
        StatusError: 400 for text that is no number, 504 for versions of the future.
    """
    if text in ("", "0"):
        return None
    if not text.isdigit():
        raise StatusError.bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": '
            f'strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    version = int(text)
    if version > registry.store.version:
        raise StatusError(
            504,
            "Timeout",
            f"Timeout: Too large resource version: {version}, current: {registry.store.version}",
            causes=[Cause("ResourceVersionTooLarge", "Too large resource version")],
            retry_after=1,
        )
    return version


def _check_match(query: Mapping[str, str]) -> str:
    match = query.get("resourceVersionMatch", "")
    causes = Causes()
    if "sendInitialEvents" in query:
        causes.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
        raise StatusError.invalid("ListOptions", "meta.k8s.io", "", causes)
    if not match:
        return ""
    version = query.get("resourceVersion", "")
    if not version:
        causes.forbidden(
            "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if query.get("continue"):
        causes.forbidden(
            "resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"
        )
    if match not in ("Exact", "NotOlderThan"):
        causes.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", ""))
    elif match == "Exact" and version == "0":
        causes.forbidden(
            "resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        )
    if causes:
        raise StatusError.invalid("ListOptions", "meta.k8s.io", "", causes)
    return match


def _limit(query: Mapping[str, str]) -> int:
    number = 0
    for name in ("timeoutSeconds", "limit"):
        text = query.get(name, "")
        try:
            number = int(text or 0)
        except ValueError:
            raise StatusError.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    return number


def _token(version: int, last: Key) -> str:
    return (
        base64.urlsafe_b64encode(msgspec.json.encode([version, last.namespace, last.name]))
        .decode()
        .rstrip("=")
    )


def _start(token: str) -> tuple[int, Key]:
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        version, namespace, name = msgspec.json.decode(data, type=tuple[int, str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise StatusError.bad_request("invalid continue token: continue key is not valid") from None
    return version, Key(namespace, name)


def list_page(registry: Registry, route: Route, query: Mapping[str, str]) -> Page:
    """Return the page that a list request is for.

    Raises:
        StatusError: 400, 410 (version or token too old), 422, 504.
    """
    wanted = selector(route.kind, query)
    match = _check_match(query)
    limit = _limit(query)
    collection = registry.collection(route.kind)
    version = registry.store.version
    start: Key | None = None
    if query.get("continue"):
        version, start = _start(query["continue"])
        found = collection.list_at(version, route.namespace)
        if found is None:
            raise StatusError.expired(
                "The provided continue parameter is too old to display a consistent list result."
            )
    else:
        given = check_version(registry, query.get("resourceVersion", ""))
        if match == "Exact" and given is not None:
            version = given
        exact = collection.list_at(version, route.namespace)
        if exact is None:
            raise StatusError.expired("The resourceVersion for the provided list is too old.")
        found = exact
    if wanted is not None:
        found = [s for s in found if wanted(s.raw)]
    if start is not None:
        found = [s for s in found if s.key > start]
    metadata: Raw = {"resourceVersion": str(version)}
    if 0 < limit < len(found):
        metadata["continue"] = _token(version, found[limit - 1].key)
        if wanted is None:
            metadata["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    return Page(found, metadata)


def object_bytes(kind: Kind, stored: Stored) -> bytes:
    """Return the JSON of an object in the requested version."""
    if kind.api_version == kind.storage_version:
        return stored.encoded
    if versions.converts(kind.api_version):
        return msgspec.json.encode(object_raw(kind, stored.raw))
    return kind.prefix + stored.encoded[len(_stored_prefix(kind)) :]


def object_raw(kind: Kind, raw: Raw) -> Raw:
    """Return an object as data in the requested version."""
    if raw.get("apiVersion") == kind.api_version:
        return raw
    return versions.from_storage(kind.api_version, kind.kind, raw)


def _stored_prefix(kind: Kind) -> bytes:
    return b'{"kind":"%s","apiVersion":"%s",' % (kind.kind.encode(), kind.storage_version.encode())


def encode_list(kind: Kind, page: Page) -> bytes:
    """Encode the list as JSON. Items of built-in kinds carry no kind and apiVersion, custom ones do."""
    if kind.custom:
        items = b",".join(object_bytes(kind, s) for s in page.items)
    elif versions.converts(kind.api_version):
        skip = len(kind.prefix)
        items = b",".join(b"{" + object_bytes(kind, s)[skip:] for s in page.items)
    else:
        skip = len(_stored_prefix(kind))
        items = b",".join(b"{" + s.encoded[skip:] for s in page.items)
    head = msgspec.json.encode(
        {"kind": kind.list_name, "apiVersion": kind.api_version, "metadata": page.metadata}
    )
    return head[:-1] + b',"items":[' + items + b"]}"
