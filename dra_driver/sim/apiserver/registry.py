"""Create, read, update, patch, delete: what the API does, without HTTP.

Everything here is synchronous: one call is one step of the event loop, so no two writers ever mix.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dra_driver.sim.apiserver import (
    admission,
    crds,
    deletion,
    managed,
    patches,
    strategy,
    taint_preview,
    validation,
)
from dra_driver.sim.apiserver.deletion import DeleteOptions
from dra_driver.sim.apiserver.fields import Context, WrongType
from dra_driver.sim.apiserver.kinds import Kind, Kinds
from dra_driver.sim.apiserver.status import Cause, Causes, Raw, StatusError
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


class Registry:
    """All verbs on all kinds.

    Args:
        store: where objects live.
        clock: seconds since the epoch.

    Attributes:
        collected: group and plural name of the kinds that a garbage collector looks after; only those know
            foreground deletion and orphans.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self.kinds = Kinds()
        self.later: deletion.Later = deletion.call_later
        self.collected: frozenset[tuple[str, str]] = frozenset()

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

    def at(self, seconds: float) -> str:
        """The time in ``seconds`` from now."""
        return timestamp(self.clock() + seconds)

    # --- decoding ---

    def _decode(self, kind: Kind, body: object, options: Options, complain: Complaint) -> tuple[Raw, Context]:
        """The object that ``body`` is, with defaults; reports unknown fields as ``fieldValidation`` says."""
        context = Context(self.now())
        if not isinstance(body, dict):
            raise StatusError.bad_request(
                "the object provided is unrecognized (must be of type " + kind.kind + ")"
            )
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
                f"the object provided is unrecognized (must be of type {kind.kind}): "
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {word} into Go value"
            )
        given_kind, given_version = body.get("kind"), body.get("apiVersion")
        if kind.custom and (not given_kind or not given_version):
            missing = "Kind" if not given_kind else "apiVersion"
            raise StatusError.bad_request(
                f"the object provided is unrecognized (must be of type {kind.kind}): "
                f"Object '{missing}' is missing"
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
        admission.admit_create(self.store, kind, namespace, raw)
        strategy.prepare_create(kind, raw, now)
        causes = validation.create(kind, raw, self._surroundings(kind, namespace, options))
        if causes:
            raise StatusError.invalid(kind.kind, kind.group, metadata.get("name", ""), causes)
        if version not in ("", "0") and not applied and not options.dry_run:
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
        if kind.kind == "DeviceTaintRule" and raw["spec"]["taint"]["effect"] == "None":
            self.later(0, lambda: self._preview(kind, key))
        return self._put(kind, key, raw)

    def _preview(self, kind: Kind, key: Key) -> None:
        found = self.collection(kind).get(key)
        if found is not None:
            self.collection(kind).put(key, taint_preview.preview(self, found.raw))

    def _put(self, kind: Kind, key: Key, raw: Raw) -> Raw:
        """Stores an object; a CustomResourceDefinition is served from then on."""
        if kind.kind != "CustomResourceDefinition":
            return self.collection(kind).put(key, raw).raw
        if "deletionTimestamp" not in raw["metadata"]:
            raw = crds.established(raw, self.now()) or raw
            self.kinds.remove(raw["spec"]["group"], raw["spec"]["names"]["plural"])
            for custom in crds.kinds(raw):
                self.kinds.add(custom)
        return self.collection(kind).put(key, raw).raw

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
            deletion.finish(self, kind, existing.key)
            return raw
        return self._put(kind, existing.key, raw)

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
        """PATCH. Gives the object and whether it was created.

        Args:
            kind: of the object.
            namespace: empty for cluster-scoped kinds.
            name: of the object.
            form: ``json``, ``merge``, ``strategic`` or ``apply``.
            patch: the decoded body.
            options: of the request.
            subresource: ``status`` or empty.

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
            raise StatusError.bad_request(
                f"invalid object type: {group}/{version}, Kind={given.get('kind', '')}"
            )
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

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Raw:
        """DELETE: see ``deletion.delete``."""
        return deletion.delete(self, kind, namespace, name, options)


Complaint = Callable[[str], StatusError]


def _cannot_handle(kind: Kind) -> Complaint:
    def complain(text: str) -> StatusError:
        return StatusError.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {text}'
        )

    return complain


def _bad_patch() -> Complaint:
    def complain(text: str) -> StatusError:
        return StatusError.invalid(
            "", "", "", [Cause("FieldValueInvalid", f"Invalid value: {text}", "patch")]
        )

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
