"""An API server in memory, as far as ``ports.KubeClient`` shows it: versions, conflicts, watches, status.

No admission, no defaulting, no garbage collection: what needs those is tested on the embedded API server.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from dra_driver.api import codec
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.watch import ObjectList, WatchEvent, WatchEventType
from dra_driver.errors import ApiUnavailable, Conflict, Gone, Invalid, NotFound

T = TypeVar("T", bound=WireObject)

# Kinds whose status is written through the subresource only.
WITH_STATUS = {"deviceinventories", "resourceclaims", "nodes", "pods"}


class FakeKube:
    """Implements ``ports.KubeClient``.

    Attributes:
        down: every call raises ``ApiUnavailable`` while true; watches end.
        calls: ``(verb, plural, name)`` in order.
        before: called before each call; may raise, or change things behind the caller's back.
    """

    def __init__(self) -> None:
        self.down = False
        self.calls: list[tuple[str, str, str]] = []
        self.before: Callable[[str, str, str], None] | None = None
        self._objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self._version = 0
        self._log: list[tuple[int, str, str, dict[str, Any]]] = []

    # --- for tests ------------------------------------------------------------------------------------------

    def put(self, resource: Resource[Any], body: Mapping[str, Any]) -> dict[str, Any]:
        """Stores an object as it is, status included."""
        raw = copy.deepcopy(dict(body))
        meta = raw.setdefault("metadata", {})
        meta.setdefault("uid", str(uuid.uuid4()))
        key = (meta.get("namespace", ""), meta["name"])
        kind = WatchEventType.MODIFIED if key in self._of(resource) else WatchEventType.ADDED
        self._store(resource, key, raw, kind)
        return raw

    def raw(self, resource: Resource[Any], name: str, namespace: str = "") -> dict[str, Any] | None:
        """The stored object."""
        found = self._of(resource).get((namespace, name))
        return copy.deepcopy(found) if found is not None else None

    def drop(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Removes an object behind everybody's back; watches see it."""
        raw = self._of(resource).pop((namespace, name))
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, resource.plural, "DELETED", raw))

    def merge_status(self, resource: Resource[Any], name: str, status: Mapping[str, Any]) -> None:
        """Merges into the status, as another writer would."""
        raw = self.raw(resource, name)
        assert raw is not None
        raw["status"] = _merge(raw.get("status", {}), status)
        self._store(resource, ("", name), raw, WatchEventType.MODIFIED)

    # --- ports.KubeClient -----------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        await self._enter("get", resource, name)
        return codec.convert(resource.type, self._need(resource, name, namespace))

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        await self._enter("list", resource, "")
        items = tuple(
            codec.convert(resource.type, raw)
            for (ns, _), raw in sorted(self._of(resource).items())
            if (not namespace or ns == namespace) and _selected(raw, field_selector)
        )
        return ObjectList(items, str(self._version))

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        await self._enter("watch", resource, "")
        position = int(resource_version)
        if position > self._version:
            raise Gone("from the future", code=410)
        while True:
            for version, plural, kind, raw in tuple(self._log):
                if version <= position or plural != resource.plural or not _selected(raw, field_selector):
                    continue
                if namespace and raw["metadata"].get("namespace", "") != namespace:
                    continue
                yield WatchEvent(WatchEventType(kind), codec.convert(resource.type, raw))
                position = version
            if self.down:
                raise ApiUnavailable("the fake is down")
            await asyncio.sleep(0.005)

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        await self._enter("create", resource, body["metadata"].get("name", ""))
        raw = copy.deepcopy(dict(body))
        meta = raw["metadata"]
        if not meta.get("name"):
            meta["name"] = meta.pop("generateName") + uuid.uuid4().hex[:5]
        key = (namespace or meta.get("namespace", ""), meta["name"])
        if key in self._of(resource):
            raise Conflict(f"{resource.plural} {key[1]} exists", code=409, reason="AlreadyExists")
        if meta.get("resourceVersion"):
            raise Invalid("resourceVersion should not be set on objects to be created", code=400)
        if resource.plural in WITH_STATUS:
            raw.pop("status", None)
        meta["uid"] = str(uuid.uuid4())
        if not dry_run:
            self._store(resource, key, raw, WatchEventType.ADDED)
        return codec.convert(resource.type, raw)

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        meta = body["metadata"]
        await self._enter("replace", resource, meta["name"])
        return self._update(
            resource, meta["name"], meta.get("namespace", ""), dict(body), subresource, dry_run
        )

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
        await self._enter("patch", resource, name)
        old = self._need(resource, name, namespace)
        version = patch.get("metadata", {}).get("resourceVersion", "")
        if version and version != old["metadata"]["resourceVersion"]:
            raise Conflict(f"{name} is at {old['metadata']['resourceVersion']}, not {version}", code=409)
        return self._update(resource, name, namespace, _merge(old, patch), subresource, dry_run)

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
        raise NotImplementedError

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
        await self._enter("delete", resource, name)
        old = self._need(resource, name, namespace)
        if uid and old["metadata"]["uid"] != uid:
            raise Conflict("other UID", code=409)
        if resource_version and old["metadata"]["resourceVersion"] != resource_version:
            raise Conflict("other version", code=409)
        self.drop(resource, name, namespace)

    # --- inside ---------------------------------------------------------------------------------------------

    async def served(self, group: str, version: str) -> frozenset[str]:
        return frozenset()

    async def _enter(self, verb: str, resource: Resource[Any], name: str) -> None:
        await asyncio.sleep(0)
        self.calls.append((verb, resource.plural, name))
        if self.down:
            raise ApiUnavailable("the fake is down")
        if self.before is not None:
            self.before(verb, resource.plural, name)

    def _of(self, resource: Resource[Any]) -> dict[tuple[str, str], dict[str, Any]]:
        return self._objects.setdefault(resource.plural, {})

    def _need(self, resource: Resource[Any], name: str, namespace: str) -> dict[str, Any]:
        found = self._of(resource).get((namespace, name))
        if found is None:
            raise NotFound(f'{resource.plural} "{name}" not found', code=404, reason="NotFound")
        return found

    def _update(
        self,
        resource: Resource[T],
        name: str,
        namespace: str,
        new: dict[str, Any],
        subresource: str,
        dry_run: bool,
    ) -> T:
        old = self._need(resource, name, namespace)
        version = new["metadata"].get("resourceVersion", "")
        if version and version != old["metadata"]["resourceVersion"]:
            raise Conflict(f"{name} is at {old['metadata']['resourceVersion']}, not {version}", code=409)
        raw = copy.deepcopy(new)
        if subresource == "status":
            raw = {**copy.deepcopy(old), "status": raw.get("status", {})}
        elif resource.plural in WITH_STATUS:
            raw["status"] = copy.deepcopy(old.get("status", {}))
        for field in ("uid", "resourceVersion"):
            raw["metadata"][field] = old["metadata"][field]
        if raw != old and not dry_run:
            self._store(resource, (namespace, name), raw, WatchEventType.MODIFIED)
        return codec.convert(resource.type, raw)

    def _store(
        self, resource: Resource[Any], key: tuple[str, str], raw: dict[str, Any], kind: WatchEventType
    ) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self._of(resource)[key] = raw
        self._log.append((self._version, resource.plural, kind.value, copy.deepcopy(raw)))


def _merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(copy.deepcopy(old)) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def _selected(raw: Mapping[str, Any], field_selector: str) -> bool:
    for term in filter(None, field_selector.split(",")):
        path, _, wanted = term.partition("=")
        value: Any = raw
        for part in path.split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        if value != wanted:
            return False
    return True
