"""NVIDIA's library and device nodes below a driver's root on the host, with the stub of the library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from forked import ForkedScript

GPU = "GPU-11111111-0000-0000-0000-000000000000"
SCRIPT = """
import json, sys
from pathlib import Path
from dra_driver.cli import common
from dra_driver.discovery import LastKnownGood, open_backend
common.configure_logging("error", "json")
root, driver, later = Path(sys.argv[1]), *sys.argv[2:]
backend = open_backend(
    "nvml", sysfs_root=root / "sys", dev_root=root / "host/dev", host_root=root / "host",
    nvidia_driver_root=driver, procfs_root=root / "proc", node_name="n",
)
kept = LastKnownGood(backend)
kept.look()
if later:  # where the library is put meanwhile
    Path(later).rename(root / "host/run/nvidia/driver/usr")
nodes = [[n.path, n.host_path] for d in kept.look() for n in d.material.device_nodes]
problems = [p.message for p in kept.report.problems]
print(json.dumps(
    {"state": kept.report.state, "message": kept.report.message, "problems": problems, "nodes": nodes}
))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory) / "libnvidia-ml.so.1"


def look(
    root: Path,
    driver: str,
    *,
    linker: Path | None = None,
    system: list[str] | None = None,
    later: Path | None = None,
) -> Any:
    """What a process finds that has the library below the host's file system, or where the linker looks.

    With ``later`` this folder becomes the driver container's ``/usr`` after a first look.
    """
    gpu = stub.Gpu("T4", "00000000:07:00.0", 3, GPU)
    (root / "nvml.conf").write_text(stub.config([gpu], system=system or []))
    stub.fake_sysfs(root / "sys", {"0000:07:00.0": ("pci0000:00", 0)})
    (root / "sys/module/nvidia").mkdir(parents=True)
    arguments = (str(root), driver, str(later or ""))
    environment = {"NVML_STUB_CONFIG": str(root / "nvml.conf")}
    if linker is not None:
        environment["LD_LIBRARY_PATH"] = str(linker.parent)
    if linker is None or linker.read_bytes().startswith(b"\x7fELF"):
        (line,) = ForkedScript(SCRIPT, *arguments, environment=environment).finish()
    else:  # only the linker itself tries to load such a file, and it reads its variable once
        command = [sys.executable, "-c", SCRIPT, *arguments]
        line = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    return json.loads(line)


def install(library: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(library, folder / "libnvidia-ml.so.570.148.08")
    (folder / library.name).symlink_to("libnvidia-ml.so.570.148.08")


def nodes(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ("run/nvidia/driver/usr/lib/x86_64-linux-gnu", "auto"),
        ("home/kubernetes/bin/nvidia/lib64", "auto"),
        ("usr/local/glibc/usr/lib", "auto"),
        ("srv/nvidia/usr/lib64", "/srv/nvidia"),
    ],
)
def test_the_library_is_loaded_from_the_drivers_root(
    library: Path, tmp_path: Path, place: str, wanted: str
) -> None:
    install(library, tmp_path / "host" / place)
    nodes(tmp_path / "host/dev", "nvidiactl", "nvidia3")
    found = look(tmp_path, wanted)
    assert found["state"] == "ok", found["message"]
    assert found["nodes"] == [["/dev/nvidia3", ""], ["/dev/nvidiactl", ""]]


def test_nodes_that_the_driver_container_made_are_given_by_their_place_on_the_host(
    library: Path, tmp_path: Path
) -> None:
    root = tmp_path / "host/run/nvidia/driver"
    install(library, root / "usr/lib64")
    nodes(root / "dev", "nvidiactl", "nvidia3", "nvidia-uvm")
    nodes(tmp_path / "host/dev", "nvidia-modeset")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n508 nvidia-uvm\n")
    found = look(tmp_path, "auto")
    assert [p for p in found["problems"] if "uvm" in p] == []
    assert found["nodes"] == [
        ["/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3"],
        ["/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"],
        ["/dev/nvidia-uvm", "/run/nvidia/driver/dev/nvidia-uvm"],
        ["/dev/nvidia-modeset", ""],
    ]


def test_a_root_that_is_named_goes_before_the_linker(library: Path, tmp_path: Path) -> None:
    """A library in the image, or of another driver, must not win over what an admin has said."""
    install(library, tmp_path / "host/srv/nvidia/usr/lib64")
    broken = tmp_path / "broken/libnvidia-ml.so.1"
    broken.parent.mkdir()
    broken.write_text("not a library")
    assert look(tmp_path, "/srv/nvidia", linker=broken)["state"] == "ok"


def test_a_library_that_cannot_be_loaded_is_named(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "host/run/nvidia/driver/usr/lib64"
    folder.mkdir(parents=True)
    (folder / library.name).write_text("not a library")
    found = look(tmp_path, "/run/nvidia/driver")
    assert found["state"] == "driverless"
    assert f"{folder / library.name}: file too short" in found["message"]
    assert "1 NVIDIA GPU is on the PCI bus: 0000:07:00.0" in found["message"]


def test_a_library_without_device_nodes_says_what_to_do(library: Path, tmp_path: Path) -> None:
    not_loaded = 9
    found = look(tmp_path, "auto", linker=library, system=[f"fail nvmlInitWithFlags {not_loaded}"])
    assert found["state"] == "driverless"
    assert "the kernel driver is loaded" in found["message"]
    assert "runtimeClassName: nvidia" in found["message"]


def test_a_driver_that_a_container_brings_later_is_found(library: Path, tmp_path: Path) -> None:
    install(library, tmp_path / "later/lib64")
    nodes(tmp_path / "host/run/nvidia/driver/dev", "nvidiactl", "nvidia3")
    found = look(tmp_path, "auto", later=tmp_path / "later")
    assert found["state"] == "ok", found["message"]
    assert found["nodes"][0] == ["/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3"]
