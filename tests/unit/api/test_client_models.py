"""Every field that we read or write has the name and the form that Kubernetes' own client has for it.

The client (``kubernetes`` in ``constraints.txt``) is made from the API of one release, so a field of ours
that this release lacks is found. The fields that it has and we do not read are those of the golden file. A
newer client brings new names there, each to be looked at: what the field means for an allocation, and whether
what has it needs a newer controller.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union

import kubernetes
import msgspec
import pytest
from kubernetes import client
from paths import PROJECT

import dra_driver.api
from controller.allocate.state.taint_rules import VERSIONS
from dra_driver.api.meta import Resource
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import device_taint_rules
from dra_driver.api.scheduling import POD_GROUP_VERSIONS, pod_groups
from dra_driver.kube.leader import LEASES

RELEASE = "37"
"""Of the client, which is that of Kubernetes 1.37."""
GOLDEN = PROJECT / "tests" / "golden" / "api" / "fields_not_read.txt"
OURS = {"leftOut", "newer"}
"""Fields that never leave our processes."""
OWN_GROUP = "dra-driver.dev"
UNITED = {"DiskSource"}
"""Structs that stand for several models: each of their fields is in one of them."""


def kinds() -> Iterator[Resource[Any]]:
    """Yield every kind of Kubernetes that we read or write, in the versions that the client has."""
    modules = [m.name for m in pkgutil.walk_packages(dra_driver.api.__path__, "dra_driver.api.")]
    found = {
        repr(value): value
        for name in modules
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, Resource) and value.group != OWN_GROUP
    }
    yield from found.values()
    yield LEASES
    for version in VERSIONS:
        if model_name(device_taint_rules(version)) is not None:
            yield device_taint_rules(version)
    for version in POD_GROUP_VERSIONS:
        if model_name(pod_groups(version)) is not None:
            yield pod_groups(version)


def model_name(kind: Resource[Any]) -> str | None:
    """Return the name of a kind's model; None where the client does not have that version."""
    plain = kind.version[0].upper() + kind.version[1:] + kind.kind
    group = kind.group.partition(".")[0] or "core"
    names = (f"{group[0].upper()}{group[1:]}{plain}", plain)
    return next((name for name in names if hasattr(client, name)), None)


def bare(kind: Any) -> Any:
    """Return a type without ``| None``, annotations and new names."""
    if hasattr(kind, "__supertype__"):
        return bare(kind.__supertype__)
    if typing.get_origin(kind) in (Union, types.UnionType):
        options = [o for o in typing.get_args(kind) if o is not type(None)]
        return bare(options[0]) if len(options) == 1 else Any
    return kind


def form(kind: Any) -> str:
    """Return the form of a field of ours, in the client's words."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return "List"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "Dict"
    if origin is typing.Literal or kind in (str, Quantity):
        return "str"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "model"
    return {int: "int", bool: "bool", float: "float"}.get(kind, "any")


def theirs(spelled: str) -> str:
    """Return the form of a field of the client."""
    outer = re.match(r"(?i)(list|dict)\b", spelled)
    if outer is not None:
        return outer[0].capitalize()
    if spelled in ("datetime", "str", "bytes", "date"):
        return "str"
    if spelled in ("int", "bool", "float"):
        return spelled
    return "any" if spelled in ("object", "AnyOf", "IntOrString") else "model"


def inner(kind: Any) -> Any:
    """Return the type of the elements of a list or map, or the type itself."""
    kind = bare(kind)
    return inner(typing.get_args(kind)[1 if form(kind) == "Dict" else 0]) if typing.get_args(kind) else kind


def compare(
    kind: type[msgspec.Struct], model: str, wrong: set[str], not_read: dict[str, set[str]], done: set[Any]
) -> None:
    """Compare a struct with a model, and the structs of its fields with theirs."""
    if (kind, model) in done:
        return
    done.add((kind, model))
    described = getattr(client, model)
    fields = {name: described.openapi_types[attr] for attr, name in described.attribute_map.items()}
    own = {f.encode_name: f.type for f in msgspec.structs.fields(kind) if f.encode_name not in OURS}
    missing = set(fields) - set(own) - {"apiVersion", "kind"}
    not_read[model] = not_read.get(model, missing) & missing
    for name, type_ in own.items():
        if name not in fields:
            if kind.__name__ not in UNITED:
                wrong.add(f"{kind.__name__}.{name}: {model} has no such field")
            continue
        has, wants = form(type_), theirs(fields[name])
        if has != wants and "any" not in (has, wants):
            wrong.add(f"{kind.__name__}.{name}: {has} here, {fields[name]} in {model}")
        of = inner(type_)
        nested = re.findall(r"\w+", fields[name])[-1]
        if isinstance(of, type) and issubclass(of, msgspec.Struct):
            if hasattr(client, nested):
                compare(of, nested, wrong, not_read, done)
            elif wants != "any":  # a struct without fields has no model
                wrong.add(f"{kind.__name__}.{name}: {of.__name__} here, {fields[name]} in {model}")


def differences() -> tuple[set[str], dict[str, set[str]]]:
    """Return what contradicts the client, and the fields of each model that no struct of ours has."""
    wrong: set[str] = set()
    not_read: dict[str, set[str]] = {}
    done: set[Any] = set()
    for kind in kinds():
        name = model_name(kind)
        if name is None:
            wrong.add(f"{kind!r}: the client has no such kind")
        else:
            compare(kind.type, name, wrong, not_read, done)
    return wrong, not_read


def text(not_read: Mapping[str, set[str]]) -> str:
    """Return the fields that are not read as the golden file has them."""
    head = f"# Fields of Kubernetes' client {RELEASE} that are not read, by model (test_client_models.py).\n"
    lines = (f"{model}: {' '.join(sorted(names))}\n" for model, names in sorted(not_read.items()) if names)
    return head + "".join(lines)


def test_fields_have_the_names_and_forms_of_kubernetes_client() -> None:
    wrong, _ = differences()
    assert not wrong, "\n".join(sorted(wrong))


def test_the_fields_that_are_not_read_are_known() -> None:
    """Another release of the client, which the workflow for other versions installs, has others."""
    if kubernetes.__version__.partition(".")[0] != RELEASE:
        pytest.skip(f"the client is of another release than {RELEASE}")
    _, not_read = differences()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text(not_read))
    assert text(not_read) == GOLDEN.read_text(), f"look at what is new, then put this there: {text(not_read)}"


def test_the_client_of_the_constraints_is_the_one_compared_with() -> None:
    assert re.search(rf"^kubernetes=={RELEASE}\.", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)


def test_a_wrong_name_or_form_is_found() -> None:
    class Spec(msgspec.Struct, rename="camel"):
        node_nam: str = ""
        devices: str = ""

    wrong: set[str] = set()
    compare(Spec, "V1ResourceSliceSpec", wrong, {}, set())
    assert wrong == {
        "Spec.nodeNam: V1ResourceSliceSpec has no such field",
        "Spec.devices: str here, List[V1Device] in V1ResourceSliceSpec",
    }
