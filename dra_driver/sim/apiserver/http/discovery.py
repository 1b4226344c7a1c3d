"""Discovery documents, and the part of OpenAPI that kubectl reads before it applies."""

from __future__ import annotations

import re

from dra_driver.sim.apiserver.objects.fields import ListType, MapType, Scalar, Struct, Type
from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = [
    "aggregated",
    "group_list",
    "groups",
    "openapi_document",
    "openapi_index",
    "resource_list",
    "version",
]


def version(release: str) -> Raw:
    """Return the answer of ``/version``."""
    major, _, minor = release.partition(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{release}.0+dra-driver-sim",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


# Kinds that are served without being stored.
_REVIEWS = {
    ("authorization.k8s.io", "v1"): [("selfsubjectaccessreviews", "SelfSubjectAccessReview")],
}


def groups(kinds: Kinds) -> dict[str, list[str]]:
    """Return group → its versions, the newest stable one first."""
    out: dict[str, list[str]] = {}
    for kind in kinds:
        versions = out.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    for group, version in _REVIEWS:
        out.setdefault(group, [version])
    for versions in out.values():
        numbers = {v: [-int(n) for n in re.findall(r"\d+", v)] for v in versions}
        versions.sort(key=lambda v: ("alpha" in v, "beta" in v, numbers[v], v))
    return out


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def _of(kinds: Kinds, group: str, version: str) -> list[Kind]:
    return sorted((k for k in kinds if k.group == group and k.version == version), key=lambda k: k.plural)


def _subresources(kind: Kind) -> list[tuple[str, str, str, tuple[str, ...]]]:
    out = list(kind.subresources)
    if kind.status:
        out.append(("status", kind.kind, "", ("get", "patch", "update")))
    return sorted(out)


def resource_list(kinds: Kinds, group: str, version: str) -> Raw:
    """Return the ``APIResourceList`` of a group version."""
    resources: list[Raw] = []
    for kind in _of(kinds, group, version):
        entry: Raw = {
            "name": kind.plural,
            "singularName": kind.one,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
            "storageVersionHash": kind.storage_hash,
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        resources.append(entry)
        for name, sub_kind, sub_version, verbs in _subresources(kind):
            sub: Raw = {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": sub_kind,
                "verbs": list(verbs),
            }
            if sub_version:
                sub["group"], _, sub["version"] = sub_version.rpartition("/")
            resources.append(sub)
    for plural, name in _REVIEWS.get((group, version), []):
        resources.append(
            {
                "name": plural,
                "singularName": name.lower(),
                "namespaced": False,
                "kind": name,
                "verbs": ["create"],
            }
        )
    document: Raw = {"kind": "APIResourceList", "groupVersion": _group_version(group, version)}
    if group:
        document["apiVersion"] = "v1"
    return {**document, "resources": resources}


def group_list(kinds: Kinds) -> Raw:
    """Return the ``APIGroupList``."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [group_document(kinds, g) for g in sorted(groups(kinds)) if g],
    }


def group_document(kinds: Kinds, group: str) -> Raw:
    """Return the ``APIGroup`` without kind and apiVersion."""
    versions = [
        {"groupVersion": _group_version(group, v), "version": v} for v in groups(kinds).get(group, [])
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def aggregated(kinds: Kinds, *, core: bool) -> Raw:
    """Return the ``APIGroupDiscoveryList`` of the core group or of all others."""
    items = []
    for group, versions in sorted(groups(kinds).items()):
        if (group == "") != core:
            continue
        listed = [
            {"version": v, "resources": _discovered(kinds, group, v), "freshness": "Current"}
            for v in versions
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _discovered(kinds: Kinds, group: str, version: str) -> list[Raw]:
    out = []
    for kind in _of(kinds, group, version):
        entry: Raw = {
            "resource": kind.plural,
            "responseKind": {"group": "", "version": "", "kind": kind.kind},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": kind.one,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        subresources = [
            {
                "subresource": name,
                "responseKind": {
                    "group": sub_version.rpartition("/")[0],
                    "version": sub_version.rpartition("/")[2],
                    "kind": sub_kind,
                },
                "verbs": list(verbs),
            }
            for name, sub_kind, sub_version, verbs in _subresources(kind)
        ]
        if subresources:
            entry["subresources"] = subresources
        out.append(entry)
    for plural, name in _REVIEWS.get((group, version), []):
        out.append(
            {
                "resource": plural,
                "responseKind": {"group": "", "version": "", "kind": name},
                "scope": "Cluster",
                "singularResource": name.lower(),
                "verbs": ["create"],
            }
        )
    return out


# --- OpenAPI v3 ---


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def openapi_index(kinds: Kinds) -> Raw:
    """Return the answer of ``/openapi/v3``, which lists the documents."""
    paths = {
        _root(g, v): {"serverRelativeURL": f"/openapi/v3/{_root(g, v)}?hash={len(_of(kinds, g, v))}"}
        for g, versions in groups(kinds).items()
        for v in versions
    }
    return {"paths": paths}


def openapi_document(kinds: Kinds, release: str, group: str, version: str) -> Raw:
    """Return the schemas, and the paths by which kubectl learns whether ``fieldValidation`` is supported."""
    paths: Raw = {}
    schemas: Raw = {}
    for kind in _of(kinds, group, version):
        gvk = {"group": group, "version": version, "kind": kind.kind}
        scope = "/namespaces/{namespace}" if kind.namespaced else ""
        patch_types = [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/apply-patch+yaml",
        ]
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
        paths[f"/{_root(group, version)}{scope}/{kind.plural}/{{name}}"] = {
            "patch": {
                "operationId": f"patch{kind.kind}",
                "parameters": parameters,
                "requestBody": {"content": {t: {"schema": {"type": "object"}} for t in patch_types}},
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": gvk,
            }
        }
        name = f"io.k8s.{group or 'core'}.{version}.{kind.kind}"
        schemas[name] = {**_kind_schema(kind, schemas), "x-kubernetes-group-version-kind": [gvk]}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"v{release}"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _kind_schema(kind: Kind, schemas: Raw) -> Raw:
    schema = getattr(kind.type, "schema", None)
    if schema is not None:
        return dict(schema)
    assert isinstance(kind.type, Struct)
    properties = {name: _schema(field.type, schemas) for name, field in kind.type.fields.items()}
    return {"type": "object", "properties": {"apiVersion": _STRING, "kind": _STRING, **properties}}


_STRING = {"type": "string"}
_SCALARS = {
    "string": _STRING,
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "float64": {"type": "number"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "[]uint8": {"type": "string", "format": "byte"},
}


def _schema(type_: Type, schemas: Raw) -> Raw:
    if isinstance(type_, Scalar):
        return dict(_SCALARS.get(type_.name, _STRING))
    if isinstance(type_, ListType):
        return {"type": "array", "items": _schema(type_.item, schemas)}
    if isinstance(type_, MapType):
        return {"type": "object", "additionalProperties": _schema(type_.item, schemas)}
    if isinstance(type_, Struct):
        name = f"io.k8s.api.{type_.name}"
        if name not in schemas:
            schemas[name] = {"type": "object"}  # types may refer to themselves
            schemas[name]["properties"] = {n: _schema(f.type, schemas) for n, f in type_.fields.items()}
        return {"$ref": f"#/components/schemas/{name}"}
    return {"type": "object"}
