"""Objects in Kubernetes' protobuf form, which ``kubectl create`` sends."""

from __future__ import annotations

import contextlib

import pytest
from apiserver_client import CONFIG_MAPS, Client, run
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.sim.apiserver.objects.fields import struct_type
from dra_driver.sim.apiserver.objects.protobuf import decode_protobuf
from dra_driver.sim.apiserver.objects.status import StatusError


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = _field(1, api_version) + _field(2, kind)
    return b"k8s\x00" + _field(1, meta) + _field(2, raw) + _field(3, "") + _field(4, "")


def _map(number: int, **entries: str) -> bytes:
    return b"".join(_field(number, _field(1, k) + _field(2, v)) for k, v in entries.items())


def test_a_config_map() -> None:
    metadata = _field(1, "m") + _field(2, "") + _field(7, 0) + _map(11, a="b")
    raw = _field(1, metadata) + _map(2, x="y") + _field(3, _field(1, "z") + _field(2, b"\x00\x01"))
    assert decode_protobuf(_envelope("v1", "ConfigMap", raw), struct_type("core.ConfigMap")) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "labels": {"a": "b"}},
        "data": {"x": "y"},
        "binaryData": {"z": "AAE="},
    }


def test_embedded_messages_times_quantities_and_ports() -> None:
    limits = _field(1, _field(1, "memory") + _field(2, _field(1, "1Gi")))
    probe = _field(1, _field(2, _field(2, _field(1, 1) + _field(3, "http"))))
    container = _field(1, "c") + _field(8, limits) + _field(10, probe)
    volume = _field(1, "v") + _field(2, _field(1, _field(1, "/dev")))
    spec = _field(1, volume) + _field(2, container) + _field(4, 5)
    metadata = _field(1, "p") + _field(8, _field(1, 1_700_000_000))
    found = decode_protobuf(
        _envelope("v1", "Pod", _field(1, metadata) + _field(2, spec)), struct_type("core.Pod")
    )
    assert found["metadata"] == {"name": "p", "creationTimestamp": "2023-11-14T22:13:20Z"}
    assert found["spec"] == {
        "volumes": [{"name": "v", "hostPath": {"path": "/dev"}}],
        "containers": [
            {
                "name": "c",
                "resources": {"limits": {"memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"port": "http"}},
            }
        ],
        "terminationGracePeriodSeconds": 5,
    }


def test_it_can_be_posted() -> None:
    async def scenario(client: Client) -> None:
        data = _envelope("v1", "ConfigMap", _field(1, _field(1, "m")) + _map(2, a="1"))
        content_type = "application/vnd.kubernetes.protobuf"
        code, answer = await client.call("POST", CONFIG_MAPS, data, content_type)
        assert (code, answer["data"]) == (201, {"a": "1"})
        code, answer = await client.call("POST", CONFIG_MAPS, b"k8s\x00\xff", content_type)
        assert code == 400

    run(scenario)


@given(st.binary(max_size=64))
def test_nonsense_is_refused_or_decoded_but_never_breaks(data: bytes) -> None:
    for body in (data, b"k8s\x00" + data, _envelope("v1", "Pod", data)):
        with contextlib.suppress(StatusError):
            decode_protobuf(body, struct_type("core.Pod"))


@pytest.mark.parametrize(
    "kind", ["resource.ResourceSlice", "core.Node", "apps.Deployment", "rbac.ClusterRole"]
)
def test_an_empty_object_of_any_kind(kind: str) -> None:
    assert decode_protobuf(_envelope("v1", "X", b""), struct_type(kind)) == {"apiVersion": "v1", "kind": "X"}
