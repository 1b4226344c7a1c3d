"""JSON patch, merge patch and strategic merge patch on plain data. Each returns a new object."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dra_driver.sim.apiserver.objects.fields import Field, ListType, MapType, Struct, Type
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = ["json_patch", "merge_patch", "strategic_merge"]


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            out[key] = merge_patch(out.get(key), value)
        else:
            out[key] = _without_nulls(value)
    return out


def _without_nulls(value: Any) -> Any:
    """Return a list of a patch without the nulls in its objects, as the real server drops them."""
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return value


# --- JSON patch (RFC 6902) ---


def json_patch(target: Raw, patch: object) -> Any:
    """Apply a JSON patch (RFC 6902).

    Raises:
        StatusError: 400 for a malformed patch, 422 for one that does not apply.
    """
    if not isinstance(patch, list) or not all(isinstance(o, dict) for o in patch):
        raise StatusError.bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type Patch"
        )
    if len(patch) > 10_000:
        raise StatusError(
            413, "RequestEntityTooLarge", f"Too many operations in the patch: {len(patch)}, at most 10000"
        )
    document: Any = copy.deepcopy(target)
    for operation in patch:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as e:
            text = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", text) from e
    return document


def _operate(document: Any, operation: Mapping[str, Any]) -> Any:
    name = operation["op"]
    path = _pointer(operation["path"])
    if name == "test":
        if _lookup_or_none(document, path) != operation.get("value"):
            raise ValueError("test failed")
        return document
    if name == "remove":
        return _remove(document, path)
    if name == "add":
        return _add(document, path, operation.get("value"))
    if name == "replace":
        if not path:
            return operation["value"]
        if isinstance(_lookup(document, path[:-1]), list):
            document = _remove(document, path)
        # The real server also replaces values that are not there.
        return _add(document, path, operation.get("value"))
    if name in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy.deepcopy(_lookup(document, source))
        if name == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    raise ValueError(f"unknown operation {name}")


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError("a JSON pointer starts with a slash")
    return [p.replace("~1", "/").replace("~0", "~") for p in text[1:].split("/")]


def _index(items: list[Any], step: str) -> int:
    index = int(step)
    return index + len(items) if index < 0 else index


def _lookup(document: Any, path: list[str]) -> Any:
    for step in path:
        document = document[_index(document, step)] if isinstance(document, list) else document[step]
    return document


def _lookup_or_none(document: Any, path: list[str]) -> Any:
    """Look up a value; one that is not there is null, if its parent is there."""
    parent = _lookup(document, path[:-1])
    return parent.get(path[-1]) if path and isinstance(parent, dict) else _lookup(document, path)


def _remove(document: Any, path: list[str]) -> Any:
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1])]
    else:
        del parent[path[-1]]
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else _index(parent, path[-1])
        if not 0 <= at <= len(parent):
            raise IndexError(at)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise TypeError("no container")
    return document


# --- strategic merge patch ---

_DELETE_ITEMS = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"
_PATCH = "$patch"


def strategic_merge(target: Raw, patch: object, type_: Type) -> Raw:
    """Apply a strategic merge patch, by the strategies of the kind's fields.

    Raises:
        StatusError: 400 for a patch that is no object, 422 for a list item without its merge key.
    """
    if not isinstance(patch, dict):
        raise StatusError.bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}"
        )
    merged = _merge_object(target, patch, type_)
    return merged if isinstance(merged, dict) else {}


def _merge_object(target: Any, patch: Raw, type_: Type | None) -> Any:
    directive = patch.get(_PATCH)
    if directive is not None and not isinstance(target, dict):
        return {}  # an instruction for an object that is not there has no effect
    if directive == "replace":
        return {k: v for k, v in patch.items() if k != _PATCH}
    if directive == "delete":
        return {}
    if directive is not None and directive != "merge":
        raise StatusError.internal(f"unknown patch type: {directive} in map: {patch}")
    out = dict(target) if isinstance(target, dict) else {}
    if _RETAIN in patch:
        keep = set(patch[_RETAIN])
        out = {k: v for k, v in out.items() if k in keep}
    fields = type_.fields if isinstance(type_, Struct) else {}
    for key, value in patch.items():
        if key.startswith(_DELETE_ITEMS):
            name = key[len(_DELETE_ITEMS) :]
            if isinstance(out.get(name), list):
                out[name] = [v for v in out[name] if v not in value]
        elif key.startswith(_ORDER) or key in (_PATCH, _RETAIN):
            continue
        elif value is None:
            out.pop(key, None)
        else:
            _check_order(value, patch.get(_ORDER + key), fields.get(key))
            merged = _merge_value(out.get(key), value, fields.get(key), type_)
            out[key] = _ordered(merged, patch.get(_ORDER + key), fields.get(key))
    for key, order in patch.items():
        if key.startswith(_ORDER) and key[len(_ORDER) :] not in patch:
            name = key[len(_ORDER) :]
            if name in out:
                out[name] = _ordered(out[name], order, fields.get(name))
    return out


def _merge_value(old: Any, value: Any, field: Field | None, holder: Type | None) -> Any:
    inner: Type | None = field.type if field else holder.item if isinstance(holder, MapType) else None
    if isinstance(value, dict):
        return _merge_object(old, value, inner)
    if isinstance(value, list) and field and "merge" in field.patch:
        if not isinstance(old, list):
            return [v for v in value if not (isinstance(v, dict) and _PATCH in v)]
        if len({type(v) for v in (*old, *value)}) > 1:
            raise StatusError.internal(f"list element types are not identical: [{old} {value}]")
        if field.merge_key:
            item = inner.item if isinstance(inner, ListType) else None
            return _merge_list(old, value, field, item)
        merged: list[Any] = []
        for item_value in (*value, *old):
            if item_value not in merged:
                merged.append(item_value)
        return merged
    return value


def _merge_list(old: list[Any], patch: list[Any], field: Field, item: Type | None) -> list[Any]:
    key = field.merge_key
    if any(isinstance(p, dict) and p.get(_PATCH) == "replace" for p in patch):
        return [p for p in patch if not (isinstance(p, dict) and p.get(_PATCH) == "replace")]
    current = {o.get(key): o for o in old if isinstance(o, dict)}
    positions = {name: i for i, name in enumerate(current)}
    named: dict[Any, Any] = {}
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise StatusError.internal(f"map: {entry} does not contain declared merge key: {key}")
        name = entry[key]
        if isinstance(name, dict | list):
            raise StatusError.internal(f"map: {entry} has no scalar as merge key {key}")
        if entry.get(_PATCH) == "delete":
            current.pop(name, None)
            continue
        before = named.get(name, current.pop(name, None))
        plain = {k: v for k, v in entry.items() if k != _PATCH and v is not None}
        named[name] = plain if before is None else _merge_object(before, entry, item)
    return _interleaved(named, current, positions)


def _interleaved(named: dict[Any, Any], rest: dict[Any, Any], positions: Mapping[Any, int]) -> list[Any]:
    """Return the items that the patch names in its order; the others keep their relative places."""
    out = []
    others = list(rest)
    for name, value in named.items():
        while others and name in positions and positions[others[0]] < positions[name]:
            out.append(rest[others.pop(0)])
        out.append(value)
    return out + [rest[o] for o in others]


def _check_order(items: Any, order: Any, field: Field | None) -> None:
    """Check that the items of a patch come in the order that it prescribes."""
    if not isinstance(items, list) or not isinstance(order, list):
        return
    key = field.merge_key if field else ""

    def names(values: list[Any]) -> list[Any]:
        kept = (v for v in values if not (isinstance(v, dict) and _PATCH in v))
        return [v.get(key) if isinstance(v, dict) else v for v in kept]

    wanted = names(order)
    for name in names(items):
        if name not in wanted:
            text = f"The order in patch list:\n{items}\n doesn't match {_ORDER[:-1]} list:\n{order}\n"
            raise StatusError.internal(text)
        wanted = wanted[wanted.index(name) + 1 :]


def _ordered(items: Any, order: Any, field: Field | None) -> Any:
    if not isinstance(items, list) or not isinstance(order, list):
        return items
    key = field.merge_key if field else ""
    wanted = [o.get(key) if isinstance(o, dict) else o for o in order]

    def rank(item: Any) -> int:
        value = item.get(key) if isinstance(item, dict) else item
        return wanted.index(value) if value in wanted else len(wanted)

    return sorted(items, key=rank)
