"""Opaque parameters: what is understood, what is refused, and that every finding is told at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.names import DEFAULT_DRIVER_NAME, NVIDIA_DRIVER_NAME
from dra_driver.api.own.opaque import MAX_BYTES
from dra_driver.api.own.parameters import (
    DeviceType,
    IommuBackend,
    KernelDriver,
    Parameters,
    Strategy,
    TimeSlice,
    decode_parameters,
)
from dra_driver.errors import InvalidParameters

GIB = 1 << 30


def read(kind: str, driver: str = DEFAULT_DRIVER_NAME, **fields: Any) -> Parameters:
    theirs = kind.startswith("nvidia:")
    version = "resource.nvidia.com/v1beta1" if theirs else "dra-driver.dev/v1alpha1"
    document = {"apiVersion": version, "kind": kind.removeprefix("nvidia:"), **fields}
    return decode_parameters(json.dumps(document).encode(), driver)


def findings(kind: str, driver: str = DEFAULT_DRIVER_NAME, **fields: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidParameters) as caught:
        read(kind, driver, **fields)
    return caught.value.findings


def test_defaults() -> None:
    gpu, share = read("GpuConfig"), read("ShareConfig")
    assert (gpu.strategy, gpu.interval, gpu.types) == (Strategy.NONE, None, frozenset({DeviceType.GPU}))
    assert (share.strategy, share.types) == (Strategy.AUTO, frozenset({DeviceType.SHARE}))
    slicing = read("GpuConfig", sharing={"strategy": "TimeSlicing"})
    assert (slicing.strategy, slicing.interval) == (Strategy.TIME_SLICING, TimeSlice.DEFAULT)


def test_mps_limits() -> None:
    mps = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "8Gi"}
    found = read("GpuConfig", sharing={"strategy": "MPS", "mps": mps})
    assert (found.strategy, found.thread_percentage, found.memory_limit) == (Strategy.MPS, 50, 8 * GIB)
    share = read("ShareConfig", enforcement="MPS", mps=mps)
    assert (share.strategy, share.thread_percentage, share.memory_limit) == (Strategy.MPS, 50, 8 * GIB)


def test_a_share_may_slice_time_where_nothing_is_enforced() -> None:
    share = read("ShareConfig", enforcement="None", timeSlicing={"interval": "Long"})
    assert (share.strategy, share.interval) == (Strategy.TIME_SLICING, TimeSlice.LONG)
    assert findings("ShareConfig", timeSlicing={}) == (
        "ShareConfig: timeSlicing: needs enforcement None: MPS does not slice time",
    )


@pytest.mark.parametrize("kind", ["GpuConfig", "MigConfig", "ShareConfig"])
def test_capabilities_of_the_driver(kind: str) -> None:
    assert read(kind).capabilities is None
    assert read(kind, driverCapabilities=[]).capabilities == ()
    asked = ["graphics", "utility", "graphics"]
    assert read(kind, driverCapabilities=asked).capabilities == ("utility", "graphics")
    everything = read(kind, driverCapabilities=["all", "imex"]).capabilities
    assert everything is not None
    assert set(everything) == {
        "compute", "utility", "video", "graphics", "display", "ngx", "compat32", "imex"
    }  # fmt: skip
    assert "imex" not in (read(kind, driverCapabilities=["all"]).capabilities or ())
    for wrong in ("graphics", ["Graphics"], [1], {"graphics": True}):
        (finding,) = findings(kind, driverCapabilities=wrong)
        assert finding.startswith(f"{kind}: driverCapabilities: expected a list of compute, utility, video,")


def test_a_bare_function_has_nothing_of_the_driver() -> None:
    document = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "GpuConfig",
        "driver": "vfio-pci",
        "driverCapabilities": ["compute"],
    }
    with pytest.raises(InvalidParameters) as caught:
        decode_parameters(json.dumps(document).encode(), DEFAULT_DRIVER_NAME)
    assert caught.value.findings == (
        "GpuConfig: driverCapabilities: driver vfio-pci gives nothing of the vendor's driver",
    )


def test_nvidias_kinds_under_their_name_only() -> None:
    sharing = {
        "strategy": "MPS",
        "mpsConfig": {
            "defaultActiveThreadPercentage": 0,
            "defaultPinnedDeviceMemoryLimit": "4Gi",
            "defaultPerDevicePinnedMemoryLimit": {"GPU-1": "2Gi", "1": "3Gi"},
        },
    }
    found = read("nvidia:GpuConfig", NVIDIA_DRIVER_NAME, sharing=sharing)
    assert found.thread_percentage is None
    assert [found.memory_limit_of(u, i) for u, i in (("GPU-1", 0), ("x", 1), ("x", 2))] == [
        2 * GIB,
        3 * GIB,
        4 * GIB,
    ]
    assert read("nvidia:MigDeviceConfig", NVIDIA_DRIVER_NAME).types == {DeviceType.PARTITION}
    (finding,) = findings("nvidia:GpuConfig", sharing=sharing)
    assert "unknown; gpu.dra-driver.dev knows dra-driver.dev/v1alpha1 GpuConfig" in finding
    assert read("GpuConfig", NVIDIA_DRIVER_NAME).kind == "GpuConfig"


def bare(**fields: Any) -> Parameters:
    document = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "driver": "vfio-pci", **fields}
    return decode_parameters(json.dumps(document).encode(), DEFAULT_DRIVER_NAME)


def test_how_a_function_is_used_that_is_handed_over() -> None:
    assert (bare().iommu, bare().api_device) == (IommuBackend.LEGACY_ONLY, True)
    found = bare(iommu={"backendPolicy": "IommuFDOnly", "enableAPIDevice": False})
    assert (found.iommu, found.api_device) == (IommuBackend.IOMMUFD_ONLY, False)
    assert findings("GpuConfig", iommu={}) == ("GpuConfig: iommu: needs driver vfio-pci",)
    with pytest.raises(InvalidParameters) as caught:
        bare(iommu={"backendPolicy": "x", "enableAPIDevice": 1, "y": 1})
    assert caught.value.findings == (
        "GpuConfig: iommu.backendPolicy: expected LegacyOnly, PreferIommuFD, IommuFDOnly; got 'x'",
        "GpuConfig: iommu.enableAPIDevice: expected true or false, got 1",
        "GpuConfig: iommu.y: unknown field",
    )


def test_nvidias_vfio_device_config() -> None:
    """Defaults, and what it accepts, as in its ``Normalize`` and ``Validate``."""
    defaults: list[dict[str, Any]] = [{}, {"iommu": {}}, {"iommu": None}, {"iommu": {"backendPolicy": ""}}]
    for fields in defaults:
        found = read("nvidia:VfioDeviceConfig", NVIDIA_DRIVER_NAME, **fields)
        assert (found.driver, found.types) == (KernelDriver.VFIO_PCI, frozenset({DeviceType.GPU}))
        assert (found.iommu, found.api_device) == (IommuBackend.LEGACY_ONLY, False)
    iommu = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
    found = read("nvidia:VfioDeviceConfig", NVIDIA_DRIVER_NAME, iommu=iommu)
    assert (found.iommu, found.api_device) == (IommuBackend.PREFER_IOMMUFD, True)
    iommu = {"backendPolicy": "IommuFDOnly"}
    assert findings("nvidia:VfioDeviceConfig", NVIDIA_DRIVER_NAME, iommu=iommu, sharing={}) == (
        "VfioDeviceConfig: iommu.backendPolicy: expected LegacyOnly, PreferIommuFD; got 'IommuFDOnly'",
        "VfioDeviceConfig: sharing: unknown field",
    )
    (finding,) = findings("nvidia:VfioDeviceConfig")
    assert "unknown; gpu.dra-driver.dev knows" in finding


def test_all_findings_at_once() -> None:
    found = findings(
        "GpuConfig",
        sharing={
            "strategy": "MPS",
            "timeSlicing": {"interval": "Forever"},
            "mps": {"activeThreadPercentage": 101, "pinnedDeviceMemoryLimit": "1Ki", "more": 1},
            "x": 1,
        },
        y=2,
    )
    assert sorted(found) == [
        "GpuConfig: sharing.mps.activeThreadPercentage: expected a whole number from 1 to 100, got 101",
        "GpuConfig: sharing.mps.more: unknown field",
        "GpuConfig: sharing.mps.pinnedDeviceMemoryLimit: expected from 1Mi to 1Pi, got '1Ki'",
        "GpuConfig: sharing.timeSlicing.interval: expected Default, Short, Medium, Long; got 'Forever'",
        "GpuConfig: sharing.timeSlicing: needs strategy TimeSlicing",
        "GpuConfig: sharing.x: unknown field",
        "GpuConfig: y: unknown field",
    ]


def test_a_partition_has_no_time_slice() -> None:
    assert read("MigConfig", sharing={"strategy": "TimeSlicing"}).interval is None
    (finding,) = findings("MigConfig", sharing={"strategy": "TimeSlicing", "timeSlicing": {}})
    assert "no time slice of its own" in finding


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b"\xff", b'"x"', b"[" * 9000, b"{}", b'{"kind":[],"apiVersion":{}}'],
)
def test_what_is_no_parameters_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidParameters):
        decode_parameters(data, DEFAULT_DRIVER_NAME)


def test_too_large() -> None:
    with pytest.raises(InvalidParameters, match="at most 10240 are read"):
        decode_parameters(b" " * (MAX_BYTES + 1), DEFAULT_DRIVER_NAME)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["strategy", "mps", "timeSlicing", "interval", "activeThreadPercentage", "mpsConfig", "x\n"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(
    kind=st.sampled_from(["GpuConfig", "MigConfig", "ShareConfig", "nvidia:GpuConfig"]),
    fields=st.dictionaries(st.sampled_from(["sharing", "enforcement", "mps", "timeSlicing"]), _json),
)
def test_any_document_is_read_or_refused(kind: str, fields: dict[str, Any]) -> None:
    told: tuple[str, ...] = ()
    try:
        read(kind, NVIDIA_DRIVER_NAME, **fields)
    except InvalidParameters as e:
        told = e.findings
    assert not any("\n" in finding for finding in told)
