"""Fields that are not known are noticed wherever they may change what an allocation means."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ExactWire
from dra_driver.api.newer import NEWER
from dra_driver.api.nulls import bare_type, inner_type, is_map
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import RESOURCE_SLICES, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import DecodeError

Path = tuple[str | int, ...]
SCALARS: dict[Any, Any] = {str: "a", int: 1, bool: True, Quantity: "1Gi", msgspec.Raw: {"a": 1.0}}
KINDS = {ResourceClaim: "spec", ResourceSlice: "spec", DeviceClass: "spec"}


def example(kind: Any) -> Any:
    """Return plain data that has every field of a type."""
    kind, _ = bare_type(getattr(kind, "__supertype__", kind))
    kind = getattr(kind, "__supertype__", kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {f.encode_name: example(f.type) for f in fields if f.encode_name not in (NEWER, "leftOut")}
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    inner = inner_type(kind)
    if inner is None:
        return SCALARS.get(kind, "a")
    return {"key": example(inner)} if is_map(kind) else [example(inner)]


def exact_places(kind: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the places of the structs that refuse unknown fields."""
    kind, _ = bare_type(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if issubclass(kind, ExactWire):
            yield path
        for field in msgspec.structs.fields(kind):
            yield from exact_places(field.type, (*path, field.encode_name))
    elif (inner := inner_type(kind)) is not None:
        yield from exact_places(inner, (*path, "key" if is_map(kind) else 0))


def noted(value: Any) -> Iterator[str]:
    """Yield what the members ``newer`` in a decoded value say."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            found = getattr(value, field.name)
            if field.name == NEWER:
                yield found
            yield from noted(found)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from noted(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from noted(item)


def with_field(raw: Any, place: Path, value: object) -> Any:
    found = copy.deepcopy(raw)
    at = found
    for step in place:
        at = at[step]
    at["brandNew"] = value
    return found


def spelled(place: Path) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) or step == "key" else f".{step}" if text else str(step)
    return text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_unknown_field_is_noted_at_every_place_of_the_spec(kind: type[msgspec.Struct]) -> None:
    raw = example(kind)
    whole = codec.convert(kind, raw)
    places = list(exact_places(kind))
    assert len(places) > 3
    for place in places:
        value = codec.convert(kind, with_field(raw, place, {"a": [1]}))
        where = f"{spelled(place)}.brandNew"
        if place[0] == "spec":
            assert [n for n in noted(value) if n] == [where]
        # Nothing else differs, and what is not known is not kept.
        assert codec.plain(value) == with_note(codec.plain(whole), codec.plain(value))
        assert codec.convert(kind, with_field(raw, place, None)) == whole


def with_note(whole: Any, found: Any) -> Any:
    """Return plain data with the notes of other data."""
    if isinstance(whole, dict) and isinstance(found, dict):
        notes = {NEWER: found[NEWER]} if NEWER in found else {}
        return {**{k: with_note(v, found.get(k)) for k, v in whole.items()}, **notes}
    if isinstance(whole, list) and isinstance(found, list):
        return [with_note(a, b) for a, b in zip(whole, found, strict=True)]
    return whole


def test_of_several_the_first_is_noted_and_those_of_devices_with_the_device() -> None:
    raw = example(ResourceSlice)
    raw["spec"]["devices"] = [
        {"name": "a", "one": 1, "two": 2},
        {"name": "b"},
        {"name": "c", "attributes": {}},
    ]
    raw["spec"]["devices"][2]["attributes"]["x"] = {"string": "y", "float": 1.5}
    raw["spec"]["other"] = True
    spec = codec.convert(ResourceSlice, raw).spec
    assert spec.newer == "spec.other"
    assert [d.newer for d in spec.devices] == [
        "spec.devices[0].one",
        "",
        "spec.devices[2].attributes[x].float",
    ]


def test_fields_elsewhere_are_ignored_as_before() -> None:
    raw = {"metadata": {"name": "c", "managedFields": []}, "brandNew": 1, "status": {"alsoNew": 2}}
    assert not any(noted(codec.convert(ResourceClaim, raw)))
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert codec.convert(Pod, pod).spec.containers[0].name == "c"


def test_a_wrong_type_beside_an_unknown_field_is_an_error_all_the_same() -> None:
    raw = example(ResourceClaim)
    raw["spec"]["devices"]["requests"] = [{"name": 5, "brandNew": 1}]
    with pytest.raises(DecodeError, match="name"):
        codec.convert(ResourceClaim, raw)


def test_a_note_is_short_whatever_the_field_is_called() -> None:
    raw = example(ResourceClaim)
    raw["spec"]["x" * 100_000] = 1
    assert len(codec.convert(ResourceClaim, raw).newer) == 200


def test_parameters_beside_an_unknown_field_stay_as_they_were_written() -> None:
    opaque = '{"driver":"d","parameters":{"a": 1.00, "b":null}}'
    text = f'{{"spec":{{"devices":{{"brandNew":1,"config":[{{"opaque":{opaque}}}]}}}}}}'
    claim = codec.decode(ResourceClaim, text)
    assert claim.newer == "spec.devices.brandNew"
    (config,) = claim.spec.devices.config
    assert config.opaque is not None
    assert bytes(config.opaque.parameters) == b'{"a": 1.00, "b":null}'


def test_notes_are_never_sent_with_slices_of_ours() -> None:
    slice_ = codec.convert(ResourceSlice, example(ResourceSlice))
    assert NEWER not in codec.encode(codec.to_raw(RESOURCE_SLICES, slice_)).decode()


def test_structs_that_are_not_of_the_api_refuse_unknown_fields_as_ever() -> None:
    """A misspelled field of opaque parameters, say, must not be dropped in silence."""

    class Parameters(msgspec.Struct, forbid_unknown_fields=True):
        sharing: str = ""

    with pytest.raises(DecodeError, match="sharring"):
        codec.decode(Parameters, b'{"sharring": "MPS"}')
