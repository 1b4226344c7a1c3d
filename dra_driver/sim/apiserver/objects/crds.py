"""CustomResourceDefinitions: kinds made from them, pruning, defaults and structural validation."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from dra_driver.sim.apiserver.objects.fields import ANY, Context, Field, ListType, Struct, Type, struct_type
from dra_driver.sim.apiserver.objects.kinds import Column, Kind
from dra_driver.sim.apiserver.objects.rules import check_definitions, check_rules
from dra_driver.sim.apiserver.objects.status import Causes, Raw

__all__ = ["SchemaType", "check_definition", "check_object", "established", "kinds"]


# --- types from schemas ---


class SchemaType(Struct):
    """An object with a structural schema; what does not fit it is kept, so that validation reports it.

    Attributes:
        schema: the ``openAPIV3Schema`` of this level.
        root: whether it is the whole object.
    """

    __slots__ = ("preserve", "root", "schema")

    def __init__(self, schema: Raw, *, root: bool = False) -> None:
        self.schema = schema
        self.root = root
        self.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        super().__init__("object", self._load)

    def _load(self) -> Mapping[str, Field]:
        out = {}
        for name, schema in (self.schema.get("properties") or {}).items():
            words = ("atomic",) if schema.get("x-kubernetes-map-type") == "atomic" else ()
            out[name] = Field(name, _type(schema), words)
        if self.root:
            out["metadata"] = Field("metadata", struct_type("meta.ObjectMeta"))
        return out

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        if not isinstance(value, dict):
            return value
        fields = self.fields
        prefix = f"{path}." if path else ""
        out: Raw = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is not None:
                if (
                    item is None
                    and "default" in self._schema_of(name)
                    and not self._schema_of(name).get("nullable")
                ):
                    continue
                out[name] = field.type.decode(item, prefix + name, context)
            elif self.root and name in ("apiVersion", "kind"):
                continue
            elif self.preserve:
                out[name] = item
            else:
                context.unknown.append(prefix + name)
        if context.defaults:
            for name, field in fields.items():
                schema = self._schema_of(name)
                if name not in out and "default" in schema:
                    out[name] = field.type.decode(copy.deepcopy(schema["default"]), prefix + name, context)
        return out

    def _schema_of(self, name: str) -> Raw:
        schema: Raw = (self.schema.get("properties") or {}).get(name) or {}
        return schema


class _SchemaMap(Type):
    """``additionalProperties``."""

    __slots__ = ("item",)

    def __init__(self, item: Type) -> None:
        self.item = item

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        if not isinstance(value, dict):
            return value
        return {k: self.item.decode(v, f"{path}.{k}", context) for k, v in value.items()}


class _SchemaList(ListType):
    __slots__ = ()

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        if not isinstance(value, list):
            return value
        return [self.item.decode(v, f"{path}[{i}]", context) for i, v in enumerate(value)]


def _type(schema: Raw) -> Type:
    if schema.get("x-kubernetes-embedded-resource"):
        return ANY
    if schema.get("type") == "array":
        keys = ()
        if schema.get("x-kubernetes-list-type") == "map":
            keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        is_set = schema.get("x-kubernetes-list-type") == "set"
        return _SchemaList(_type(schema.get("items") or {}), keys, is_set=is_set)
    if schema.get("properties") is not None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return SchemaType(schema)
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return _SchemaMap(_type(additional))
    return SchemaType(schema) if schema.get("type") == "object" and additional is None else ANY


# --- kinds ---


def kinds(raw: Raw) -> Iterator[Kind]:
    """Yield the kinds that a definition defines, one for each served version."""
    spec = raw["spec"]
    names = spec["names"]
    storage = next((v["name"] for v in spec["versions"] if v.get("storage")), spec["versions"][0]["name"])
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        subresources: Raw = version.get("subresources") or {}
        yield Kind(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            type=SchemaType((version.get("schema") or {}).get("openAPIV3Schema") or {}, root=True),
            namespaced=spec["scope"] == "Namespaced",
            singular=names.get("singular") or "",
            list_kind=names.get("listKind") or "",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            status="status" in subresources,
            put_needs_version=True,
            selectable={f["jsonPath"].lstrip("."): "" for f in version.get("selectableFields") or []},
            verbs=("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"),
            storage=storage,
            custom=True,
            columns=_columns(version),
            deprecation=_deprecation(spec, version),
        )


def _columns(version: Raw) -> tuple[Column, ...]:
    given = version.get("additionalPrinterColumns") or ()
    if not given:
        return (Column("Age", "date", ".metadata.creationTimestamp"),)
    return tuple(
        Column(c["name"], c["type"], c["jsonPath"], c.get("priority", 0), c.get("format", "")) for c in given
    )


def _deprecation(spec: Raw, version: Raw) -> str:
    if not version.get("deprecated"):
        return ""
    text = f"{spec['group']}/{version['name']} {spec['names']['kind']} is deprecated"
    return str(version.get("deprecationWarning") or text)


def established(raw: Raw, now: str) -> Raw | None:
    """Return the definition with the status that the server's controllers set; None if it is set already."""
    names = dict(raw["spec"]["names"])
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    conditions = [
        {
            "type": type_,
            "status": "True",
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        for type_, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    old: Raw = raw.get("status") or {}
    stored = list(old.get("storedVersions") or [])
    storage = next((v["name"] for v in raw["spec"]["versions"] if v.get("storage")), None)
    if storage and storage not in stored:
        stored.append(storage)
    if (
        old.get("conditions")
        and old.get("acceptedNames") == names
        and old.get("storedVersions") == stored
        and raw["spec"]["names"] == names
    ):
        return None
    return {
        **raw,
        "metadata": dict(raw["metadata"]),
        "spec": {
            **raw["spec"],
            "names": names,
            "conversion": raw["spec"].get("conversion") or {"strategy": "None"},
        },
        "status": {
            "conditions": old.get("conditions") or conditions,
            "acceptedNames": names,
            "storedVersions": stored,
        },
    }


def check_definition(raw: Raw, old: Raw | None, causes: Causes, surroundings: object) -> None:
    """Check the parts of a CustomResourceDefinition in which mistakes are likely."""
    spec: Raw = raw.get("spec") or {}
    names: Raw = spec.get("names") or {}
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if raw["metadata"].get("name") != expected:
        causes.invalid(
            "metadata.name",
            raw["metadata"].get("name"),
            f'must be spec.names.plural+"."+spec.group ({expected})',
        )
    for name in ("plural", "kind"):
        if not names.get(name):
            causes.required(f"spec.names.{name}")
    if not spec.get("group"):
        causes.required("spec.group")
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        causes.not_supported("spec.scope", spec.get("scope"), ("Cluster", "Namespaced"))
    versions: list[Raw] = spec.get("versions") or []
    if sum(1 for v in versions if v.get("storage")) != 1:
        causes.invalid(
            "spec.versions",
            [v.get("name") for v in versions],
            "must have exactly one version marked as storage version",
        )
    for i, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.required(f"spec.versions[{i}].schema.openAPIV3Schema", "schemas are required")
        elif schema.get("type") != "object":
            causes.invalid(
                f"spec.versions[{i}].schema.openAPIV3Schema.type",
                schema.get("type"),
                "must be object at the root",
            )
        else:
            check_definitions(schema, f"spec.versions[{i}].schema.openAPIV3Schema", causes)


# --- validation ---


def check_object(kind: Kind, raw: Raw, old: Raw | None, causes: Causes) -> None:
    """Check a custom resource against its schema and rules."""
    assert isinstance(kind.type, SchemaType)
    schema = kind.type.schema
    before = len(causes)
    checked = {k: v for k, v in raw.items() if k not in ("apiVersion", "kind", "metadata")}
    _check(
        checked,
        {**schema, "required": [r for r in schema.get("required") or () if r not in _SYSTEM]},
        "",
        causes,
    )
    if not _has_rules(schema):
        return
    if any(c.reason in _BLOCKING for c in causes[before:]):
        causes.invalid(
            "<nil>",
            None,
            "some validation rules were not checked because the object was invalid; "
            "correct the existing errors to complete validation",
        )
    else:
        check_rules(schema, raw, old, "", causes, root=True)


# After errors of these types the real server does not evaluate rules.
_BLOCKING = frozenset(
    f"FieldValue{r}" for r in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid")
)
_SYSTEM = ("apiVersion", "kind", "metadata")
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def _has_rules(schema: object) -> bool:
    if isinstance(schema, dict):
        return "x-kubernetes-validations" in schema or any(_has_rules(v) for v in schema.values())
    return isinstance(schema, list) and any(_has_rules(v) for v in schema)


def _fits(value: object, wanted: str) -> bool:
    if wanted == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    return _NAMES.get(type(value)) == wanted


def _check(value: Any, schema: Raw, path: str, causes: Causes) -> None:
    if value is None:
        if not schema.get("nullable") and not schema.get("x-kubernetes-preserve-unknown-fields"):
            causes.type_invalid(path, None, f'{path} in body must be of type {schema.get("type")}: "null"')
        return
    if (
        schema.get("x-kubernetes-int-or-string")
        and not _fits(value, "integer")
        and not isinstance(value, str)
    ):
        causes.type_invalid(path, value, f"{path} in body must be of type integer,string")
        return
    wanted = schema.get("type")
    if wanted and not _fits(value, wanted):
        shown = _NAMES.get(type(value), "null")
        causes.type_invalid(path, shown, f'{path} in body must be of type {wanted}: "{shown}"')
        return
    if "enum" in schema and value not in schema["enum"]:
        causes.not_supported(path, value, (str(e) for e in schema["enum"]))
    if isinstance(value, str):
        _check_string(value, schema, path, causes)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, schema, path, causes)
    elif isinstance(value, list):
        _check_list(value, schema, path, causes)
    elif isinstance(value, dict):
        _check_map(value, schema, path, causes)
    _check_combined(value, schema, path, causes)


def _check_string(value: str, schema: Raw, path: str, causes: Causes) -> None:
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        causes.too_long(path, schema["maxLength"])
    if "minLength" in schema and len(value) < schema["minLength"]:
        causes.invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        causes.invalid(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value):
        causes.invalid(path, value, f"{path} in body must be of type date-time")


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _check_number(value: float, schema: Raw, path: str, causes: Causes) -> None:
    if "minimum" in schema:
        low = schema["minimum"]
        if value < low or (schema.get("exclusiveMinimum") and value == low):
            causes.invalid(path, value, f"{path} in body should be greater than or equal to {low}")
    if "maximum" in schema:
        high = schema["maximum"]
        if value > high or (schema.get("exclusiveMaximum") and value == high):
            causes.invalid(path, value, f"{path} in body should be less than or equal to {high}")
    if schema.get("multipleOf") and not math.isclose(value % schema["multipleOf"], 0):
        causes.invalid(path, value, f"{path} in body should be a multiple of {schema['multipleOf']}")
    bound = {"int32": 2**31, "int64": 2**63}.get(schema.get("format", ""))
    if bound and not -bound <= value < bound:
        causes.invalid(path, value, f"{path} in body must be of type {schema['format']}")


def _check_list(value: list[Any], schema: Raw, path: str, causes: Causes) -> None:
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        causes.too_many(path, len(value), schema["maxItems"])
    if "minItems" in schema and len(value) < schema["minItems"]:
        causes.invalid(path, len(value), f"{path} in body should have at least {schema['minItems']} items")
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen = []
    for i, item in enumerate(value):
        _check(item, schema.get("items") or {}, f"{path}[{i}]", causes)
        if kind not in ("map", "set"):
            continue
        key = {k: item.get(k) for k in keys} if kind == "map" and isinstance(item, dict) else item
        if key in seen:
            causes.duplicate(f"{path}[{i}]", key)
        seen.append(key)


def _check_map(value: Raw, schema: Raw, path: str, causes: Causes) -> None:
    prefix = f"{path}." if path else ""
    for name in schema.get("required") or ():
        if name not in value:
            causes.required(prefix + name)
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        causes.too_many(path, len(value), schema["maxProperties"])
    if "minProperties" in schema and len(value) < schema["minProperties"]:
        causes.invalid(
            path, len(value), f"{path} in body should have at least {schema['minProperties']} properties"
        )
    properties: Raw = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            _check(item, properties[name], prefix + name, causes)
        elif isinstance(additional, dict):
            _check(item, additional, prefix + name, causes)


def _check_combined(value: Any, schema: Raw, path: str, causes: Causes) -> None:
    def fits(alternative: Raw) -> bool:
        found = Causes()
        _check(value, alternative, path, found)
        return not found

    for alternative in schema.get("allOf") or ():
        _check(value, alternative, path, causes)
    if schema.get("anyOf") and not any(map(fits, schema["anyOf"])):
        causes.invalid(path, "", f'"{path}" must validate at least one schema (anyOf)')
    if schema.get("oneOf") and sum(map(fits, schema["oneOf"])) != 1:
        causes.invalid(path, "", f'"{path}" must validate one and only one schema (oneOf)')
    if schema.get("not") and fits(schema["not"]):
        causes.invalid(path, "", f'"{path}" must not validate the schema (not)')
