"""Fields that this version does not know, where they may change what an allocation means.

A newer Kubernetes may add a field to a request, a device or a class. Ignored, it gives a wrong answer: other
devices than the claim asks for, or a device that could not be had. The structs of these parts
(``ExactWire``) refuse unknown fields, so an object that has none costs nothing. One that has some is decoded
once more without them, and the member ``newer`` of the struct around them names the first: what has it
needs a newer controller. In all other places unknown fields are ignored.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dra_driver.api.meta import ExactWire
from dra_driver.api.nulls import bare_type, elements_of, inner_type, is_map, members_of

__all__ = ["NEWER", "without_unknown"]

NEWER: Final = "newer"
_NULL: Final = b"null"
# Of a path that is kept: names of fields come from whoever writes the object.
_LONGEST: Final = 200


def without_unknown(kind: Any, data: bytes) -> bytes:
    """Return JSON without the fields that structs refuse as unknown; the same object where there are none.

    Args:
        kind: what the JSON is decoded into.
        data: JSON.

    Raises:
        msgspec.DecodeError: not JSON, as far as it is looked at.
        RecursionError: it is nested too deeply.
    """
    return _without(kind, data, "")[0]


def _without(kind: Any, data: bytes, path: str) -> tuple[bytes, str]:
    """Return JSON without unknown fields, and the path of the first that no struct inside has noted."""
    kind, _ = bare_type(kind)
    start = data.lstrip()[:1]
    inner = inner_type(kind)
    if start == b"{" and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, data, path)
    if inner is None or start not in (b"{", b"["):
        return data, ""
    if is_map(kind) != (start == b"{"):
        return data, ""
    if start == b"{":
        found = [(name, *_without(inner, raw, f"{path}[{name}]"), raw) for name, raw in members_of(data)]
        if all(new is raw for _, new, _, raw in found):
            return data, ""
        text = b"{%s}" % b",".join(b"%s:%s" % (msgspec.json.encode(n), new) for n, new, *_ in found)
        return text, next((first for _, _, first, _ in found if first), "")
    elements = [(*_without(inner, raw, f"{path}[{i}]"), raw) for i, raw in enumerate(elements_of(data))]
    if all(new is raw for new, _, raw in elements):
        return data, ""
    return b"[%s]" % b",".join(new for new, *_ in elements), next((f for _, f, _ in elements if f), "")


def _struct(kind: type[msgspec.Struct], data: bytes, path: str) -> tuple[bytes, str]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    exact = issubclass(kind, ExactWire)
    first, changed = "", False
    members: dict[str, bytes] = {}
    for name, raw in members_of(data):
        where = f"{path}.{name}" if path else name
        if name in fields:
            new, found = _without(fields[name], raw, where)
            members[name], changed = new, changed or new is not raw
        elif exact:
            changed, found = True, "" if raw == _NULL else where[:_LONGEST]
        else:
            members[name], found = raw, ""
        first = first or found
    if not changed:
        return data, ""
    if first and NEWER in fields:
        members[NEWER], first = msgspec.json.encode(first), ""
    text = b",".join(b"%s:%s" % (msgspec.json.encode(name), raw) for name, raw in members.items())
    return b"{%s}" % text, first
