"""What is kept of ``metadata``, and how a limit is named that something exceeds."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from dra_driver.api import codec
from dra_driver.api.meta import ObjectMeta, OwnerReference, Uid

__all__ = [
    "LONGEST_NAME",
    "LONGEST_NOTE",
    "cut",
    "only",
    "size_of",
    "too_large",
    "too_many",
    "trimmed_metadata",
]

LONGEST_NAME: Final = 254
"""One character more than any name has: a text that was cut equals no name."""

LONGEST_NOTE: Final = 4_096
"""Characters of an annotation that is read: more than any that makes sense, so what is cut makes none."""


def cut(text: str, most: int = LONGEST_NAME) -> str:
    """Return a text that is no longer than a name."""
    return text if len(text) <= most else text[:most]


def size_of(*values: object) -> int:
    """Return the bytes that values have as JSON, which is about what their texts take in memory."""
    return len(codec.encode(values)) - len(values) - 1


def too_many(what: str, field: str, number: int, most: int) -> str:
    """Return that a field has too many entries; empty where it has not.

    Args:
        what: the object, such as ``the pod``.
        field: path of the field.
        number: of its entries.
        most: that are served.
    """
    if number <= most:
        return ""
    return f"{field} of {what} has {number} entries, and the controller serves at most {most}"


def too_large(what: str, field: str, value: object, most: int) -> str:
    """Return that a field has too many bytes of JSON; empty where it has not."""
    size = size_of(value)
    if size <= most:
        return ""
    return f"{field} of {what} has {size} bytes of JSON, and the controller serves at most {most}"


def only(texts: Mapping[str, str] | None, keys: Set[str]) -> Mapping[str, str] | None:
    """Return the labels or annotations with these keys, long ones cut; None where there are none."""
    if not texts or keys.isdisjoint(texts):
        return None
    return {key: cut(texts[key], LONGEST_NOTE) for key in sorted(keys) if key in texts}


def trimmed_metadata(
    meta: ObjectMeta,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: tuple[str, ...] | None = None,
) -> ObjectMeta:
    """Return the metadata with these labels, annotations and finalizers, and with its controlling owner only.

    There is one at most (apimachinery, ``ValidateOwnerReferences``).
    """
    owners = tuple(_short(ref) for ref in meta.owner_references or () if ref.controller)
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        labels=labels,
        annotations=annotations,
        finalizers=finalizers,
        owner_references=owners[:1] or None,
    )


def _short(ref: OwnerReference) -> OwnerReference:
    return OwnerReference(
        api_version=cut(ref.api_version),
        kind=cut(ref.kind),
        name=cut(ref.name),
        uid=Uid(cut(ref.uid)),
        controller=True,
    )
