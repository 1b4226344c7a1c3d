"""Which opaque parameters hold for which allocated device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_driver.api.meta import DriverName
from dra_driver.api.own.kinds import OtherParameters
from dra_driver.api.own.parameters import DeviceType, Parameters, TimeSlice
from dra_driver.api.resource import DeviceAllocationConfiguration, OpaqueDeviceConfiguration
from dra_driver.errors import InvalidParameters
from dra_driver.preparation.configs import resolve

DRIVER = "gpu.dra-driver.dev"
GPU, MIG, SHARE = DeviceType.GPU, DeviceType.PARTITION, DeviceType.SHARE


def entry(
    kind: str,
    *requests: str,
    source: str = "FromClaim",
    driver: str = DRIVER,
    version: str = "dra-driver.dev/v1alpha1",
    **fields: Any,
) -> DeviceAllocationConfiguration:
    raw = json.dumps({"apiVersion": version, "kind": kind, **fields}).encode()
    opaque = OpaqueDeviceConfiguration(driver=DriverName(driver), parameters=msgspec.Raw(raw))
    return DeviceAllocationConfiguration(source=source, requests=requests, opaque=opaque)


def slicing(interval: str, *requests: str, source: str = "FromClaim") -> DeviceAllocationConfiguration:
    sharing = {"strategy": "TimeSlicing", "timeSlicing": {"interval": interval}}
    return entry("GpuConfig", *requests, source=source, sharing=sharing)


def intervals(
    configs: Sequence[DeviceAllocationConfiguration], *results: tuple[str, DeviceType]
) -> list[TimeSlice | None]:
    return [p.interval if isinstance(p, Parameters) else None for p in resolve(configs, DRIVER, results)]


def test_later_wins_and_the_claim_after_the_class() -> None:
    configs = [slicing("Short"), slicing("Long", source="FromClass"), slicing("Medium", source="FromClass")]
    assert intervals(configs, ("a", GPU)) == [TimeSlice.SHORT]
    assert intervals(configs[1:], ("a", GPU)) == [TimeSlice.MEDIUM]
    assert intervals([slicing("Short"), slicing("Long")], ("a", GPU)) == [TimeSlice.LONG]


def test_requests_and_subrequests() -> None:
    configs = [slicing("Short"), slicing("Long", "a"), slicing("Medium", "b/first")]
    found = intervals(configs, ("a", GPU), ("a/x", GPU), ("b/first", GPU), ("b/second", GPU))
    assert found == [TimeSlice.LONG, TimeSlice.LONG, TimeSlice.MEDIUM, TimeSlice.SHORT]


def test_wrong_type() -> None:
    assert resolve([entry("MigConfig")], DRIVER, [("a", GPU)]) == [None]
    assert resolve([entry("MigConfig", "elsewhere")], DRIVER, [("a", GPU)]) == [None]
    mixed = resolve(
        [entry("MigConfig"), entry("ShareConfig"), entry("GpuConfig")], DRIVER, [("a", MIG), ("b", SHARE)]
    )
    assert [p.kind for p in mixed if p] == ["MigConfig", "ShareConfig"]
    with pytest.raises(InvalidParameters) as caught:
        resolve([entry("MigConfig", "a")], DRIVER, [("a", GPU), ("a", GPU)])
    (finding,) = caught.value.findings
    assert finding.startswith("parameters 0 (FromClaim, requests a): MigConfig is for a MIG partition")
    assert finding.endswith("but request a was given a whole GPU")


def test_other_drivers_are_skipped_and_all_findings_told() -> None:
    other = entry("Anything", driver="other.example.com")
    assert resolve([other], DRIVER, [("a", GPU)]) == [None]
    with pytest.raises(InvalidParameters) as caught:
        resolve([other, entry("GpuConfig", x=1), entry("Nothing", "a")], DRIVER, [("a", GPU)])
    first, second = caught.value.findings
    assert first == "parameters 1 (FromClaim, all requests): GpuConfig: x: unknown field"
    assert second.startswith("parameters 2 (FromClaim, requests a): apiVersion 'dra-driver.dev/v1alpha1'")


def test_nvidias_config_holds_for_shares_too() -> None:
    theirs = entry(
        "GpuConfig",
        driver="gpu.nvidia.com",
        version="resource.nvidia.com/v1beta1",
        sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    )
    found = resolve([theirs], "gpu.nvidia.com", [("a", GPU), ("b", SHARE)])
    assert [p.interval for p in found if isinstance(p, Parameters)] == [TimeSlice.LONG, TimeSlice.LONG]


def test_kinds_of_backends_hold_for_their_own_devices() -> None:
    kinds = {("acme.example/v1", "NpuConfig"): "acme"}
    npus = entry("NpuConfig", version="acme.example/v1", watts=5)
    found = resolve(
        [npus, slicing("Long")], DRIVER, [("a", GPU), ("b", GPU)], kinds=kinds, backends=["acme", ""]
    )
    # The last that fits: GpuConfig fits every whole device.
    assert [type(p) for p in found] == [Parameters, Parameters]
    first, second = resolve([npus], DRIVER, [("a", GPU), ("b", GPU)], kinds=kinds, backends=["acme", ""])
    assert isinstance(first, OtherParameters)
    assert json.loads(first.data)["watts"] == 5
    assert second is None
    with pytest.raises(InvalidParameters, match=r"unknown; .* knows .*, acme.example/v1 NpuConfig"):
        resolve([entry("NpuConfg", version="acme.example/v1")], DRIVER, [("a", GPU)], kinds=kinds)
