"""Broken sysfs trees: no backend crashes, and what is broken costs at most its own device."""

from __future__ import annotations

import ctypes
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import hardware_support as hw
import pytest
import work_counter

from dra_driver.cli import main
from dra_driver.discovery import open_backend
from dra_driver.errors import DiscoveryError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import TelemetrySource

BACKENDS = {
    "mi300x-spx": "amdgpu",
    "mi300x-cpx": "amdgpu",
    "radeon": "amdgpu",
    "flex": "intel",
    "max": "intel",
    "connectx7": "rdma",
}
# With 64 devices by far the largest machine, and of a kind that is there without it.
LARGEST = "mi300x-cpx"
GARBAGE = (
    b"",
    b"\n",
    b"\x00\xff\xfe",
    b"-1\n",
    b"9" * 400,
    b"0x\n",
    b"../../etc\n",
    b"A" * 8192,
    b"name\n" * 900,
)


def discover(backend: str, root: Path) -> Sequence[DiscoveredDevice]:
    opened = open_backend(backend, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
    try:
        return opened.discover()
    except DiscoveryError:
        return []
    finally:
        opened.close()


def long_where_largest(specs: Iterable[str]) -> list[object]:
    """Return the machines as parameters, of which the largest one counts as long."""
    return [pytest.param(s, marks=[pytest.mark.long] if s == LARGEST else []) for s in specs]


def met(specs: Iterable[str], garbage: Sequence[bytes]) -> list[object]:
    """Return machines with garbage as parameters; by default a backend's machines meet it by turns."""
    chosen = list(specs)
    small = [s for s in chosen if s != LARGEST]
    parameters: list[object] = []
    for spec in chosen:
        alike = [s for s in small if BACKENDS[s] == BACKENDS[spec]]
        for n, g in enumerate(garbage):
            marks = [] if alike[n % len(alike)] == spec else [pytest.mark.long]
            parameters.append(pytest.param(spec, g, marks=marks, id=f"{n}-{spec}"))
    return parameters


def files_of(root: Path) -> list[Path]:
    return sorted(p for p in (root / "sys").rglob("*") if p.is_file() and not p.is_symlink())


@pytest.mark.parametrize(("spec", "garbage"), met(BACKENDS, GARBAGE))
def test_garbage_in_every_file(spec: str, garbage: bytes, tmp_path: Path) -> None:
    root = hw.machine(tmp_path, spec)
    for file in files_of(root):
        file.write_bytes(garbage)
    for found in discover(BACKENDS[spec], root):
        assert found.device.name
        assert found.uuid


SAMPLED = (
    "hwmon/hwmon1/temp1_input", "hwmon/hwmon1/power1_average", "hwmon/hwmon1/energy1_input",
    "gpu_busy_percent",
    "mem_info_vram_used", "tile0/gt0/gtidle/idle_residency_ms", "drm/card0/gt/gt0/rc6_residency_ms",
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "garbage"),
    met((s for s, backend in BACKENDS.items() if backend != "rdma"), [*GARBAGE, b"18446744073709551615\n"]),
)
def test_samples_of_garbage_are_absent_or_plausible(spec: str, garbage: bytes, tmp_path: Path) -> None:
    root = hw.machine(tmp_path, spec)
    backend = open_backend(BACKENDS[spec], sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
    found = backend.discover()
    assert isinstance(backend, TelemetrySource)
    for function in (root / "sys/devices").glob("pci*/*:*"):
        for file in SAMPLED:
            (function / file).parent.mkdir(parents=True, exist_ok=True)
            (function / file).write_bytes(garbage)
    for _ in range(2):
        samples = backend.sample()
        assert {s.device for s in samples} <= {d.device.name for d in found}
        assert all(s.utilization is None or 0 <= s.utilization <= 1 for s in samples)


@pytest.mark.parametrize("spec", long_where_largest(BACKENDS))
@pytest.mark.parametrize("how", ["missing", "loop", "directory", "escape"])
def test_files_that_are_none(spec: str, how: str, tmp_path: Path) -> None:
    root = hw.machine(tmp_path, spec)
    for file in files_of(root):
        file.unlink()
        if how == "loop":
            file.symlink_to(file.name)
        elif how == "directory":
            file.mkdir()
        elif how == "escape":
            file.symlink_to("/etc/passwd")
    for found in discover(BACKENDS[spec], root):
        assert "root:" not in hw.describe([found])


@pytest.mark.parametrize("spec", long_where_largest(BACKENDS))
def test_links_in_circles(spec: str, tmp_path: Path) -> None:
    root = hw.machine(tmp_path, spec)
    for link in sorted(p for p in (root / "sys").rglob("*") if p.is_symlink()):
        link.unlink()
        link.symlink_to(link.parent)
    discover(BACKENDS[spec], root)


@pytest.mark.parametrize("spec", long_where_largest(BACKENDS))
def test_half_of_a_tree(spec: str, tmp_path: Path) -> None:
    """Whatever is missing: the same seed, the same half."""
    root = hw.machine(tmp_path, spec)
    chance = random.Random(spec)
    for path in sorted((root / "sys").rglob("*")):
        if chance.random() < 0.3 and (path.is_symlink() or path.exists()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    discover(BACKENDS[spec], root)


@pytest.mark.parametrize(
    ("spec", "device"),
    [("mi300x-spx", "0000:27:00.0"), ("max", "0000:29:00.0"), ("connectx7", "0000:9c:00.0")],
)
def test_a_broken_device_costs_no_other(spec: str, device: str, tmp_path: Path) -> None:
    root = hw.machine(tmp_path, spec)
    before = {d.device.name: hw.describe([d]) for d in discover(BACKENDS[spec], root)}
    for file in files_of(root):
        if device in str(file):
            file.write_bytes(b"\xff" * 100)
    after = {d.device.name: hw.describe([d]) for d in discover(BACKENDS[spec], root)}
    label = device.replace(":", "-").replace(".", "-")
    assert {n: t for n, t in after.items() if label not in n} == {
        n: t for n, t in before.items() if label not in n
    }


# By default ``test_the_work_grows_with_the_devices``.
@pytest.mark.long
@pytest.mark.parametrize("kind", ["intel", "amdgpu", "rdma"])
def test_256_devices(kind: str, tmp_path: Path) -> None:
    device = {"amdgpu": "74a1", "intel": "56c0", "rdma": "1021"}[kind]
    at = ", ".join(f'"0000:{i:02x}:00.0 pci0000:00"' for i in range(1, 129))
    more = ", ".join(f'"0001:{i:02x}:00.0 pci0001:00"' for i in range(128))
    text = f"devices:\n- {{kind: {kind}, deviceID: '{device}', at: [{at}, {more}]}}\n"
    assert len(discover(kind, hw.machine(tmp_path, text))) == 256


@pytest.mark.parametrize("kind", ["amdgpu", "intel", "rdma"])
def test_the_work_grows_with_the_devices(kind: str, tmp_path: Path) -> None:
    device = {"amdgpu": "74a1", "intel": "56c0", "rdma": "1021"}[kind]

    def work(number: int) -> int:
        at = ", ".join(f'"0000:{i:02x}:00.0 pci0000:00"' for i in range(1, number + 1))
        text = f"devices:\n- {{kind: {kind}, deviceID: '{device}', at: [{at}]}}\n"
        root = hw.machine(tmp_path / str(number), text)
        assert len(discover(kind, root)) == number
        return work_counter.calls(lambda: discover(kind, root))

    assert work(32) < 5 * work(8)


def test_a_bare_machine_names_every_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's library: it is not bare")
    assert main.main(["devices", "--sysfs-root", f"{tmp_path}/sys", "--dev-root", f"{tmp_path}/dev"]) == 0
    text = capsys.readouterr().out
    assert "No devices were found" in text
    for line in (
        "nvml: libnvidia-ml.so.1 cannot be loaded",
        f"amdgpu: {tmp_path}/sys/module/amdgpu/drivers/pci:amdgpu is not there",
        f"intel: {tmp_path}/sys/bus/pci/devices is not there",
        f"rdma: {tmp_path}/sys/class/infiniband is not there",
        f"device node: {tmp_path}/dev/nvidiactl: not there",
    ):
        assert line in text


def test_an_empty_machine_says_what_was_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = ["--sysfs-root", str(tmp_path / "sys"), "--dev-root", str(tmp_path / "dev")]
    flags = [f for name in ("amdgpu", "intel", "rdma") for f in ("--backend", name)]
    # A backend that was asked for by name and is not there is a failure …
    assert main.main(["devices", *flags, *roots]) == 1
    capsys.readouterr()
    for folder in ("sys/bus/pci/devices", "sys/class/infiniband", "sys/module/amdgpu/drivers/pci:amdgpu"):
        (tmp_path / folder).mkdir(parents=True)
    # … one that is there and has no devices is none.
    assert main.main(["devices", *flags, *roots]) == 0
    text = capsys.readouterr().out
    for line in ("amdgpu: no devices", "intel: no devices", "rdma: no devices", "0 PCI functions"):
        assert line in text
