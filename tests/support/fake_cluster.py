"""An API server in memory behind ``ports.KubeClient``: versions, conflicts, merge patches, watches, faults.

No admission, no defaulting but what the controller depends on (times of taints), no garbage collection.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.api import codec
from dra_driver.api.meta import Resource
from dra_driver.api.watch import ObjectList, WatchEvent, WatchEventType
from dra_driver.errors import ApiUnavailable, Conflict, Gone, Invalid, NotFound

STATUS_KINDS = {"ResourceClaim", "Pod", "Node", "DeviceInventory", "DevicePolicy"}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class FakeCluster:
    """Implements ``KubeClient``.

    Attributes:
        writes: every write that was applied: ``(verb, kind, name, subresource)``.
        before: called before each call with ``(verb, kind, name, subresource)``; may raise or change things.
        after: called when a write is applied and before its answer; raising there means: done, but no answer.
        drop: changes an object on its way into the store, as an API server with a feature gate off does.
        time_added: of taints of slices that come without.
        kinds_served: (group, version) → plural names, as discovery gives them.
        quiet: kinds whose watchers get nothing for now (an informer that lags).
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str, str, str]] = []
        self.before: Callable[[str, str, str, str], None] = lambda *_: None
        self.after: Callable[[str, str, str, str], None] = lambda *_: None
        self.drop: Callable[[dict[str, Any]], None] = lambda _: None
        self.quiet: set[str] = set()
        self.time_added = "2026-01-01T00:00:00Z"
        self.kinds_served: dict[tuple[str, str], set[str]] = {}
        self._versions = itertools.count(1)
        self._version = 0
        self._history: list[tuple[int, str, WatchEventType, dict[str, Any]]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._floor = 0

    # --- test side ------------------------------------------------------------------------------------------

    def put(self, resource: Resource[Any], body: Mapping[str, Any]) -> dict[str, Any]:
        """Stores an object as it is (status included), new or not, without hooks."""
        raw = copy.deepcopy(dict(body))
        raw.setdefault("apiVersion", resource.api_version)
        raw.setdefault("kind", resource.kind)
        key = self._key(resource, raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
        old = self.objects.get(key)
        raw["metadata"].setdefault("uid", old["metadata"]["uid"] if old else f"uid-{next(self._versions)}")
        self._store(key, raw, WatchEventType.MODIFIED if old else WatchEventType.ADDED)
        return raw

    def edit(self, resource: Resource[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        """Merge patch over everything, without hooks."""
        key = self._key(resource, namespace, name)
        self._store(key, merged(self.objects[key], patch), WatchEventType.MODIFIED)

    def raw(self, resource: Resource[Any], name: str, namespace: str = "") -> dict[str, Any]:
        return self.objects[self._key(resource, namespace, name)]

    def obj(self, resource: Resource[Any], name: str, namespace: str = "") -> Any:
        return codec.convert(resource.type, self.raw(resource, name, namespace))

    def all(self, resource: Resource[Any]) -> list[Any]:
        found = [v for k, v in sorted(self.objects.items()) if k[0] == resource.kind]
        return [codec.convert(resource.type, v) for v in found]

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Deletes for good, without hooks."""
        self._drop_object(self._key(resource, namespace, name))

    def expire(self) -> None:
        """Forgets the history: every watch that must look back gets 410."""
        self._floor = self._version
        self._history.clear()
        self.wake()

    def wake(self) -> None:
        """Lets watchers look again (after ``quiet`` changed)."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    # --- KubeClient -----------------------------------------------------------------------------------------

    async def get(self, resource, name, namespace=""):
        await self._enter("get", resource, name, "")
        return codec.convert(resource.type, self._find(resource, namespace, name))

    async def list(self, resource, namespace="", *, label_selector="", field_selector=""):
        await self._enter("list", resource, "", "")
        found = [
            codec.convert(resource.type, v)
            for k, v in sorted(self.objects.items())
            if k[0] == resource.kind and namespace in ("", k[1])
        ]
        return ObjectList(tuple(found), str(self._version))

    async def watch(
        self,
        resource,
        namespace="",
        *,
        resource_version,
        label_selector="",
        field_selector="",
        timeout_seconds=300,
    ):
        await self._enter("watch", resource, "", "")
        seen = int(resource_version)
        while True:
            if seen < self._floor:
                raise Gone("too old", code=410, reason="Expired")
            if resource.kind not in self.quiet:
                newest = self._version
                for version, kind, type_, body in list(self._history):
                    if version > seen and kind == resource.kind:
                        yield WatchEvent(type_, codec.convert(resource.type, body))
                seen = max(seen, newest)
            # A future of the running loop, because one cluster may outlive several of them.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def create(self, resource, body, namespace="", *, dry_run=False):
        raw = copy.deepcopy(dict(body))
        meta = raw["metadata"]
        if "name" not in meta:
            meta["name"] = meta["generateName"] + f"{next(self._versions):05x}"
        await self._enter("dry-run" if dry_run else "create", resource, meta["name"], "")
        key = self._key(resource, namespace or meta.get("namespace", ""), meta["name"])
        if key in self.objects:
            raise Conflict(f"{meta['name']} exists", code=409, reason="AlreadyExists")
        if key[1]:
            meta["namespace"] = key[1]
        meta["uid"] = f"uid-{next(self._versions)}"
        if resource.kind in STATUS_KINDS:
            raw.pop("status", None)
        self._default(raw)
        if dry_run:
            return codec.convert(resource.type, raw)
        self._store(key, raw, WatchEventType.ADDED)
        return self._answer("create", resource, key, "")

    async def replace(self, resource, body, *, subresource="", dry_run=False):
        meta = body["metadata"]
        await self._enter("replace", resource, meta["name"], subresource)
        key = self._key(resource, meta.get("namespace", ""), meta["name"])
        old = self._find(resource, *key[1:])
        self._check(old, meta)
        raw = self._combine(resource, old, copy.deepcopy(dict(body)), subresource)
        self._default(raw)
        self._store(key, raw, WatchEventType.MODIFIED)
        return self._answer("replace", resource, key, subresource)

    async def merge_patch(self, resource, name, patch, namespace="", *, subresource="", dry_run=False):
        await self._enter("patch", resource, name, subresource)
        key = self._key(resource, namespace, name)
        old = self._find(resource, namespace, name)
        self._check(old, patch.get("metadata", {}))
        raw = self._combine(resource, old, merged(old, patch), subresource)
        before = (old.get("status") or {}).get("allocation")
        after = (raw.get("status") or {}).get("allocation")
        if resource.kind == "ResourceClaim" and before and after and before != after:
            raise Invalid("status.allocation: field is immutable", code=422, reason="Invalid")
        self._default(raw)
        self._store(key, raw, WatchEventType.MODIFIED)
        return self._answer("patch", resource, key, subresource)

    async def apply(self, resource, body, *, field_manager, subresource="", force=False, dry_run=False):
        raise NotImplementedError

    async def delete(
        self, resource, name, namespace="", *, uid="", resource_version="", grace_period_seconds=None
    ):
        await self._enter("delete", resource, name, "")
        key = self._key(resource, namespace, name)
        old = self._find(resource, namespace, name)
        self._check(old, {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v})
        self._drop_object(key)
        self.writes.append(("delete", resource.kind, name, ""))

    async def served(self, group, version):
        return frozenset(self.kinds_served.get((group, version), ()))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _enter(self, verb: str, resource: Resource[Any], name: str, subresource: str) -> None:
        await asyncio.sleep(0)
        self.before(verb, resource.kind, name, subresource)

    def _answer(self, verb: str, resource: Resource[Any], key: tuple[str, str, str], subresource: str) -> Any:
        self.writes.append((verb, resource.kind, key[2], subresource))
        self.after(verb, resource.kind, key[2], subresource)
        return codec.convert(resource.type, self.objects[key])

    def _key(self, resource: Resource[Any], namespace: str, name: str) -> tuple[str, str, str]:
        return (resource.kind, namespace if resource.namespaced else "", name)

    def _find(self, resource: Resource[Any], namespace: str, name: str) -> dict[str, Any]:
        found = self.objects.get(self._key(resource, namespace, name))
        if found is None:
            raise NotFound(f"{resource.kind} {name} not found", code=404, reason="NotFound")
        return found

    def _check(self, old: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        for field in ("resourceVersion", "uid"):
            if meta.get(field) and meta[field] != old["metadata"][field]:
                raise Conflict(f"{field} {meta[field]} is not current", code=409, reason="Conflict")

    def _combine(self, resource, old, new, subresource):
        if resource.kind in STATUS_KINDS:
            if subresource == "status":
                return {**old, "status": new.get("status", {})}
            return {**new, "status": old.get("status", {})}
        return new

    def _default(self, raw: dict[str, Any]) -> None:
        for device in raw.get("spec", {}).get("devices", ()) if raw["kind"] == "ResourceSlice" else ():
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", self.time_added)
        self.drop(raw)

    def _store(self, key: tuple[str, str, str], raw: dict[str, Any], type_: WatchEventType) -> None:
        old = self.objects.get(key)
        if old is not None:
            same = copy.deepcopy(raw)
            same["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if same == old:
                return
            raw["metadata"]["uid"] = old["metadata"]["uid"]
        self._version = next(self._versions)
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = raw
        self._publish(key, type_, raw)

    def _drop_object(self, key: tuple[str, str, str]) -> None:
        raw = copy.deepcopy(self.objects.pop(key))
        self._version = next(self._versions)
        raw["metadata"]["resourceVersion"] = str(self._version)
        self._publish(key, WatchEventType.DELETED, raw)

    def _publish(self, key: tuple[str, str, str], type_: WatchEventType, raw: dict[str, Any]) -> None:
        self._history.append((self._version, key[0], type_, copy.deepcopy(raw)))
        self.wake()


def unreachable(*_: object) -> None:
    """For ``before`` and ``after``."""
    raise ApiUnavailable("no answer")
