"""Create, read, update, patch, delete: what the API does, without HTTP.

Everything here is synchronous: one call is one step of the event loop, so no two writers ever mix.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dra_driver.sim.apiserver import crds, managed, patches, strategy, validation
from dra_driver.sim.apiserver.fields import Context, WrongType
from dra_driver.sim.apiserver.kinds import Kind, Kinds
from dra_driver.sim.apiserver.status import Cause, Causes, Raw, StatusError, success
from dra_driver.sim.apiserver.store import Collection, Key, Store, Stored

__all__ = ["DeleteOptions", "Options", "Registry", "timestamp"]

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Options:
    """Query parameters of a write, and the warnings that it causes.

    Attributes:
        dry_run: do everything except storing.
        manager: field manager.
        validation: ``Ignore``, ``Warn`` or ``Strict``.
        force: server-side apply takes fields from their owners.
        duplicates: paths of duplicate keys that the decoder of the body has found.
        warnings: texts for the ``Warning`` header.
    """

    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    force: bool = False
    duplicates: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DeleteOptions:
    """``DeleteOptions``."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    dry_run: bool = False


class Registry:
    """All verbs on all kinds.

    Args:
        store: where objects live.
        clock: seconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self.kinds = Kinds()

    # --- reading ---

    def collection(self, kind: Kind) -> Collection:
        """Objects of a kind."""
        return self.store.collection(kind.group, kind.plural)

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """One object.

        Raises:
            StatusError: 404.
        """
        found = self.collection(kind).get(Key(namespace, name))
        if found is None:
            raise StatusError.not_found(kind.plural, kind.group, name)
        return found

    def now(self) -> str:
        """The time as objects carry it."""
        return timestamp(self.clock())

    # --- decoding ---

    def _decode(self, kind: Kind, body: object, options: Options, complain: Complaint) -> tuple[Raw, Context]:
        """The object that ``body`` is, with defaults; reports unknown fields as ``fieldValidation`` says."""
        context = Context(self.now())
        if not isinstance(body, dict):
            raise StatusError.bad_request("the object provided is unrecognized (must be of type " + kind.kind + ")")
        try:
            decoded = kind.type.decode(body, "", context)
        except WrongType as e:
            raise complain(str(e)) from None
        findings = [f'duplicate field "{d}"' for d in options.duplicates]
        findings += [f'unknown field "{u}"' for u in context.unknown]
        if findings and options.validation == "Strict":
            raise complain("strict decoding error: " + ", ".join(findings))
        if findings and options.validation != "Ignore":
            options.warnings += findings
        raw: Raw = {"kind": kind.kind, "apiVersion": kind.storage_version, **decoded}
        if not isinstance(raw.get("metadata"), dict):
            raw["metadata"] = {}
        return raw, context

    @staticmethod
    def _check_type(kind: Kind, body: object, shown: str = "") -> None:
        if not isinstance(body, dict):
            word = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(body), "number")
            raise StatusError.bad_request(
                f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; "
                f"json parse error: json: cannot unmarshal {word} into Go value"
            )
        given_kind, given_version = body.get("kind"), body.get("apiVersion")
        if kind.custom and (not given_kind or not given_version):
            missing = "Kind" if not given_kind else "apiVersion"
            raise StatusError.bad_request(
                f"the object provided is unrecognized (must be of type {kind.kind}): Object '{missing}' is missing"
            )
        if (given_kind and given_kind != kind.kind) or (given_version and given_version != kind.api_version):
            version = str(given_version or kind.api_version).rpartition("/")[2]
            raise StatusError.bad_request(
                f'{given_kind or kind.kind} in version "{version}" cannot be handled as a {kind.kind}: '
                f'no kind "{given_kind or kind.kind}" is registered for version "{given_version}"'
            )

    # --- create ---

    def create(self, kind: Kind, namespace: str, body: Any, options: Options) -> Raw:
        """POST.

        Raises:
            StatusError: 400, 403, 404 (namespace), 409 (exists), 422, 500 (resourceVersion given).
        """
        self._check_type(kind, body)
        raw, context = self._decode(kind, body, options, _cannot_handle(kind))
        return self._create(kind, namespace, raw, context, options)

    def _create(
        self, kind: Kind, namespace: str, raw: Raw, context: Context, options: Options, *, applied: bool = False
    ) -> Raw:
        metadata = raw["metadata"]
        self._locate(kind, namespace, metadata)
        if kind.namespaced:
            self._check_namespace(kind, namespace, metadata)
        now = self.now()
        for name in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(name, None)
        version = metadata.pop("resourceVersion", "")
        if not applied:
            metadata.pop("managedFields", None)
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = self._generate(kind, namespace, metadata["generateName"])
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now
        strategy.prepare_create(kind, raw, now)
        causes = validation.create(kind, raw, self._surroundings(kind, namespace, options))
        if causes:
            raise StatusError.invalid(kind.kind, kind.group, metadata.get("name", ""), causes)
        if version not in ("", "0") and not applied:
            raise StatusError.internal("resourceVersion should not be set on objects to be created")
        context.drop_empties()
        if not applied:
            managed.record_update(kind.type, None, raw, self._manager(kind, options, "", now))
        key = Key(namespace, metadata["name"])
        existing = self.collection(kind).get(key)
        if existing is not None:
            deleting = "deletionTimestamp" in existing.raw["metadata"]
            raise StatusError.exists(kind.plural, kind.group, key.name, deleting=deleting)
        if options.dry_run:
            return raw
        self.collection(kind).put(key, raw)
        self._after_write(kind, raw)
        return raw

    def _locate(self, kind: Kind, namespace: str, metadata: Raw) -> None:
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
            cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
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

    def _manager(self, kind: Kind, options: Options, subresource: str, now: str) -> managed.Manager:
        return managed.Manager(options.manager, kind.api_version, subresource, now)

    def _surroundings(self, kind: Kind, namespace: str, options: Options) -> validation.Surroundings:
        labels: Raw = {}
        if kind.group == "resource.k8s.io" and namespace:
            found = self.store.collection("", "namespaces").get(Key("", namespace))
            labels = (found.raw["metadata"].get("labels") if found else None) or {}
        return validation.Surroundings(labels, options.warnings)

    # --- update ---

    def update(
        self, kind: Kind, namespace: str, name: str, body: Any, options: Options, subresource: str = ""
    ) -> tuple[Raw, bool]:
        """PUT. Gives the object and whether it was created.

        Raises:
            StatusError: 400, 404, 409, 422, 500 (malformed resourceVersion).
        """
        self._check_type(kind, body)
        raw, context = self._decode(kind, body, options, _cannot_handle(kind))
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
        now = self.now()
        _carry_system_fields(old["metadata"], metadata)
        strategy.prepare_update(kind, old, raw, subresource, now)
        causes = validation.update(
            kind, old, raw, subresource, self._surroundings(kind, existing.key.namespace, options)
        )
        if causes:
            raise StatusError.invalid(kind.kind, kind.group, name, causes)
        context.drop_empties()
        metadata = raw["metadata"]
        if not applied:
            managed.record_update(kind.type, old, raw, self._manager(kind, options, subresource, now))
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        if raw == old:
            return old
        if options.dry_run:
            return raw
        if "deletionTimestamp" in metadata and not metadata.get("finalizers") and not _waiting(metadata):
            self._finish_deletion(kind, existing.key)
            return raw
        self.collection(kind).put(existing.key, raw)
        self._after_write(kind, raw)
        return raw

    def _check_version(self, kind: Kind, existing: Stored, metadata: Raw, patched: bool) -> None:
        name = existing.key.name
        uid = metadata.get("uid")
        if uid and uid != existing.raw["metadata"]["uid"]:
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
        """PATCH; ``form`` is ``json``, ``merge``, ``strategic`` or ``apply``. Gives the object and if it is new.

        Raises:
            StatusError: 400, 404, 409, 422, 500.
        """
        existing = self.collection(kind).get(Key(namespace, name))
        if form == "apply":
            return self._apply(kind, namespace, name, existing, patch, options, subresource)
        if existing is None:
            raise StatusError.not_found(kind.plural, kind.group, name)
        old = {**existing.raw, "apiVersion": kind.api_version}
        match form:
            case "json":
                patched = patches.json_patch(old, patch)
            case "merge":
                if not isinstance(patch, dict):
                    raise StatusError.bad_request("error decoding patch: json: cannot unmarshal array")
                patched = patches.merge_patch(old, patch)
            case _:
                patched = patches.strategic_merge(old, patch, kind.type)
        complain = _bad_patch()
        if not isinstance(patched, dict) or patched.get("kind") != kind.kind:
            raise complain(f"the patch makes no {kind.kind}")
        if kind.custom and patched.get("apiVersion") != kind.api_version:
            raise complain("the patch changes apiVersion")
        raw, context = self._decode(kind, patched, options, complain)
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
            raise StatusError.bad_request(f"invalid object type: {group}/{version}, Kind={given.get('kind', '')}")
        metadata = given.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise StatusError.bad_request("metadata must be an object")
        if metadata.get("managedFields") is not None:
            raise StatusError.bad_request("metadata.managedFields must be nil")
        if metadata.setdefault("name", name) != name:
            self._check_name(name, metadata)
        self._locate(kind, namespace, metadata)
        if existing is None and subresource:
            raise StatusError.not_found(kind.plural, kind.group, name)
        applied = self._typed(kind, given, name)
        if kind.status:
            applied = _only(applied, subresource, kind)
        bare: Raw = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"name": name}}
        live = {**existing.raw, "apiVersion": kind.api_version} if existing else bare
        manager = self._manager(kind, options, subresource, self.now())
        merged = managed.apply(kind.type, live, applied, manager, force=options.force)
        if metadata.get("resourceVersion") and existing:
            merged["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        raw, context = self._decode(kind, merged, options, _bad_patch())
        if existing is None:
            return self._create(kind, namespace, raw, context, options, applied=True), True
        return self._replace(kind, existing, raw, context, options, subresource, applied=True), False

    def _typed(self, kind: Kind, given: Raw, name: str) -> Raw:
        """The applied configuration with canonical values; unknown fields and wrong types are errors here."""
        context = Context(defaults=False)
        where = f"failed to create typed patch object (/{name}; {kind.api_version}, Kind={kind.kind}): "
        try:
            decoded = kind.type.decode(given, "", context)
        except WrongType as e:
            raise StatusError.internal(where + str(e)) from None
        if context.unknown:
            raise StatusError.internal(f"{where}.{context.unknown[0]}: field not declared in schema")
        projected = _project({**decoded, "kind": kind.kind, "apiVersion": kind.api_version}, given)
        assert isinstance(projected, dict)
        return projected

    # --- delete ---

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Raw:
        """DELETE: marks the object, or removes it if nothing holds it. Gives what the server answers with.

        Raises:
            StatusError: 404, 409 (preconditions).
        """
        existing = self.get(kind, namespace, name)
        old = existing.raw
        metadata = dict(old["metadata"])
        if options.uid and options.uid != metadata["uid"]:
            raise StatusError.conflict(
                kind.plural,
                kind.group,
                name,
                f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {metadata['uid']}",
            )
        if options.version and options.version != metadata["resourceVersion"]:
            raise StatusError.conflict(
                kind.plural,
                kind.group,
                name,
                f"Precondition failed: ResourceVersion in precondition: {options.version}, "
                f"ResourceVersion in object meta: {metadata['resourceVersion']}",
            )
        raw = {**old, "metadata": metadata}
        if kind.kind == "Namespace" and not kind.group:
            return self._terminate_namespace(kind, existing, raw, options)
        self._propagate(metadata, options.propagation)
        period = strategy.grace_period(kind, old, options.grace)
        if "deletionTimestamp" in metadata:
            current = metadata.get("deletionGracePeriodSeconds", 0)
            if (period or 0) >= current:
                if current or metadata.get("finalizers"):
                    return self._mark(kind, existing, raw, options)
                period = 0
            else:
                moment = datetime.fromisoformat(metadata["deletionTimestamp"])
                moment -= timedelta(seconds=current - (period or 0))
                metadata["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
                metadata["deletionGracePeriodSeconds"] = period or 0
        elif period is not None or metadata.get("finalizers"):
            metadata["deletionTimestamp"] = timestamp(self.clock() + (period or 0))
            metadata["deletionGracePeriodSeconds"] = period or 0
            if metadata.get("generation"):
                metadata["generation"] += 1
        if metadata.get("finalizers") or period:
            return self._mark(kind, existing, raw, options)
        if options.dry_run:
            return raw if kind.answers_object else self._gone(kind, raw)
        last = self._finish_deletion(kind, existing.key, raw)
        return last if kind.answers_object else self._gone(kind, raw)

    @staticmethod
    def _gone(kind: Kind, raw: Raw) -> Raw:
        metadata = raw["metadata"]
        return success(kind=kind.plural, group=kind.group, name=metadata["name"], uid=metadata["uid"])

    @staticmethod
    def _propagate(metadata: Raw, policy: str) -> None:
        finalizers = [
            f for f in metadata.get("finalizers") or [] if not policy or f not in ("orphan", "foregroundDeletion")
        ]
        if policy in ("Foreground", "Orphan"):
            finalizers.append("foregroundDeletion" if policy == "Foreground" else "orphan")
        if finalizers != (metadata.get("finalizers") or []):
            metadata["finalizers"] = finalizers

    def _mark(self, kind: Kind, existing: Stored, raw: Raw, options: DeleteOptions) -> Raw:
        if options.dry_run or raw == existing.raw:
            return raw
        self.collection(kind).put(existing.key, raw)
        if kind.kind == "CustomResourceDefinition":
            self._after_write(kind, raw)
        return raw

    def _finish_deletion(self, kind: Kind, key: Key, last: Raw | None = None) -> Raw:
        removed = self.collection(kind).remove(key, last)
        if kind.kind == "CustomResourceDefinition":
            self._withdraw(removed.raw)
        if kind.namespaced:
            self._finish_namespace(key.namespace)
        return removed.raw

    # --- namespaces: the little of the namespace controller that kubectl delete namespace waits for ---

    def _terminate_namespace(self, kind: Kind, existing: Stored, raw: Raw, options: DeleteOptions) -> Raw:
        metadata = raw["metadata"]
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = self.now()
            raw["status"] = {**(raw.get("status") or {}), "phase": "Terminating"}
            if options.dry_run:
                return raw
            self.collection(kind).put(existing.key, raw)
            for collection in self.store.collections():
                for stored in collection.list(existing.key.name):
                    inner = next(
                        (k for k in self.kinds if k.group == collection.group and k.plural == collection.plural),
                        None,
                    )
                    if inner is not None and collection.get(stored.key) is not None:
                        self.delete(inner, stored.key.namespace, stored.key.name, DeleteOptions())
            self._finish_namespace(existing.key.name)
        return raw

    def _finish_namespace(self, name: str) -> None:
        namespaces = self.store.collection("", "namespaces")
        found = namespaces.get(Key("", name))
        if found is None or "deletionTimestamp" not in found.raw["metadata"]:
            return
        if found.raw["metadata"].get("finalizers"):
            return
        if not any(name in c.by_namespace for c in self.store.collections()):
            namespaces.remove(found.key)

    # --- CustomResourceDefinitions ---

    def _after_write(self, kind: Kind, raw: Raw) -> None:
        if kind.kind != "CustomResourceDefinition":
            return
        name = raw["metadata"]["name"]
        if "deletionTimestamp" in raw["metadata"]:
            return
        established = crds.established(raw, self.now())
        if established is not None:
            self.collection(kind).put(Key("", name), established)
            raw["metadata"]["resourceVersion"] = established["metadata"]["resourceVersion"]
            raw["status"] = established["status"]
        self.kinds.remove(raw["spec"]["group"], raw["spec"]["names"]["plural"])
        for custom in crds.kinds(raw):
            self.kinds.add(custom)

    def _withdraw(self, raw: Raw) -> None:
        group, plural = raw["spec"]["group"], raw["spec"]["names"]["plural"]
        collection = self.store.collection(group, plural)
        for stored in collection.list():
            collection.remove(stored.key)
        self.kinds.remove(group, plural)


Complaint = Callable[[str], StatusError]


def _cannot_handle(kind: Kind) -> Complaint:
    def complain(text: str) -> StatusError:
        return StatusError.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {text}'
        )

    return complain


def _bad_patch() -> Complaint:
    def complain(text: str) -> StatusError:
        return StatusError.invalid("", "", "", [Cause("FieldValueInvalid", f"Invalid value: {text}", "patch")])

    return complain


def _carry_system_fields(old: Raw, new: Raw) -> None:
    new["uid"] = old["uid"]
    new["creationTimestamp"] = old["creationTimestamp"]
    new.pop("selfLink", None)
    for name in ("generateName", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if name in old and not new.get(name):
            new[name] = old[name]


def _waiting(metadata: Raw) -> bool:
    return bool(metadata.get("deletionGracePeriodSeconds"))


def _only(applied: Raw, subresource: str, kind: Kind) -> Raw:
    """Of an applied configuration, what its endpoint may set."""
    if not subresource:
        return {k: v for k, v in applied.items() if k != "status"}
    keep = {"kind", "apiVersion", "status"} | ({"metadata"} if kind.status_keeps_metadata else set())
    return {k: v for k, v in applied.items() if k in keep}


def _project(decoded: Any, given: Any) -> Any:
    """Of a decoded value, what was given: decoding adds empty structs that nobody asked for."""
    if isinstance(decoded, dict) and isinstance(given, dict):
        return {k: _project(decoded[k], v) for k, v in given.items() if k in decoded}
    if isinstance(decoded, list) and isinstance(given, list) and len(decoded) == len(given):
        return [_project(d, g) for d, g in zip(decoded, given, strict=True)]
    return decoded

