"""Bodies of requests as objects: types checked, unknown fields reported, defaults filled in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dra_driver.sim.apiserver.objects import versions
from dra_driver.sim.apiserver.objects.fields import Context, WrongType
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Cause, Raw, StatusError

__all__ = [
    "Complaint",
    "bad_patch",
    "cannot_handle",
    "check_type",
    "decode",
    "only_endpoint",
    "patched_object",
    "typed",
]

Complaint = Callable[[str], StatusError]


class DecodingOptions(Protocol):
    """The options of a write that decoding reads, and to which it adds warnings.

    Attributes:
        validation: ``Ignore``, ``Warn`` or ``Strict``.
        duplicates: paths of duplicate keys that the decoder of the body has found.
        warnings: texts for the ``Warning`` header.
    """

    validation: str
    duplicates: list[str]
    warnings: list[str]


def decode(
    kind: Kind, stored: Kind, body: object, options: DecodingOptions, complain: Complaint, now: str
) -> tuple[Raw, Context]:
    """Decode an object, with defaults; report unknown fields as ``fieldValidation`` demands.

    Args:
        kind: the kind in the version of the request.
        stored: the kind in the version in which objects are stored.
        body: plain data.
        options: options of the request; warnings are added to them.
        complain: returns the error for a body that cannot be decoded.
        now: timestamp for fields that default to the present time.
    """
    context = Context(now)
    if body is None and not kind.custom:
        body = {}
    if not isinstance(body, dict):
        raise StatusError.bad_request(
            "the object provided is unrecognized (must be of type " + kind.kind + ")"
        )
    unknown = context.unknown
    try:
        if versions.converts(kind.api_version):
            given = Context(now, defaults=False)
            kind.type.decode(body, "", given)
            unknown = given.unknown
            body = versions.to_storage(kind.api_version, kind.kind, body)
        decoded = stored.type.decode(body, "", context)
    except WrongType as e:
        raise complain(str(e)) from None
    findings = [f'duplicate field "{d}"' for d in options.duplicates]
    findings += [f'unknown field "{u}"' for u in unknown]
    if findings and options.validation == "Strict":
        raise complain("strict decoding error: " + ", ".join(findings))
    if findings and options.validation != "Ignore":
        options.warnings += findings
    raw: Raw = {"kind": kind.kind, "apiVersion": kind.storage_version, **decoded}
    if not isinstance(raw.get("metadata"), dict):
        raw["metadata"] = {}
    _drop_duplicate_owners(raw["metadata"], options)
    return raw, context


def _drop_duplicate_owners(metadata: Raw, options: DecodingOptions) -> None:
    owners: list[Raw] = metadata.get("ownerReferences") or []
    kept: list[Raw] = []
    for owner in owners:
        if owner not in kept:
            kept.append(owner)
    if len(kept) < len(owners):
        twice = sorted({o.get("uid", "") for o in owners if owners.count(o) > 1})
        metadata["ownerReferences"] = kept
        options.warnings.append(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in "
            "1.20+, and may reject such requests as early as 1.24; please fix your requests; "
            "duplicate UID(s) observed: " + ", ".join(twice)
        )


def check_type(kind: Kind, body: object) -> None:
    """Refuse a body that states another kind or version.

    Raises:
        StatusError: 400.
    """
    if body is None and not kind.custom:
        return  # Go decodes null as an empty object
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
    if kind.custom and given_version == kind.api_version and given_kind != kind.kind:
        cause = Cause("FieldValueInvalid", f"Invalid value: {given_kind!r}: must be {kind.kind}", "kind")
        raise StatusError.invalid(str(given_kind), kind.group, "", [cause])
    if (given_kind and given_kind != kind.kind) or (given_version and given_version != kind.api_version):
        version = str(given_version or kind.api_version).rpartition("/")[2]
        raise StatusError.bad_request(
            f'{given_kind or kind.kind} in version "{version}" cannot be handled as a {kind.kind}: '
            f'no kind "{given_kind or kind.kind}" is registered for version "{given_version}"'
        )


def patched_object(kind: Kind, patched: Any, form: str) -> Raw:
    """Return a patched object, and check that its kind has not changed.

    A built-in object may lose its kind and apiVersion; a strategic merge cannot change them at all.

    Raises:
        StatusError: 422 if it has another kind or version now.
    """
    if not isinstance(patched, dict):
        raise bad_patch(f"the patch makes no {kind.kind}")
    if form == "strategic":
        return {**patched, "kind": kind.kind, "apiVersion": kind.api_version}
    for name, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        given = patched.get(name)
        if given != wanted and kind.custom:
            cause = Cause("FieldValueInvalid", f"Invalid value: {given!r}: must be {wanted}", name)
            raise StatusError.invalid(kind.kind, kind.group, "", [cause])
        if given and given != wanted:
            raise bad_patch(f"the patch makes {name} {given!r}, not {wanted!r}")
    return patched


def typed(kind: Kind, stored: Kind, given: Raw, name: str) -> Raw:
    """Return the applied configuration with canonical values; unknown fields and wrong types are errors."""
    where = f"failed to create typed patch object (/{name}; {kind.api_version}, Kind={kind.kind}): "
    context = Context(defaults=False)
    try:
        decoded = kind.type.decode(given, "", context)
        if versions.converts(kind.api_version):
            given = versions.to_storage(kind.api_version, kind.kind, given)
            decoded = stored.type.decode(given, "", Context(defaults=False))
    except WrongType as e:
        raise StatusError.internal(where + str(e)) from None
    if context.unknown:
        raise StatusError.internal(f"{where}.{context.unknown[0]}: field not declared in schema")
    projected = _project({**decoded, "kind": kind.kind, "apiVersion": kind.api_version}, given)
    assert isinstance(projected, dict)
    return projected


def _project(decoded: Any, given: Any) -> Any:
    """Return the part of a decoded value that was given: decoding adds empty structs."""
    if isinstance(decoded, dict) and isinstance(given, dict):
        return {k: _project(decoded[k], v) for k, v in given.items() if k in decoded}
    if isinstance(decoded, list) and isinstance(given, list) and len(decoded) == len(given):
        return [_project(d, g) for d, g in zip(decoded, given, strict=True)]
    return decoded


def only_endpoint(applied: Raw, subresource: str, kind: Kind) -> Raw:
    """Return the part of an applied configuration that its endpoint may set."""
    if not subresource:
        return {k: v for k, v in applied.items() if k != "status"}
    keep = {"kind", "apiVersion", "status"} | ({"metadata"} if kind.status_keeps_metadata else set())
    return {k: v for k, v in applied.items() if k in keep}


def cannot_handle(kind: Kind) -> Complaint:
    """Return a function that makes error 400, for a body that is no object of this kind."""

    def complain(text: str) -> StatusError:
        return StatusError.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {text}'
        )

    return complain


def bad_patch(text: str) -> StatusError:
    """Return error 422, for a patch whose result is no object of the kind."""
    return StatusError.invalid("", "", "", [Cause("FieldValueInvalid", f"Invalid value: {text}", "patch")])
