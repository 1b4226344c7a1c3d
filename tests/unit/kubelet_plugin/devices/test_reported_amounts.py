"""What a broken backend finds is cut to what the API server takes, and says so."""

from __future__ import annotations

import pytest

from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventorySpec, InventoryDevice, PartitionProfile
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceCapacity
from kubelet_plugin.devices.inventory import fit


def amount(text: str) -> DeviceCapacity:
    return DeviceCapacity(value=Quantity.parse(text))


@pytest.mark.parametrize("text", ["8Ei", "2Pi", "-1"])
def test_an_amount_that_no_device_has_is_left_out_and_reported(text: str) -> None:
    profiles = (
        PartitionProfile(name="good", capacity={"memory": amount("10Gi")}),
        PartitionProfile(name="bad", capacity={"memory": amount(text)}),
    )
    broken = InventoryDevice(
        name="gpu-0", capacity={"memory": amount("80Gi"), "bar": amount(text)}, partitions=profiles
    )
    well = InventoryDevice(name="gpu-1", capacity={"memory": amount("1Pi")})
    spec = DeviceInventorySpec(node_name="n", driver=DriverName("d"), devices=(broken, well))
    first, second = fit(spec).devices
    assert first.capacity.keys() == {"memory"}
    assert [p.name for p in first.partitions] == ["good"]
    (health,) = first.health
    assert (health.reason, health.severity) == ("ImplausibleCapacity", "degraded")
    assert f"bar {amount(text).value}" in health.message
    assert "partition bad" in health.message
    assert second == well
    assert fit(fit(spec)) == fit(spec)
