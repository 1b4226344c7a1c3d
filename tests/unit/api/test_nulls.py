"""``null`` is read as an absent value at every place of every type that is decoded from an API server."""

from __future__ import annotations

import copy
import enum
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_driver.api
from controller.admission import review
from dra_driver.api import codec
from dra_driver.api.names import DEFAULT_DRIVER_NAME, NVIDIA_DRIVER_NAME
from dra_driver.api.own.kinds import BackendParameters, decode_kind
from dra_driver.api.own.parameters import decode_parameters
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceClass, OpaqueDeviceConfiguration, ResourceClaim, ResourceSlice
from dra_driver.cdi import Spec
from dra_driver.errors import DecodeError, InvalidParameters
from dra_driver.kube.http import decoding, status
from dra_driver.resourceclaim import dropped

Path = tuple[str | int, ...]
SCALARS: dict[Any, Any] = {str: "a", int: 3, float: 1.5, bool: True, Quantity: "32Gi"}
FIELD, ELEMENT, MEMBER = "field", "element of a list", "member of a map"


def structs() -> list[type[msgspec.Struct]]:
    """Return every struct of the API's modules, and of those that read the API in another way."""
    modules = [
        importlib.import_module(m.name)
        for m in pkgutil.walk_packages(dra_driver.api.__path__, "dra_driver.api.")
    ]
    modules += [review, decoding, status, dropped]
    found = {
        kind: None
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    return sorted([*found, Spec], key=lambda k: (k.__module__, k.__name__))


def of(kind: Any) -> tuple[Any, bool]:
    """Return a type without ``| None`` and the like, and whether it had it."""
    if hasattr(kind, "__supertype__"):
        return of(kind.__supertype__)
    if typing.get_origin(kind) in (Union, types.UnionType):
        options = [o for o in typing.get_args(kind) if o is not type(None)]
        return of(options[0])[0], len(options) < len(typing.get_args(kind))
    return kind, False


def example(kind: Any, levels: int = 12) -> Any:
    """Return plain data in which every field is there, two elements in each list and map."""
    kind, _ = of(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {
            f.encode_name: example(f.type, levels - 1)
            for f in msgspec.structs.fields(kind)
            if levels or f.required
        }
    if origin is not None and issubclass(origin, Mapping):
        return {key: example(arguments[1], levels - 1) for key in ("x", "y")}
    if origin is not None and issubclass(origin, (tuple, list, frozenset)):
        return [example(arguments[0], levels - 1) for _ in range(2)] if levels else []
    if origin is typing.Literal:
        return arguments[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    return {"kind": "X"} if kind in (msgspec.Raw, Any) else SCALARS[kind]


def places(kind: Any, value: Any, path: Path = ()) -> Iterator[tuple[Path, str, bool]]:
    """Yield the places in plain data: path, what it is, and whether a value is required there."""
    kind, _ = of(kind)
    arguments = typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            if field.encode_name in value:
                here = (*path, field.encode_name)
                # What is kept as it was written is not looked into, and a required one has no default.
                yield here, FIELD, field.required
                yield from places(field.type, value[field.encode_name], here)
    elif isinstance(value, list | dict) and arguments:
        inner, what = (arguments[-1], MEMBER) if isinstance(value, dict) else (arguments[0], ELEMENT)
        allowed = of(inner)[1] or of(inner)[0] is msgspec.Raw
        for key in value if isinstance(value, dict) else range(len(value)):
            if not allowed:
                yield (*path, key), what, False
            yield from places(inner, value[key], (*path, key))


def holder(value: Any, path: Path) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def changed(value: Any, paths: list[Path], *, null: bool) -> bytes:
    """Return JSON in which the values at some places are null, or are not there."""
    value = copy.deepcopy(value)
    for path in paths:
        holder(value, path)[path[-1]] = None
    if not null:
        value = left_out(value, paths)
    return msgspec.json.encode(value)


def left_out(value: Any, paths: list[Path]) -> Any:
    # The last first, so that the places of list elements before it stay right.
    for path in sorted(paths, key=lambda p: [str(k).zfill(4) for k in p], reverse=True):
        del holder(value, path)[path[-1]]
    return value


KINDS = structs()
ABOVE = {kind: list(places(kind, example(kind))) for kind in KINDS}


def test_the_types_are_found() -> None:
    assert {ResourceClaim, ResourceSlice, DeviceClass} <= set(KINDS)
    assert len(KINDS) > 120
    assert sum(map(len, ABOVE.values())) > 1000


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.__module__.rpartition('.')[2]}.{k.__name__}")
def test_null_is_absent_at_every_place(kind: type[msgspec.Struct]) -> None:
    whole = example(kind)
    assert codec.decode(kind, msgspec.json.encode(whole)) is not None
    # Every struct within it is a kind here by itself; places at any depth are those of the next test.
    for path, _, required in (p for p in ABOVE[kind] if len(p[0]) <= 3):
        data = changed(whole, [path], null=True)
        if not required:
            assert same(codec.decode(kind, data), codec.decode(kind, changed(whole, [path], null=False))), (
                path
            )
        elif not takes_null(kind, path):
            with pytest.raises(DecodeError, match=rf"missing required field `{path[-1]}`"):
                codec.decode(kind, data)


@given(st.data())
def test_several_nulls_are_absent_together(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    optional = [path for path, _, required in ABOVE[kind] if not required]
    if not optional:
        return
    chosen: list[Path] = data.draw(st.lists(st.sampled_from(optional), unique=True, max_size=8))
    # A place within another one that is null is not there.
    paths = [p for p in chosen if not any(p[: len(q)] == q for q in chosen if q != p)]
    whole = example(kind)
    left = codec.decode(kind, changed(whole, paths, null=False))
    assert same(codec.decode(kind, changed(whole, paths, null=True)), left)


def same(one: Any, other: Any) -> bool:
    """Return whether two structs are the same; ``msgspec.Raw`` compares by identity."""
    return repr_of(one) == repr_of(other)


def repr_of(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return f"{type(value).__name__}({[repr_of(getattr(value, f)) for f in value.__struct_fields__]})"
    if isinstance(value, msgspec.Raw):
        return f"Raw({bytes(value)!r})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(repr_of, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {repr_of(v)}' for k, v in value.items())}}}"
    return repr(value)


def takes_null(kind: Any, path: Path) -> bool:
    """Return whether a required field holds what was written, or may be null."""
    for key in path:
        kind, _ = of(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            field = next(f for f in msgspec.structs.fields(kind) if f.encode_name == key)
            kind = field.type
        else:
            kind = typing.get_args(kind)[-1 if isinstance(key, str) else 0]
    inner, may = of(kind)
    return may or inner in (msgspec.Raw, Any)


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in the parameters of a backend."""

    words: tuple[str, ...] = ()


class Tuning(BackendParameters, frozen=True, kw_only=True):
    """Parameters of a backend."""

    API_VERSION = "acme.example/v1"

    level: int
    inner: Inner = Inner()
    limits: dict[str, int] = {}  # noqa: RUF012 (msgspec copies it)


def test_null_is_absent_in_the_parameters_of_a_backend() -> None:
    def read(**fields: Any) -> Tuning:
        return decode_kind(
            Tuning, msgspec.json.encode({"apiVersion": Tuning.API_VERSION, "kind": "Tuning", **fields})
        )

    assert read(level=1, inner=None, limits=None) == read(level=1)
    assert read(level=1, inner={"words": None}, limits={"a": None}) == read(level=1)
    assert read(level=1, inner={"words": ["a", None]}) == read(level=1, inner={"words": ["a"]})
    with pytest.raises(InvalidParameters, match="level: is missing"):
        read(level=None)
    with pytest.raises(InvalidParameters, match="typo: unknown field"):
        read(level=1, typo=None)


OURS, THEIRS = (
    ("dra-driver.dev/v1alpha1", DEFAULT_DRIVER_NAME),
    ("resource.nvidia.com/v1beta1", NVIDIA_DRIVER_NAME),
)
MPS = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "8Gi"}
DOCUMENTS: list[tuple[tuple[str, str], str, dict[str, Any]]] = [
    (OURS, "GpuConfig", {"sharing": {"strategy": "MPS", "mps": MPS, "timeSlicing": {}}}),
    (
        OURS,
        "GpuConfig",
        {"sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}, "mps": {}}},
    ),
    (
        OURS,
        "GpuConfig",
        {"driver": "vfio-pci", "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True}},
    ),
    (
        OURS,
        "MigConfig",
        {"driverCapabilities": ["compute", "utility"], "sharing": {"strategy": "MPS", "mps": MPS}},
    ),
    (OURS, "ShareConfig", {"enforcement": "None", "timeSlicing": {"interval": "Long"}, "sharedWith": "Any"}),
    (OURS, "ShareConfig", {"enforcement": "MPS", "mps": MPS, "timeSlicing": {}}),
    (
        THEIRS,
        "GpuConfig",
        {
            "sharing": {
                "strategy": "MPS",
                "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "8Gi", "1": "8Gi"}},
            }
        },
    ),
    (THEIRS, "VfioDeviceConfig", {"iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}}),
]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, key))


@pytest.mark.parametrize(("identity", "kind", "fields"), DOCUMENTS)
def test_null_is_absent_in_our_parameters(
    identity: tuple[str, str], kind: str, fields: dict[str, Any]
) -> None:
    version, driver = identity

    def read(paths: list[Path], *, null: bool) -> object:
        data = changed({"apiVersion": version, "kind": kind, **fields}, paths, null=null)
        try:
            return decode_parameters(data, driver)
        except InvalidParameters as e:
            return e.findings

    for path in leaves(fields):
        assert read([path], null=True) == read([path], null=False), path
    with pytest.raises(InvalidParameters, match="typo: unknown field"):
        decode_parameters(msgspec.json.encode({"apiVersion": version, "kind": kind, "typo": None}), driver)


def test_what_is_kept_as_it_was_written_keeps_its_nulls() -> None:
    raw = b'{"a":null,"b":[1.0,null]}'
    data = b'{"driver":"d","parameters":' + raw + b"}"
    assert bytes(codec.decode(OpaqueDeviceConfiguration, data).parameters) == raw
    claim = b'{"spec":{"devices":{"requests":null,"config":[{"opaque":' + data + b"}]}}}"
    found = codec.decode(ResourceClaim, claim).spec.devices.config[0].opaque
    assert found is not None
    assert bytes(found.parameters) == raw


def test_a_deeply_nested_object_with_a_null_is_read() -> None:
    nested = b'{"x":' * 3000 + b"null" + b"}" * 3000
    claim = (
        b'{"spec":{"devices":{"constraints":null,"config":[{"opaque":{"driver":"d","parameters":'
        + nested
        + b"}}]}}}"
    )
    assert codec.decode(ResourceClaim, claim).spec.devices.constraints == ()
