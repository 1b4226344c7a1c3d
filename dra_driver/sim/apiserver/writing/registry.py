"""Create, read, update, patch and delete: the API's verbs, without HTTP.

Everything here is synchronous: one call is one step of the event loop, so writes never overlap.
"""

from __future__ import annotations

import functools
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dra_driver.sim.apiserver import validation
from dra_driver.sim.apiserver.objects import crds, decoding, gates, versions
from dra_driver.sim.apiserver.objects.fields import Context
from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.releases import Served
from dra_driver.sim.apiserver.objects.status import Cause, Causes, Raw, StatusError
from dra_driver.sim.apiserver.storage.store import Collection, Key, Store, Stored
from dra_driver.sim.apiserver.writing import admission, deletion, managed, patches, strategy, taint_preview
from dra_driver.sim.apiserver.writing.deletion import DeleteOptions
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.apiserver.writing.policies import Policies
from dra_driver.sim.apiserver.writing.reviews import Review
from dra_driver.sim.apiserver.writing.server_state import Later

__all__ = ["DeleteOptions", "Options", "Registry", "timestamp"]

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def timestamp(seconds: float) -> str:
    """Return a time as RFC 3339 with whole seconds."""
    return _timestamp(int(seconds))


@functools.lru_cache(maxsize=16)  # many objects are written in the same second
def _timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Registry:
    """All verbs on all kinds.

    Args:
        store: the objects.
        clock: returns seconds since the epoch.
        served: the release, and its feature gates that are on.

    Attributes:
        served: as the argument.
        policies: ValidatingAdmissionPolicies, which every write is judged by.
        collected: group and plural name of the kinds that a garbage collector handles; only those support
            foreground deletion and orphans.
    """

    def __init__(self, store: Store, clock: Callable[[], float], served: Served) -> None:
        self.store = store
        self.clock = clock
        self.served = served
        self.kinds = Kinds(served)
        self.policies = Policies(store, self.kinds)
        self.later: Later = deletion.call_later
        self.collected: frozenset[tuple[str, str]] = frozenset()

    def restore(self) -> None:
        """Resume what an earlier server has left in the store: definitions, and unfinished deletions."""
        for stored in self.store.collection("apiextensions.k8s.io", "customresourcedefinitions").list():
            if "deletionTimestamp" not in stored.raw["metadata"]:
                for custom in crds.kinds(stored.raw):
                    self.kinds.add(custom)
        deletion.resume(self)

    # --- reading ---

    def collection(self, kind: Kind) -> Collection:
        """Return the objects of a kind."""
        return self.store.collection(kind.group, kind.plural)

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Return one object.

        Raises:
            StatusError: 404.
        """
        found = self.collection(kind).get(Key(namespace, name))
        if found is None:
            raise StatusError.not_found(kind.plural, kind.group, name)
        return found

    def now(self) -> str:
        """Return the time as objects carry it."""
        return timestamp(self.clock())

    def _time(self, options: Options) -> str:
        """Return the time of the first try of a write, so that a later try makes the same object."""
        return options.drawn.setdefault("time", self.now())

    def at(self, seconds: float) -> str:
        """Return the time in ``seconds`` from now."""
        return timestamp(self.clock() + seconds)

    def _decode(
        self, kind: Kind, body: object, options: Options, complain: decoding.Complaint
    ) -> tuple[Raw, Context]:
        return decoding.decode(kind, self.kinds.stored(kind), body, options, complain, self._time(options))

    # --- create ---

    def create(self, kind: Kind, namespace: str, body: Any, options: Options) -> Raw:
        """Create an object (POST).

        Raises:
            StatusError: 400, 403, 404 (namespace), 409 (exists), 422, 500 (resourceVersion given).
        """
        decoding.check_type(kind, body)
        raw, context = self._decode(kind, body, options, decoding.cannot_handle(kind))
        return self._create(self.kinds.stored(kind), namespace, raw, context, options)

    def _create(
        self,
        kind: Kind,
        namespace: str,
        raw: Raw,
        context: Context,
        options: Options,
        *,
        applied: bool = False,
    ) -> Raw:
        metadata = raw["metadata"]
        self._locate(kind, namespace, metadata)
        if kind.namespaced:
            self._check_namespace(kind, namespace, metadata)
        now = self._time(options)
        for name in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(name, None)
        version = metadata.pop("resourceVersion", "")
        if not applied:
            metadata.pop("managedFields", None)
        if metadata.get("generateName") and not metadata.get("name"):
            drawn = options.drawn.get("name") or self._generate(kind, namespace, metadata["generateName"])
            metadata["name"] = options.drawn["name"] = drawn
        metadata["uid"] = options.drawn.setdefault("uid", str(uuid.uuid4()))
        metadata["creationTimestamp"] = now
        admission.admit_create(self.store, kind, namespace, raw)
        raw, context = self._mutated(kind, "CREATE", namespace, raw, None, context, options)
        metadata = raw["metadata"]
        strategy.prepare_create(kind, raw, now)
        self._drop_disabled(kind, raw, None)
        causes = validation.create(kind, raw, self._surroundings(kind, namespace, options))
        if causes:
            raise StatusError.invalid(kind.kind, kind.group, metadata.get("name", ""), causes)
        context.drop_empties()
        self._validated(kind, "CREATE", namespace, raw, None, options)
        if version not in ("", "0") and not applied and not options.dry_run:
            raise StatusError.internal("resourceVersion should not be set on objects to be created")
        if not applied:
            managed.record_update(kind.type, None, raw, self._manager(kind, options, "", now))
        key = Key(namespace, metadata["name"])
        existing = self.collection(kind).get(key)
        if existing is not None:
            deleting = "deletionTimestamp" in existing.raw["metadata"]
            raise StatusError.exists(kind.plural, kind.group, key.name, deleting=deleting)
        if options.dry_run:
            return raw
        if kind.kind == "DeviceTaintRule" and raw["spec"]["taint"]["effect"] == "None":
            self.later(0, lambda: self._preview(kind, key))
        return self._put(kind, key, raw)

    def _preview(self, kind: Kind, key: Key) -> None:
        found = self.collection(kind).get(key)
        if found is not None:
            self.collection(kind).put(key, taint_preview.preview(self, found.raw))

    def _put(self, kind: Kind, key: Key, raw: Raw) -> Raw:
        """Store an object; the kinds of a CustomResourceDefinition are served from then on."""
        if kind.kind != "CustomResourceDefinition":
            return self.collection(kind).put(key, raw).raw
        if "deletionTimestamp" not in raw["metadata"]:
            raw = crds.established(raw, self.now()) or raw
            self.kinds.remove(raw["spec"]["group"], raw["spec"]["names"]["plural"])
            for custom in crds.kinds(raw):
                self.kinds.add(custom)
        return self.collection(kind).put(key, raw).raw

    def _locate(self, kind: Kind, namespace: str, metadata: Raw) -> None:
        if not kind.namespaced:
            metadata.pop("namespace", None)
        given = metadata.get("namespace") or ""
        if given and given != namespace:
            raise StatusError.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if kind.namespaced:
            metadata["namespace"] = namespace

    def _check_namespace(self, kind: Kind, namespace: str, metadata: Raw) -> None:
        found = self.store.collection("", "namespaces").get(Key("", namespace))
        if found is None:
            raise StatusError.not_found("namespaces", "", namespace)
        if "deletionTimestamp" in found.raw["metadata"]:
            name = metadata.get("name", "")
            qualified = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            cause = Cause(
                "NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace"
            )
            raise StatusError(
                403,
                "Forbidden",
                f'{qualified} "{name}" is forbidden: unable to create new content in namespace {namespace} '
                "because it is being terminated",
                kind.plural,
                kind.group,
                name,
                (cause,),
            )

    def _generate(self, kind: Kind, namespace: str, prefix: str) -> str:
        for _ in range(8):
            name = prefix[:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
            if self.collection(kind).get(Key(namespace, name)) is None:
                break
        return name

    def _drop_disabled(self, kind: Kind, raw: Raw, old: Raw | None) -> None:
        if not kind.custom:
            gates.drop_disabled(kind.type, raw, old, self.served.gates)

    def _manager(self, kind: Kind, options: Options, subresource: str, now: str) -> managed.Manager:
        return managed.Manager(options.manager, kind.api_version, subresource, now)

    def _surroundings(self, kind: Kind, namespace: str, options: Options) -> validation.Surroundings:
        labels: Raw = {}
        if kind.group == "resource.k8s.io" and namespace:
            found = self.store.collection("", "namespaces").get(Key("", namespace))
            labels = (found.raw["metadata"].get("labels") if found else None) or {}
        return validation.Surroundings(labels, options.warnings, self.served)

    # --- webhooks ---

    def _mutated(
        self,
        kind: Kind,
        operation: str,
        namespace: str,
        raw: Raw,
        old: Raw | None,
        context: Context,
        options: Options,
        subresource: str = "",
    ) -> tuple[Raw, Context]:
        """Return the object as mutating webhooks change it."""
        if options.reviews is None:
            return raw, context
        review = options.review_of(kind, operation, namespace, raw, old, subresource)
        changed = options.reviews.mutated(review)
        if changed is None:
            return raw, context
        return self._decode(kind, changed, options, decoding.cannot_handle(kind))

    def _validated(
        self,
        kind: Kind,
        operation: str,
        namespace: str,
        raw: Raw,
        old: Raw | None,
        options: Options,
        subresource: str = "",
    ) -> None:
        """Ask the policies and the validating webhooks, and return if none refuses."""
        review = options.review_of(kind, operation, namespace, raw, old, subresource)
        self.policies.check(review)
        if options.reviews is not None:
            options.reviews.validated(review)

    # --- update ---

    def update(
        self, kind: Kind, namespace: str, name: str, body: Any, options: Options, subresource: str = ""
    ) -> tuple[Raw, bool]:
        """Replace an object (PUT); return it, and whether it was created.

        Raises:
            StatusError: 400, 404, 409, 422, 500 (malformed resourceVersion).
        """
        decoding.check_type(kind, body)
        raw, context = self._decode(kind, body, options, decoding.cannot_handle(kind))
        kind = self.kinds.stored(kind)
        metadata = raw["metadata"]
        if not metadata.get("name"):
            raise StatusError.bad_request(
                f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )
        self._check_name(name, metadata)
        self._locate(kind, namespace, metadata)
        existing = self.collection(kind).get(Key(namespace, name))
        if existing is None:
            if not kind.put_creates or subresource:
                raise StatusError.not_found(kind.plural, kind.group, name)
            if metadata.get("uid"):
                why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: "
                raise StatusError.conflict(kind.plural, kind.group, name, why)
            return self._create(kind, namespace, raw, context, options), True
        return self._replace(kind, existing, raw, context, options, subresource), False

    @staticmethod
    def _check_name(name: str, metadata: Raw) -> None:
        if metadata.get("name") != name:
            raise StatusError.bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
            )

    def _replace(
        self,
        kind: Kind,
        existing: Stored,
        raw: Raw,
        context: Context,
        options: Options,
        subresource: str,
        *,
        applied: bool = False,
        patched: bool = False,
    ) -> Raw:
        old = existing.raw
        metadata = raw["metadata"]
        name = existing.key.name
        self._check_version(kind, existing, metadata, patched or applied)
        now = self._time(options)
        causes = validation.identity(kind, old["metadata"], metadata)
        _carry_system_fields(old["metadata"], metadata)
        namespace = existing.key.namespace
        raw, context = self._mutated(kind, "UPDATE", namespace, raw, old, context, options, subresource)
        strategy.prepare_update(kind, old, raw, subresource, now)
        self._drop_disabled(kind, raw, old)
        causes += validation.update(kind, old, raw, subresource, self._surroundings(kind, namespace, options))
        if causes:
            raise StatusError.invalid(kind.kind, kind.group, name, causes)
        context.drop_empties()
        self._validated(kind, "UPDATE", namespace, raw, old, options, subresource)
        metadata = raw["metadata"]
        if not applied:
            managed.record_update(kind.type, old, raw, self._manager(kind, options, subresource, now))
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        if raw == old:
            return old
        if options.dry_run:
            return raw
        if "deletionTimestamp" in metadata and not metadata.get("finalizers") and not _waiting(metadata):
            deletion.finish(self, kind, existing.key)
            return raw
        return self._put(kind, existing.key, raw)

    def _check_version(self, kind: Kind, existing: Stored, metadata: Raw, patched: bool) -> None:
        name = existing.key.name
        uid = metadata.get("uid")
        if uid and uid != existing.raw["metadata"]["uid"] and not patched:
            raise StatusError.conflict(
                kind.plural,
                kind.group,
                name,
                f"StorageError: invalid object, Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {existing.raw['metadata']['uid']}",
            )
        version = metadata.get("resourceVersion") or ""
        if version and not version.isdigit():
            raise StatusError.internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version in ("", "0"):
            if kind.put_needs_version and not patched:
                causes = Causes()
                causes.invalid("metadata.resourceVersion", 0, "must be specified for an update")
                raise StatusError.invalid(kind.plural, kind.group, name, causes)
        elif int(version) != existing.version:
            raise StatusError.conflict(kind.plural, kind.group, name)

    # --- patch ---

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        form: str,
        patch: Any,
        options: Options,
        subresource: str = "",
    ) -> tuple[Raw, bool]:
        """Patch an object; return it, and whether it was created.

        Args:
            kind: kind of the object.
            namespace: its namespace; empty for cluster-scoped kinds.
            name: its name.
            form: ``json``, ``merge``, ``strategic`` or ``apply``.
            patch: the decoded body.
            options: options of the request.
            subresource: ``status`` or empty.

        Raises:
            StatusError: 400, 404, 409, 422, 500.
        """
        existing = self.collection(kind).get(Key(namespace, name))
        if form == "apply":
            return self._apply(kind, namespace, name, existing, patch, options, subresource)
        if existing is None:
            raise StatusError.not_found(kind.plural, kind.group, name)
        old = versions.from_storage(kind.api_version, kind.kind, existing.raw)
        match form:
            case "json":
                patched = patches.json_patch(old, patch)
            case "merge":
                if not isinstance(patch, dict):
                    raise StatusError.bad_request("error decoding patch: json: cannot unmarshal array")
                patched = patches.merge_patch(old, patch)
            case _:
                patched = patches.strategic_merge(old, patch, kind.type)
        complain = decoding.bad_patch
        patched = decoding.patched_object(kind, patched, form)
        raw, context = self._decode(kind, patched, options, complain)
        kind = self.kinds.stored(kind)
        self._check_name(name, raw["metadata"])
        self._locate(kind, namespace, raw["metadata"])
        return self._replace(kind, existing, raw, context, options, subresource, patched=True), False

    def _apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        existing: Stored | None,
        patch: Any,
        options: Options,
        subresource: str,
    ) -> tuple[Raw, bool]:
        given = patch if isinstance(patch, dict) else {}
        if given.get("kind") != kind.kind or given.get("apiVersion") != kind.api_version:
            group, _, version = str(given.get("apiVersion", "")).rpartition("/")
            raise StatusError.bad_request(
                f"invalid object type: {group}/{version}, Kind={given.get('kind', '')}"
            )
        metadata = given.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise StatusError.bad_request("metadata must be an object")
        if metadata.get("managedFields") is not None:
            raise StatusError.bad_request("metadata.managedFields must be nil")
        named = dict(metadata)
        metadata["name"] = name
        self._locate(kind, namespace, metadata)
        if existing is None and subresource:
            raise StatusError.not_found(kind.plural, kind.group, name)
        applied = decoding.typed(kind, self.kinds.stored(kind), given, name)
        kind = self.kinds.stored(kind)
        applied["apiVersion"] = kind.api_version
        if kind.status:
            applied = decoding.only_endpoint(applied, subresource, kind)
        bare: Raw = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"name": name}}
        live = {**existing.raw, "apiVersion": kind.api_version} if existing else bare
        manager = self._manager(kind, options, subresource, self._time(options))
        merged = managed.apply(kind.type, live, applied, manager, force=options.force)
        self._check_name(name, {"name": name, **named})
        if existing is None and metadata.get("uid"):
            why = f"uid mismatch: the provided object specified uid {metadata['uid']}"
            why += ", and no existing object was found"
            raise StatusError.conflict(kind.plural, kind.group, name, why)
        if metadata.get("resourceVersion") and existing:
            merged["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        raw, context = self._decode(kind, merged, options, decoding.bad_patch)
        if existing is None:
            return self._create(kind, namespace, raw, context, options, applied=True), True
        return self._replace(kind, existing, raw, context, options, subresource, applied=True), False

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Raw:
        """Delete an object: see ``deletion.delete``."""
        kind = self.kinds.stored(kind)
        review = Review(
            operation="DELETE",
            kind=kind,
            namespace=namespace,
            name=name,
            old=self.get(kind, namespace, name).raw,
            dry_run=options.dry_run,
            user=options.user,
        )
        if options.reviews is not None:
            options.reviews.mutated(review)
        self.policies.check(review)
        if options.reviews is not None:
            options.reviews.validated(review)
        return deletion.delete(self, kind, namespace, name, options)


def _carry_system_fields(old: Raw, new: Raw) -> None:
    new["uid"] = old["uid"]
    new["creationTimestamp"] = old["creationTimestamp"]
    new.pop("selfLink", None)
    for name in ("generateName", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if name in old and not new.get(name):
            new[name] = old[name]


def _waiting(metadata: Raw) -> bool:
    return bool(metadata.get("deletionGracePeriodSeconds"))
