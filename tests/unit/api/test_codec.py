"""Objects in and out of JSON: what people write is never dropped, what servers add is never refused."""

from __future__ import annotations

import sys

import msgspec
import pytest

from dra_driver.api import codec, resource
from dra_driver.api.own import inventory
from dra_driver.errors import DecodeError

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "a", "namespace": "n", "managedFields": [{"manager": "m"}]},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "c",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "capacity": {"requests": {"memory": "32Gi"}},
                    },
                }
            ],
            "config": [{"opaque": {"driver": "d", "parameters": {"kind": "X", "n": [1, {"y": None}]}}}],
        }
    },
}


def test_a_claim_survives_a_round_trip() -> None:
    claim = codec.convert(resource.ResourceClaim, CLAIM)
    raw = codec.to_raw(resource.RESOURCE_CLAIMS, claim)
    expected = {**CLAIM, "metadata": {"name": "a", "namespace": "n"}}
    assert raw == expected


def test_reading_ignores_what_a_newer_server_adds() -> None:
    raw = {**CLAIM, "newField": {"x": 1}}
    assert codec.convert(resource.ResourceClaim, raw).metadata.name == "a"


def test_strict_decoding_names_every_unknown_field_with_its_path() -> None:
    raw = msgspec.json.decode(msgspec.json.encode(CLAIM))
    raw["spec"]["devices"]["requests"][0]["exactly"]["deviceClass"] = "typo"
    raw["metadata"]["lables"] = {}
    with pytest.raises(DecodeError) as e:
        codec.decode_strict(resource.ResourceClaim, msgspec.json.encode(raw))
    assert "metadata.lables" in str(e.value)
    assert "spec.devices.requests[0].exactly.deviceClass" in str(e.value)


def test_opaque_parameters_are_not_ours_to_judge() -> None:
    codec.decode_strict(resource.ResourceClaim, msgspec.json.encode(CLAIM))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "ResourceClaim"),
        (b'{"spec": {"devices": {"requests": [{"name": 7}]}}}', "$.spec.devices.requests[0].name"),
        (
            (
                b'{"spec":{"devices":{"requests":[{"name":"g","exactly":{"deviceClassName":"c",'
                b'"capacity":{"requests":{"memory":"32Gx"}}}}]}}}'
            ),
            "'32Gx' is not a quantity",
        ),
        (b"\xff", "ResourceClaim"),
    ],
)
def test_a_malformed_object_is_refused_with_the_place(body: bytes, says: str) -> None:
    with pytest.raises(DecodeError) as e:
        codec.decode(resource.ResourceClaim, body)
    assert says in str(e.value)


def test_values_that_are_no_plain_data_are_refused() -> None:
    with pytest.raises(DecodeError):
        codec.convert(resource.ResourceClaim, {"metadata": {"name": {1, 2}}})


def nested(levels: int) -> bytes:
    """A claim with opaque parameters of so many levels, which an API server stores up to 10 KiB of text."""
    value = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
    return b'{"spec":{"devices":{"config":[{"opaque":{"driver":"d","parameters":' + value + b"}}]}}}"


def test_parameters_of_many_levels_are_decoded_wherever_that_is_called() -> None:
    def below(calls: int) -> resource.ResourceClaim:
        return below(calls - 1) if calls else codec.decode(resource.ResourceClaim, nested(5_100))

    claim = below(100)
    assert codec.encode(claim) == codec.encode(codec.decode(resource.ResourceClaim, codec.encode(claim)))
    assert below(200) == claim


def test_more_levels_than_any_object_has_are_refused() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(DecodeError, match="nested too deeply"):
        codec.decode(resource.ResourceClaim, nested(30_000))
    assert sys.getrecursionlimit() == limit


def test_null_requests_as_the_server_writes_them() -> None:
    claim = codec.decode(resource.ResourceClaim, b'{"spec":{"devices":{"requests":null}}}')
    assert claim.spec.devices.requests is None


def test_inventory_names_stay_within_the_limit_and_apart() -> None:
    long = "n" * 250
    one = inventory.inventory_name(long + "a", "gpu.dra-driver.dev")
    two = inventory.inventory_name(long + "b", "gpu.dra-driver.dev")
    assert len(one) <= 253
    assert one != two
    assert inventory.inventory_name("node1", "gpu.dra-driver.dev") == "node1.gpu.dra-driver.dev"
