"""Simulated machines as trees: what the backends find on each, against golden files; and the command."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import hardware_support as hw
import pytest
from nonempty import nonempty

from dra_driver.cli import main
from dra_driver.discovery import GPU_BACKENDS, NIC_BACKENDS, LastKnownGood, open_backends
from dra_driver.discovery.simulated import layout, profile
from dra_driver.discovery.simulated.machine import NvidiaGpu
from dra_driver.errors import ConfigurationError
from dra_driver.hardware import DiscoveredDevice

# NVML is a library: of a machine with nothing but NVIDIA's GPUs no backend finds anything in files.
SPECS = [
    name
    for name in profile.built_in_profiles()
    if not all(isinstance(device.hardware, NvidiaGpu) for device in profile.load(name).devices)
]


def discover(root: Path) -> list[DiscoveredDevice]:
    # NVML is a library, not files: what it finds here depends on the machine that runs the tests.
    kinds = [n for n in (*GPU_BACKENDS, *NIC_BACKENDS) if n != "nvml"]
    opened = open_backends(kinds, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
    return [device for backend in opened for device in LastKnownGood(backend, optional=True).look()]


@pytest.mark.parametrize("spec", SPECS)
def test_a_built_in_machine_is_found_as_recorded(spec: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """UPDATE_GOLDEN=1 writes the files anew; read the difference before it is committed."""
    text = hw.describe(discover(hw.shared_machine(tmp_path_factory, spec)))
    file = hw.GOLDEN / f"{spec}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_every_machine_has_its_golden_file() -> None:
    assert {f.stem for f in hw.GOLDEN.glob("*.txt")} == set(SPECS)
    assert set(SPECS) >= {
        "arc", "assorted", "connectx7", "dgx-a100", "flex", "max", "mi210", "mi300x-cpx", "mi300x-spx",
        "radeon",
    }  # fmt: skip


def test_the_kernels_view_of_nvidia_is_there(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "dgx-a100")
    assert len(list((root / "proc/driver/nvidia/gpus").iterdir())) == 8
    assert {f.name for f in (root / "dev").glob("nvidia*")} >= {
        "nvidia0",
        "nvidia7",
        "nvidiactl",
        "nvidia-uvm",
    }
    assert (root / "sys/bus/pci/devices/0000:07:00.0/numa_node").read_text() == "3\n"


def test_no_link_leads_out_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    for spec in nonempty(profile.built_in_profiles()):
        root = hw.shared_machine(tmp_path_factory, spec).resolve()
        for path in nonempty(p for p in root.rglob("*") if p.is_symlink()):
            assert path.resolve(strict=True).is_relative_to(root), path


def test_the_command_builds_what_devices_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "m"
    assert main.main(["fake-hardware", "--spec", "flex", "--root", str(root)]) == 0
    assert "Flex" in capsys.readouterr().out
    flags = ["--backend", "intel", "--sysfs-root", f"{root}/sys", "--dev-root", f"{root}/dev"]
    assert main.main(["devices", *flags]) == 0
    assert "Flex-170" in capsys.readouterr().out


def test_nothing_is_written_over_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main.main(["fake-hardware", "--spec", "arc", "--root", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_device_nodes_of_the_null_device(tmp_path: Path) -> None:
    machine = profile.load("arc")
    try:
        layout.build(machine, tmp_path / "m", mknod=True)
    except ConfigurationError as e:
        assert "device nodes need root" in str(e)  # noqa: PT017 - one of the two outcomes, by who runs it
        return
    assert stat.S_ISCHR((tmp_path / "m/dev/dri/card1").stat().st_mode)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("devices: 7", "devices: '7' is not a list"),
        ("devices: [{kind: gpu}]", "devices[0].kind: 'gpu' is not allowed; allowed are amdgpu, intel"),
        ("devices: [{at: []}]", "devices[0]: kind is missing"),
        ("devices: [{kind: intel, at: [x], deviceID: 56c0}]", "devices[0].at[0]: not a PCI address"),
        ('devices: [{kind: intel, at: ["0000:00:00.0 pci0000:00 x"], deviceID: 56c0}]', "not a PCI address"),
        ("devices: [{kind: intel, at: [], deviceID: ../x}]", "is not four hex digits"),
        ("devices: [{kind: intel, at: [], deviceID: 56c0, hive: a}]", "unknown key 'hive'"),
        (
            "devices: [{kind: intel, at: [], deviceID: 56c0, driver: ../x}]",
            "is not the name of a kernel driver",
        ),
        (
            'devices: [{kind: intel, at: ["0000:00:00.0", "0000:00:00.0"], deviceID: 56c0}]',
            "'0000:00:00.0' is given twice",
        ),
        ("modules: {../x: 1}\ndevices: []", "is not the name of a kernel module"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, finding: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        profile.load(str(tmp_path / "m.yaml"))
    assert finding in str(caught.value)


def test_an_unknown_machine_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match="'dgx' is unknown: allowed are arc, assorted, connectx7"):
        profile.load("dgx")
