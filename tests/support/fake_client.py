"""``FakeClient``: the port ``KubeClient`` on the embedded API server's own registry, without HTTP.

Writes are decoded, defaulted, validated, versioned and owned (``managedFields``) as by the embedded API
server, and watches read its history, so that the semantics exist once. What needs other processes is missing:
garbage collection, controllers, webhooks. Namespaces need not be created.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from manifest_files import documents

from dra_driver.api import codec
from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.server.watch import ObjectList, WatchEvent
from dra_driver.errors import ApiUnavailable
from dra_driver.kube.http import decoding as http_decoding
from dra_driver.kube.http import status
from dra_driver.sim.apiserver.http.listing import list_page
from dra_driver.sim.apiserver.http.requests import Accept, Route
from dra_driver.sim.apiserver.http.watching import Watch
from dra_driver.sim.apiserver.objects import decoding
from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.releases import Served
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.storage.store import Collection, Key, Store
from dra_driver.sim.apiserver.writing import pods, strategy
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.apiserver.writing.patches import merge_patch
from dra_driver.sim.apiserver.writing.registry import DeleteOptions, Registry
from dra_driver.sim.apiserver.writing.reviews import Review, Reviews
from dra_driver.sim.assets import deploy_directory

__all__ = ["Call", "FakeClient", "error_of", "unreachable"]

T = TypeVar("T", bound=WireObject)

START = datetime.fromisoformat("2026-01-01T00:00:00Z").timestamp()


class Call(NamedTuple):
    """A call of the port, or a write that was done.

    Attributes:
        verb: ``get``, ``list``, ``watch``, ``create``, ``replace``, ``patch``, ``apply``, ``delete`` or
            ``evict``; ``dry-run`` for every write that stores nothing.
        kind: for example ``Pod``.
        name: of the object; empty for collections.
        subresource: ``status`` or empty.
    """

    verb: str
    kind: str
    name: str
    subresource: str


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)


class _Stripped(Reviews):
    """Changes what is to be stored, where a real server does so by feature gates and webhooks."""

    def __init__(self, strip: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._strip = strip

    def mutated(self, review: Review) -> dict[str, Any] | None:
        if review.new is None:
            return None
        changed = _copied(review.new)
        self._strip(changed)
        return changed

    def validated(self, review: Review) -> None:
        pass


class FakeClient:
    """Implements ``ports.KubeClient``; one object is one API server with one client.

    Attributes:
        calls: every call, in order.
        writes: every write that was done.
        applied: every server-side apply that was done: field manager and configuration.
        before: is given each call before it is done; may raise, or change objects.
        after: is given each write when it is done, before it is answered; if it raises, there is no answer.
        strip: changes objects on their way into the store, as an API server does whose feature gate is off.
        quiet: kinds whose watches deliver nothing for now; call ``wake`` after taking one out.
        user: ``userInfo`` of the client, for policies; if None, an administrator's.
        now: the API server's clock, in seconds since the epoch; it stands still.
        time: if not None, a clock that goes on, in its place.
        registry: the embedded API server's.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.writes: list[Call] = []
        self.applied: list[tuple[str, Mapping[str, Any]]] = []
        self.before: Callable[[str, str, str, str], None] = lambda *_: None
        self.after: Callable[[str, str, str, str], None] = lambda *_: None
        self.strip: Callable[[dict[str, Any]], None] | None = None
        self.quiet: set[str] = set()
        self.user: dict[str, Any] | None = None
        self.now = START
        self.time: Callable[[], float] | None = None
        self.registry = Registry(Store(), self.clock, Served())
        self._down = False
        self._waiting: list[asyncio.Future[None]] = []
        for kind in _own_kinds():
            self.registry.kinds.add(kind)

    # --- the test's side ------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Return the API server's time."""
        return self.now if self.time is None else self.time()

    @property
    def down(self) -> bool:
        """Whether every call raises ``ApiUnavailable``; open watches end with it."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self.wake()

    def put(self, resource: Resource[Any], body: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object, new or not, as if it had been admitted: defaulted, with its status, unchecked."""
        kind = self._kind(resource)
        raw = self._decoded(kind, {"kind": resource.kind, "apiVersion": resource.api_version, **body})
        metadata = raw["metadata"]
        key = Key(metadata.get("namespace", ""), metadata["name"])
        found = self._collection(resource).get(key)
        strategy.prepare_create(kind, raw, self.registry.now())
        if "status" in body:
            raw["status"] = _copied_value(body["status"])
        if "generation" in body["metadata"]:
            metadata["generation"] = body["metadata"]["generation"]
        uid = found.raw["metadata"]["uid"] if found else f"uid-{self.registry.store.version}"
        metadata.setdefault("uid", uid)
        metadata.setdefault("creationTimestamp", self.registry.now())
        return self._collection(resource).put(key, raw).raw

    def edit(
        self,
        resource: Resource[Any],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        as_is: bool = False,
    ) -> None:
        """Merge a patch into an object, status included, as another writer would; nothing is validated.

        ``as_is`` stores what cannot even be decoded.
        """
        kind = self._kind(resource)
        old = self._collection(resource).objects[Key(namespace, name)].raw
        patched = merge_patch(old, patch)
        raw = _copied(patched) if as_is else self._decoded(kind, patched)
        if "generation" in old["metadata"] and strategy.spec_changed(kind, old, raw):
            raw["metadata"]["generation"] += 1
        self._collection(resource).put(Key(namespace, name), raw)

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Remove an object for good."""
        self._collection(resource).remove(Key(namespace, name))

    def raw(self, resource: Resource[Any], name: str, namespace: str = "") -> dict[str, Any]:
        """Return a copy of a stored object; ``KeyError`` where there is none."""
        return _copied(self._collection(resource).objects[Key(namespace, name)].raw)

    def find(self, resource: Resource[Any], name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return a copy of a stored object; None where there is none."""
        found = self._collection(resource).get(Key(namespace, name))
        return _copied(found.raw) if found else None

    def obj(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Return a stored object, the same until it changes; ``KeyError`` where there is none."""
        return self._collection(resource).objects[Key(namespace, name)].struct(resource.type)

    def all(self, resource: Resource[T]) -> list[T]:
        """Return all objects of a kind, sorted by namespace and name; each is the same until it changes."""
        return [s.struct(resource.type) for s in self._collection(resource).list()]

    def expire(self) -> None:
        """Forget the history: watches get 410."""
        for collection in self.registry.store.collections():
            collection.forget()

    def wake(self) -> None:
        """Let watches look again."""
        for collection in self.registry.store.collections():
            collection.wake()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    def serve(self, resource: Resource[Any]) -> None:
        """Serve a kind in one more version, in which it has the fields of those that are served or were."""
        known = Kinds(self.registry.served)
        fields = next(k for k in known if (k.group, k.plural) == (resource.group, resource.plural))
        self.registry.kinds.add(dataclasses.replace(fields, version=resource.version))

    def withdraw(self, resource: Resource[Any]) -> None:
        """Serve a kind in no version any more."""
        self.registry.kinds.remove(resource.group, resource.plural)

    # --- ports.KubeClient -----------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        await self._enter("get", resource, name, "")
        try:
            found = self.registry.get(self._kind(resource), namespace, name)
        except StatusError as e:
            raise error_of(e) from None
        return http_decoding.decode_answer(resource, found.encoded, f"GET {name}")

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        await self._enter("list", resource, "", "")
        query = {"labelSelector": label_selector, "fieldSelector": field_selector}
        try:
            page = list_page(self.registry, Route(self._kind(resource), namespace, "", ""), query)
        except StatusError as e:
            raise error_of(e) from None
        read = [http_decoding.decode_object(resource, msgspec.Raw(s.encoded)) for s in page.items]
        items = tuple(item for item, _ in read if item is not None)
        unreadable = tuple(problem for _, problem in read if problem is not None)
        return ObjectList(items, page.metadata["resourceVersion"], unreadable)

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
        await self._enter("watch", resource, "", "")
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        }
        try:
            watch = Watch(
                self.registry, Route(self._kind(resource), namespace, "", ""), query, Accept("json", "")
            )
        except StatusError as e:
            raise error_of(e) from None
        async for chunk in watch.lines(lambda: self._down):
            while resource.kind in self.quiet and not self._down:
                await self._woken()
            for line in filter(None, chunk.split(b"\n")):
                event = http_decoding.decode_event(resource, line)
                if event is not None:
                    yield event
        if self._down:
            raise ApiUnavailable("the API server is down")

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        namespace = namespace or body["metadata"].get("namespace", "")

        def write(kind: Kind, options: Options) -> dict[str, Any]:
            self._have_namespace(kind, namespace)
            return self.registry.create(kind, namespace, _copied(dict(body)), options)

        return await self._write("create", resource, body["metadata"].get("name", ""), "", dry_run, write)

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")

        def write(kind: Kind, options: Options) -> dict[str, Any]:
            self._have_namespace(kind, namespace)
            raw = _copied(dict(body))
            return self.registry.update(kind, namespace, name, raw, options, subresource)[0]

        return await self._write("replace", resource, name, subresource, dry_run, write)

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
        def write(kind: Kind, options: Options) -> dict[str, Any]:
            raw = msgspec.json.decode(codec.encode(patch))
            return self.registry.patch(kind, namespace, name, "merge", raw, options, subresource)[0]

        return await self._write("patch", resource, name, subresource, dry_run, write)

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
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")

        def write(kind: Kind, options: Options) -> dict[str, Any]:
            self._have_namespace(kind, namespace)
            options.manager, options.force = field_manager, force
            raw = _copied(dict(body))
            done = self.registry.patch(kind, namespace, name, "apply", raw, options, subresource)[0]
            if not dry_run:
                self.applied.append((field_manager, body))
            return done

        return await self._write("apply", resource, name, subresource, dry_run, write)

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
        await self._enter("delete", resource, name, "")
        options = DeleteOptions(grace=grace_period_seconds, uid=uid, version=resource_version)
        try:
            self.registry.delete(self._kind(resource), namespace, name, options)
        except StatusError as e:
            raise error_of(e) from None
        self._done(Call("delete", resource.kind, name, ""))

    async def evict(self, name: str, namespace: str, *, uid: str = "", resource_version: str = "") -> None:
        await self._enter("evict", PODS, name, "")
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        try:
            body = {"deleteOptions": {"preconditions": preconditions}}
            pods.evict(self.registry, self._kind(PODS), namespace, name, body)
        except StatusError as e:
            raise error_of(e) from None
        self._done(Call("evict", PODS.kind, name, ""))

    async def served(self, group: str, version: str) -> frozenset[str]:
        await asyncio.sleep(0)
        self._check_up()
        return frozenset(k.plural for k in self.registry.kinds if (k.group, k.version) == (group, version))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _enter(self, verb: str, resource: Resource[Any], name: str, subresource: str) -> None:
        await asyncio.sleep(0)
        call = Call(verb, resource.kind, name, subresource)
        self.calls.append(call)
        self._check_up()
        self.before(*call)

    def _check_up(self) -> None:
        if self._down:
            raise ApiUnavailable("the API server is down")

    async def _write(
        self,
        verb: str,
        resource: Resource[T],
        name: str,
        subresource: str,
        dry_run: bool,
        write: Callable[[Kind, Options], dict[str, Any]],
    ) -> T:
        await self._enter("dry-run" if dry_run else verb, resource, name, subresource)
        reviews = _Stripped(self.strip) if self.strip is not None else None
        options = Options(dry_run=dry_run, manager="test", reviews=reviews)
        if self.user is not None:
            options.user = self.user
        try:
            raw = write(self._kind(resource), options)
        except StatusError as e:
            raise error_of(e) from None
        if not dry_run:
            self._done(Call(verb, resource.kind, raw["metadata"]["name"], subresource))
        return codec.convert(resource.type, raw)

    def _decoded(self, kind: Kind, body: object) -> dict[str, Any]:
        """Return what the server makes of a body: with default values, without unknown fields."""
        complain = decoding.cannot_handle(kind)
        body = _copied_value(body)
        raw, context = decoding.decode(kind, kind, body, Options(), complain, self.registry.now())
        context.drop_empties()
        return raw

    def _done(self, call: Call) -> None:
        self.writes.append(call)
        self.after(*call)

    def _kind(self, resource: Resource[Any]) -> Kind:
        kind = self.registry.kinds.get(resource.group, resource.version, resource.plural)
        if kind is None:
            raise StatusError.no_resource()
        return kind

    def _collection(self, resource: Resource[Any]) -> Collection:
        return self.registry.store.collection(resource.group, resource.plural)

    def _have_namespace(self, kind: Kind, namespace: str) -> None:
        namespaces = self.registry.store.collection("", "namespaces")
        if kind.namespaced and namespace and namespaces.get(Key("", namespace)) is None:
            raw = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace, "uid": namespace}}
            namespaces.put(Key("", namespace), raw)

    async def _woken(self) -> None:
        # A future of the running loop, because one fake may outlive several loops.
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter


def _copied(body: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of plain data, in a fraction of the time that ``deepcopy`` takes."""
    return {key: _copied_value(value) for key, value in body.items()}


def _copied_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _copied(value)
    return [_copied_value(v) for v in value] if isinstance(value, list) else value


@functools.cache
def _own_kinds() -> tuple[Kind, ...]:
    """Return the kinds of our CustomResourceDefinitions."""
    registry = Registry(Store(), lambda: START, Served())
    before = set(map(id, registry.kinds))
    definitions = registry.kinds.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert definitions is not None
    for path in sorted((deploy_directory("manifests") / "crds").glob("*.yaml")):
        for document in documents(path):
            registry.create(definitions, "", document, Options())
    return tuple(k for k in registry.kinds if id(k) not in before)


def error_of(refused: StatusError) -> Exception:
    """Return what the real client raises where the server refuses a request."""
    return status.to_error(refused.code, msgspec.json.encode(refused.raw()), {})


def unreachable(*_: object) -> None:
    """For ``before`` and ``after``."""
    raise ApiUnavailable("no answer")
