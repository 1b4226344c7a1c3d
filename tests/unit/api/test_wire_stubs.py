"""The stubs speak the kubelet's wire format, and are what the sources give."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

from paths import PROJECT

from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pluginregistration_pb2,
    podresources_v1_pb2,
)

ROOT = PROJECT


def test_services_have_the_names_the_kubelet_calls() -> None:
    names = {
        f"{service.full_name}/{method}"
        for module in (
            dra_v1_pb2,
            dra_v1beta1_pb2,
            health_v1_pb2,
            health_v1alpha1_pb2,
            pluginregistration_pb2,
            podresources_v1_pb2,
        )
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods_by_name
    }
    assert names == {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
        "pluginregistration.Registration/GetInfo",
        "pluginregistration.Registration/NotifyRegistrationStatus",
        "v1.DRAResourceHealth/NodeWatchResources",
        "v1.PodResourcesLister/List",
        "v1alpha1.DRAResourceHealth/NodeWatchResources",
    }


def test_prepare_response_bytes() -> None:
    answer = dra_v1_pb2.NodePrepareResourcesResponse()
    device = answer.claims["u"].devices.add(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    # Map entry: key 1 "u", value 2 {devices = 1}.
    inner = device.SerializeToString()
    value = b"\x0a" + bytes([len(inner)]) + inner
    entry = b"\x0a\x01u\x12" + bytes([len(value)]) + value
    assert answer.SerializeToString() == b"\x0a" + bytes([len(entry)]) + entry


def test_v1beta1_differs_only_in_share_ids() -> None:
    fields = {
        name: {
            m.name: {(f.name, f.number) for f in m.fields}
            for m in module.DESCRIPTOR.message_types_by_name.values()
        }
        for name, module in (("v1", dra_v1_pb2), ("v1beta1", dra_v1beta1_pb2))
    }
    fields["v1"]["Device"].remove(("share_id", 5))
    assert fields["v1"] == fields["v1beta1"]


def test_health_v1_is_v1alpha1_under_another_name() -> None:
    def described(module: ModuleType) -> object:
        file = module.DESCRIPTOR
        return (
            {
                name: {(f.name, f.number, f.type, f.is_repeated) for f in message.fields}
                for name, message in file.message_types_by_name.items()
            },
            {
                name: {(v.name, v.number) for v in enum.values}
                for name, enum in file.enum_types_by_name.items()
            },
        )

    assert described(health_v1_pb2) == described(health_v1alpha1_pb2)


def test_health_v1_bytes() -> None:
    health = health_v1_pb2.DeviceHealth(
        device=health_v1_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health_v1_pb2.UNHEALTHY,
        last_updated_time=3,
        health_check_timeout_seconds=4,
        message="m",
    )
    one = b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m"
    assert health.SerializeToString() == one
    answer = health_v1_pb2.NodeWatchResourcesResponse(devices=[health])
    assert answer.SerializeToString() == b"\x0a" + bytes([len(one)]) + one


def test_stubs_are_what_the_sources_give() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "proto" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
