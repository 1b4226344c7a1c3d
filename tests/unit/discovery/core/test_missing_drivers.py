"""GPUs that are on the PCI bus without the software to look at them: that is said, with what to do."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

from dra_driver import discovery
from dra_driver.cli import main
from dra_driver.discovery import LastKnownGood

NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
ARC = "0x56a0"


def function(
    sysfs: Path, address: str, vendor: str, *, kind: str = "0x030200", driver: str = "", device: str = "0x1"
) -> None:
    """A PCI function, bound to a driver or not."""
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("class", kind), ("vendor", vendor), ("device", device)):
        (folder / name).write_text(f"{text}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def module(sysfs: Path, name: str = "") -> None:
    """The folder of kernel modules, with one that is loaded."""
    (sysfs / "module" / name).mkdir(parents=True, exist_ok=True)


def without_library() -> None:
    """Skips on machines that have NVIDIA's library."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return
    pytest.skip("this machine has NVIDIA's library")


def look(tmp_path: Path, spec: str, *, optional: bool = True) -> LastKnownGood:
    """One look of a backend at the machine of a test."""
    backend = discovery.open_backend(
        spec,
        sysfs_root=tmp_path / "sys",
        dev_root=tmp_path / "dev",
        host_root=tmp_path / "host",
        node_name="n",
    )
    kept = LastKnownGood(backend, optional=optional)
    kept.look()
    return kept


def devices(tmp_path: Path, *arguments: str) -> int:
    """Exit status of ``dra-driver devices`` on the machine of a test."""
    roots = ("--sysfs-root", f"{tmp_path}/sys", "--dev-root", f"{tmp_path}/dev")
    return main.main(["devices", *roots, "--host-root", f"{tmp_path}/host", *arguments])


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_nvidia_gpus_without_the_library_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    without_library()
    function(tmp_path / "sys", "0000:3b:00.0", NVIDIA, kind=kind, driver="nvidia")
    module(tmp_path / "sys", "nvidia")
    assert devices(tmp_path) == 1
    said = capsys.readouterr().err
    assert "1 NVIDIA GPU is on the PCI bus: 0000:3b:00.0 (bound to nvidia)" in said
    assert "runtimeClassName: nvidia" in said
    assert "--nvidia-driver-root" in said
    assert "/run/nvidia/driver, /home/kubernetes/bin/nvidia, /opt/nvidia" in said


def test_nvidia_gpus_without_the_kernel_driver_are_told(tmp_path: Path) -> None:
    without_library()
    function(tmp_path / "sys", "0000:3b:00.0", NVIDIA, driver="nouveau")
    function(tmp_path / "sys", "0000:af:00.0", NVIDIA)
    module(tmp_path / "sys", "nouveau")
    report = look(tmp_path, "nvml").report
    assert report.state == "driverless"
    assert report.broken
    assert "2 NVIDIA GPUs are on the PCI bus: 0000:3b:00.0 (bound to nouveau), 0000:af:00.0 (no driver)" in (
        report.message
    )
    assert "NVIDIA's kernel driver is not loaded: install it" in report.message


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub"])
def test_gpus_of_virtual_machines_need_no_driver(tmp_path: Path, driver: str) -> None:
    without_library()
    for i, vendor in enumerate((NVIDIA, AMD)):
        function(tmp_path / "sys", f"0000:3{i}:00.0", vendor, driver=driver)
    module(tmp_path / "sys")
    assert [look(tmp_path, name).report.state for name in ("nvml", "amdgpu")] == ["absent", "absent"]
    assert devices(tmp_path) == 0


def test_other_functions_of_the_vendor_are_no_gpus(tmp_path: Path) -> None:
    without_library()
    function(tmp_path / "sys", "0000:3b:00.1", NVIDIA, kind="0x040300")  # sound
    function(tmp_path / "sys", "0000:3c:00.0", NVIDIA, kind="0x068000")  # NVSwitch
    function(tmp_path / "sys", "0000:3d:00.0", "0x1a03", kind="0x030000")  # a server's console
    assert look(tmp_path, "nvml").report.state == "absent"
    assert devices(tmp_path) == 0


def test_amd_gpus_without_amdgpu_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function(tmp_path / "sys", "0000:05:00.0", AMD, kind="0x120000")
    assert devices(tmp_path, "--backend", "amdgpu") == 1
    said = capsys.readouterr().err
    assert "1 AMD GPU is on the PCI bus: 0000:05:00.0 (no driver)" in said
    assert "modprobe amdgpu" in said


def test_an_old_radeon_is_served_by_its_own_driver(tmp_path: Path) -> None:
    function(tmp_path / "sys", "0000:05:00.0", AMD, kind="0x030000", driver="radeon")
    assert look(tmp_path, "amdgpu").report.state == "absent"


def test_amdgpu_without_kfd_is_a_problem_of_the_backend(tmp_path: Path) -> None:
    function(tmp_path / "sys", "0000:05:00.0", AMD, kind="0x120000", driver="amdgpu")
    drivers = tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu"
    drivers.mkdir(parents=True)
    (drivers / "0000:05:00.0").symlink_to("../../../../bus/pci/devices/0000:05:00.0")
    kept = look(tmp_path, "amdgpu")
    assert kept.report.state == "ok"
    assert [p.subject for p in kept.report.problems].count("KFD") == 1
    assert any("ROCm" in p.message for p in kept.report.problems)


def test_intel_gpus_without_i915_and_xe_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function(tmp_path / "sys", "0000:4d:00.0", INTEL, kind="0x030000", device=ARC)
    module(tmp_path / "sys")
    assert devices(tmp_path, "--backend", "intel") == 1
    said = capsys.readouterr().err
    assert "1 Intel GPU is on the PCI bus: 0000:4d:00.0 (no driver)" in said
    assert "modprobe xe" in said
    # With a driver that has not bound it, its condition says so.
    module(tmp_path / "sys", "xe")
    kept = look(tmp_path, "intel")
    assert kept.report.state == "ok"
    assert [h.reason for d in kept.devices for h in d.device.health] == ["DriverNotBound"]


def test_the_gpu_of_a_processor_needs_no_driver(tmp_path: Path) -> None:
    function(tmp_path / "sys", "0000:00:02.0", INTEL, kind="0x030000", device="0x46a6")
    module(tmp_path / "sys")
    assert devices(tmp_path, "--backend", "intel") == 0


def test_a_missing_driver_is_among_the_problems_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function(tmp_path / "sys", "0000:05:00.0", AMD, kind="0x120000")
    assert devices(tmp_path, "--backend", "amdgpu", "-o", "json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["devices"] == []
    assert data["problems"][0]["backend"] == "amdgpu"


def test_devices_that_were_there_stay_when_their_driver_goes(tmp_path: Path) -> None:
    function(tmp_path / "sys", "0000:4d:00.0", INTEL, kind="0x030000", device=ARC)
    module(tmp_path / "sys", "xe")
    kept = look(tmp_path, "intel")
    (tmp_path / "sys/module/xe").rmdir()
    kept.look()
    assert kept.report.state == "vanished"
    assert "DriverAbsent" in [h.reason for d in kept.devices for h in d.device.health]
