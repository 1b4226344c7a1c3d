"""Field ownership (``metadata.managedFields``) and the merge of server-side apply.

A set of fields is a set of paths; a path is a tuple of elements as in ``fieldsV1``: ``f:name`` for fields and
map keys, ``k:{"name":"a"}`` for items of keyed lists, ``v:"x"`` for items of sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.sim.apiserver.objects.fields import ListType, MapType, Struct, Type
from dra_driver.sim.apiserver.objects.status import Cause, Raw, StatusError

__all__ = ["Manager", "apply", "record_update"]

Path = tuple[str, ...]
Paths = set[Path]

# Fields that no manager can own.
_STRIPPED_META = frozenset(
    [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "managedFields",
        "resourceVersion",
    ]
)
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Manager:
    """A field manager: its name, the API version, the subresource, and the time of its entry."""

    name: str
    api_version: str
    subresource: str
    now: str

    def entry(self, operation: str, fields: Paths, time: str) -> Raw:
        """Return an entry of ``managedFields``."""
        raw: Raw = {
            "manager": self.name,
            "operation": operation,
            "apiVersion": self.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(fields),
        }
        if self.subresource:
            raw["subresource"] = self.subresource
        return raw

    def owns(self, entry: Raw, operation: str) -> bool:
        """Return whether the entry is this manager's."""
        return (
            entry.get("manager") == self.name
            and entry.get("operation") == operation
            and entry.get("subresource", "") == self.subresource
            and entry.get("apiVersion") == self.api_version
        )


# --- sets of paths ---


def _collect(type_: Type | None, value: Any, path: Path, out: Paths) -> None:
    if isinstance(value, dict) and value:
        if isinstance(type_, Struct) and not type_.atomic:
            fields = type_.fields
            for key, item in value.items():
                field = fields.get(key)
                step = (*path, "f:" + key)
                if field is None or field.atomic:
                    out.add(step)
                else:
                    _collect(field.type, item, step, out)
            return
        if isinstance(type_, MapType):
            for key, item in value.items():
                _collect(type_.item, item, (*path, "f:" + key), out)
            return
    elif isinstance(value, list) and isinstance(type_, ListType) and value:
        if type_.keys:
            for item in value:
                step = (*path, _item_key(item, type_.keys))
                out.add(step)
                if not (isinstance(type_.item, Struct) and type_.item.atomic):
                    _collect(type_.item, item, step, out)
            return
        if type_.is_set:
            out.update((*path, _value_key(item)) for item in value)
            return
    out.add(path)


def _item_key(item: Any, keys: tuple[str, ...]) -> str:
    found = {k: item[k] for k in sorted(keys) if isinstance(item, dict) and k in item}
    return "k:" + json.dumps(found, separators=(",", ":"))


def _value_key(item: Any) -> str:
    return "v:" + json.dumps(item, separators=(",", ":"))


def _owned(type_: Type, raw: Raw) -> Paths:
    out: Paths = set()
    _collect(type_, _without_empties(type_, _strip(raw)), (), out)
    out.discard(())
    return out


def _without_empties(type_: Type | None, value: Any) -> Any:
    """Return the value without empty lists that merge by item: they have nothing that can be owned."""
    if not isinstance(value, dict):
        return value
    fields = type_.fields if isinstance(type_, Struct) else {}
    out = {}
    for key, item in value.items():
        field = fields.get(key)
        inner = field.type if field else type_.item if isinstance(type_, MapType) else None
        if item == [] and isinstance(inner, ListType) and (inner.keys or inner.is_set):
            continue
        out[key] = _without_empties(inner, item)
    return out


def _strip(raw: Raw) -> Raw:
    out = {k: v for k, v in raw.items() if k not in ("apiVersion", "kind", "metadata")}
    metadata = {k: v for k, v in (raw.get("metadata") or {}).items() if k not in _STRIPPED_META}
    if metadata:
        out["metadata"] = metadata
    return out


def _diff(type_: Type | None, old: Any, new: Any, path: Path, changed: Paths, removed: Paths) -> None:
    if old is _MISSING:
        _collect(type_, new, path, changed)
    elif new is _MISSING:
        _collect(type_, old, path, removed)
    elif old == new:
        return
    elif isinstance(type_, Struct) and type_.atomic:
        changed.add(path)
    elif isinstance(old, dict) and isinstance(new, dict) and isinstance(type_, Struct | MapType):
        fields = type_.fields if isinstance(type_, Struct) else {}
        for key in {**old, **new}:
            field = fields.get(key)
            inner = field.type if field else type_.item if isinstance(type_, MapType) else None
            before, after = old.get(key, _MISSING), new.get(key, _MISSING)
            _diff(
                None if field and field.atomic else inner,
                before,
                after,
                (*path, "f:" + key),
                changed,
                removed,
            )
    elif isinstance(old, list) and isinstance(new, list) and isinstance(type_, ListType) and type_.keys:
        before_items = {_item_key(o, type_.keys): o for o in old}
        after_items = {_item_key(o, type_.keys): o for o in new}
        for step in {**before_items, **after_items}:
            before, after = before_items.get(step, _MISSING), after_items.get(step, _MISSING)
            if before is _MISSING:
                changed.add((*path, step))
            elif after is _MISSING:
                removed.add((*path, step))
            _diff(type_.item, before, after, (*path, step), changed, removed)
    elif isinstance(old, list) and isinstance(new, list) and isinstance(type_, ListType) and type_.is_set:
        before_set, after_set = {_value_key(o) for o in old}, {_value_key(o) for o in new}
        changed.update((*path, s) for s in after_set - before_set)
        removed.update((*path, s) for s in before_set - after_set)
    else:
        _collect(type_, old, path, removed)
        _collect(type_, new, path, changed)
        removed -= changed


def _tree(paths: Iterable[Path]) -> Raw:
    root: Raw = {}
    for path in sorted(paths, key=len, reverse=True):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        if node:
            node["."] = {}
    return root


def _paths(tree: Any, prefix: Path = ()) -> Paths:
    out: Paths = set()
    if not isinstance(tree, dict):
        return out
    stack: list[tuple[Path, Mapping[str, Any]]] = [(prefix, tree)]
    while stack:
        path, node = stack.pop()
        if not node:
            if path:
                out.add(path)
            continue
        for step, child in node.items():
            if step == ".":
                out.add(path)
            elif isinstance(child, dict):
                stack.append(((*path, step), child))
    return out


# --- updates ---


def record_update(type_: Type, old: Raw | None, new: Raw, manager: Manager) -> None:
    """Set ``metadata.managedFields`` of ``new`` by what an update (or create) by ``manager`` has changed.

    The entries to start from are those in ``new``, which patches carry, otherwise those of ``old``.
    """
    metadata = new["metadata"]
    given = metadata.get("managedFields")
    entries: list[Raw] = (
        given if given is not None else (old or {}).get("metadata", {}).get("managedFields") or []
    )
    changed: Paths = set()
    removed: Paths = set()
    if old is None:
        changed = _owned(type_, new)
        entries = []
    else:
        _diff(type_, _strip(old), _strip(new), (), changed, removed)
    # Unlike server-side apply, an update does not own empty values.
    values = _Values(new)
    emptied = {p for p in changed if not p or values.at(p) in ({}, [])}
    changed -= emptied
    removed |= emptied
    if changed or removed:
        entries = _updated(entries, changed, removed, manager)
    if entries:
        metadata["managedFields"] = entries
    else:
        metadata.pop("managedFields", None)


def _updated(entries: list[Raw], changed: Paths, removed: Paths, manager: Manager) -> list[Raw]:
    out = []
    mine: Raw | None = None
    lost = changed | removed
    for entry in entries:
        if manager.owns(entry, "Update"):
            mine = entry
            continue
        fields = _paths(entry.get("fieldsV1"))
        if fields.isdisjoint(lost):
            out.append(entry)
        elif left := fields - lost:
            out.append({**entry, "fieldsV1": _tree(left)})
    before = _paths(mine.get("fieldsV1")) if mine else set()
    after = (before | changed) - removed
    if mine and after == before:
        out.append(mine)
    elif after:
        out.append(manager.entry("Update", after, manager.now))
    return out


# --- server-side apply ---


def apply(type_: Type, live: Raw, applied: Raw, manager: Manager, *, force: bool) -> Raw:
    """Return the object after ``manager`` has applied its configuration.

    Args:
        type_: fields of the kind.
        live: the current object, or a bare one to create it.
        applied: the configuration as it was sent, with canonical values.
        manager: the manager that applies.
        force: whether fields are taken from their owners.

    Raises:
        StatusError: 409 with a cause for every field that another manager owns with another value.
    """
    wanted = _owned(type_, applied)
    merged = _merge(type_, live, applied)
    entries: list[Raw] = list(live.get("metadata", {}).get("managedFields") or [])
    mine = next((e for e in entries if manager.owns(e, "Apply")), None)
    others = [(e, _paths(e.get("fieldsV1"))) for e in entries if e is not mine]
    # An item of a keyed list is a value of its own only if nothing in it is owned: then it is atomic.
    holders = {p[:-1] for p in wanted}
    stored, made = _Values(live), _Values(merged)
    contested = {
        p
        for p in wanted
        if not p[-1].startswith("v:")
        and not (p[-1].startswith("k:") and p in holders)
        and stored.at(p) != made.at(p)
    }
    conflicts = [(e, p) for e, fields in others for p in sorted(fields & contested)]
    if conflicts and not force:
        raise _conflict(conflicts)
    kept = [(e, fields - contested) for e, fields in others]
    previous = _paths(mine.get("fieldsV1")) if mine else set()
    _remove(merged, previous - wanted, wanted.union(*(fields for _, fields in kept)))
    result = [
        e if len(fields) == len(before) else {**e, "fieldsV1": _tree(fields)}
        for (e, fields), (_, before) in zip(kept, others, strict=True)
        if fields
    ]
    if mine and previous == wanted:
        result.append(mine)
    elif wanted:
        result.append(manager.entry("Apply", wanted, manager.now))
    out: Raw = merged
    out["metadata"] = {**out.get("metadata", {}), "managedFields": result}
    return out


def _conflict(conflicts: list[tuple[Raw, Path]]) -> StatusError:
    causes = []
    for entry, path in conflicts:
        text = f'conflict with "{entry.get("manager")}"'
        if entry.get("subresource"):
            text += f' with subresource "{entry["subresource"]}"'
        causes.append(Cause("FieldManagerConflict", f"{text} using {entry.get('apiVersion')}", _dotted(path)))
    count = len(causes)
    details = "; ".join(f"{c.message}: {c.field}" for c in causes)
    text = f"Apply failed with {count} conflict{'s' * (count > 1)}: {details}"
    return StatusError(409, "Conflict", text, causes=causes)


def _dotted(path: Path) -> str:
    out = ""
    for step in path:
        if step.startswith("f:"):
            out += "." + step[2:]
        elif step.startswith("k:"):
            out += "[" + ",".join(f"{k}={json.dumps(v)}" for k, v in json.loads(step[2:]).items()) + "]"
        else:
            out += f"[={step[2:]}]"
    return out


def _merge(type_: Type | None, live: Any, applied: Any) -> Any:
    if isinstance(type_, Struct) and type_.atomic:
        return applied
    if isinstance(live, dict) and isinstance(applied, dict) and isinstance(type_, Struct | MapType):
        fields = type_.fields if isinstance(type_, Struct) else {}
        out = dict(live)
        for key, value in applied.items():
            field = fields.get(key)
            inner = field.type if field else type_.item if isinstance(type_, MapType) else None
            if key not in out or (field and field.atomic):
                out[key] = value
            else:
                out[key] = _merge(inner, out[key], value)
        return out
    if isinstance(live, list) and isinstance(applied, list) and isinstance(type_, ListType):
        if type_.keys:
            return _merge_items(type_, live, applied)
        if type_.is_set:
            return live + [v for v in applied if v not in live]
    return applied


def _merge_items(type_: ListType, live: list[Any], applied: list[Any]) -> list[Any]:
    """Return items in the order in which they are applied; those that are only live as early as possible."""
    old = {_item_key(o, type_.keys): o for o in live}
    new = {_item_key(a, type_.keys): a for a in applied}
    before, wanted = list(old), list(new)
    out: dict[str, Any] = {}
    while before or wanted:
        if before and (before[0] in out or before[0] not in new):
            key = before.pop(0)
            out.setdefault(key, old[key])
        elif wanted:
            key = wanted.pop(0)
            out[key] = _merge(type_.item, old[key], new[key]) if key in old else new[key]
    return list(out.values())


def _step(value: Any, step: str) -> Any:
    if step.startswith("f:"):
        return value.get(step[2:], _MISSING) if isinstance(value, dict) else _MISSING
    if not isinstance(value, list):
        return _MISSING
    wanted = json.loads(step[2:])
    if step.startswith("v:"):
        return wanted if wanted in value else _MISSING
    return next(
        (v for v in value if isinstance(v, dict) and all(v.get(k) == w for k, w in wanted.items())), _MISSING
    )


def _value(raw: Any, path: Path) -> Any:
    for step in path:
        raw = _step(raw, step)
        if raw is _MISSING:
            return _MISSING
    return raw


class _Values:
    """The values of an object by their paths, for many of them: no list is searched for each of its items.

    Args:
        raw: must not change meanwhile.
    """

    def __init__(self, raw: Raw) -> None:
        self._known: dict[Path, Any] = {(): raw}
        self._items: dict[tuple[Path, tuple[str, ...]], dict[str, Any]] = {}

    def at(self, path: Path) -> Any:
        """Return the value at a path; ``_MISSING`` if there is none."""
        if path not in self._known:
            above = self.at(path[:-1])
            self._known[path] = _MISSING if above is _MISSING else self._child(above, path)
        return self._known[path]

    def _child(self, above: Any, path: Path) -> Any:
        step = path[-1]
        if not (isinstance(above, list) and step.startswith("k:")):
            return _step(above, step)
        keys = tuple(json.loads(step[2:]))
        if (path[:-1], keys) not in self._items:
            # The first one of a key counts.
            named = {_item_key(v, keys): v for v in reversed(above) if isinstance(v, dict)}
            self._items[path[:-1], keys] = named
        return self._items[path[:-1], keys].get(step, _MISSING)


def _remove(raw: Raw, paths: Paths, owned: Paths) -> None:
    """Delete fields that have no owner any more, and the containers that become empty by it."""
    prefixes = {p[:i] for p in owned for i in range(1, len(p) + 1)}
    for path in sorted(paths, key=len):
        if path in prefixes:
            continue
        _detach(raw, path)
        parent = path[:-1]
        while len(parent) > 0 and parent not in prefixes:
            value = _value(raw, parent)
            if value is _MISSING or value:
                break
            _detach(raw, parent)
            parent = parent[:-1]


def _detach(raw: Raw, path: Path) -> None:
    """Delete the value at ``path``; copy the containers on the way, which the live object shares."""
    holder: Any = raw
    for step in path[:-1]:
        child = _step(holder, step)
        if child is _MISSING:
            return
        copied = dict(child) if isinstance(child, dict) else list(child)
        if isinstance(holder, dict):
            holder[step[2:]] = copied
        else:
            holder[next(i for i, v in enumerate(holder) if v is child)] = copied
        holder = copied
    last = path[-1]
    target = _step(holder, last)
    if target is _MISSING:
        return
    if isinstance(holder, dict):
        del holder[last[2:]]
    else:
        del holder[next(i for i, v in enumerate(holder) if v == target)]
