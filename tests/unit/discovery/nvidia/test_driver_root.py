"""Where NVIDIA's driver is found: the usual places, links inside of roots, device nodes, versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_tree import linker_cache

from dra_driver.discovery.nvidia.driver.root import AUTO, LIBRARY, DriverRoot, candidates, find_driver_root

VERSION = "570.148.08"


def install(host: Path, root: str, folder: str = "usr/lib64", version: str = VERSION) -> Path:
    """The library of a driver below a root on the host, with its link."""
    place = host / root.strip("/") / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / f"libnvidia-ml.so.{version}").write_bytes(b"\x7fELF")
    (place / LIBRARY).symlink_to(f"libnvidia-ml.so.{version}")
    return place


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("/", "usr/lib/x86_64-linux-gnu"),
        ("/", "usr/lib64"),
        ("/", "usr/local/glibc/usr/lib"),  # Talos
        ("/", "usr/local/lib"),  # Talos since its driver is an extension of its own
        ("/run/nvidia/driver", "usr/lib/x86_64-linux-gnu"),  # GPU Operator, also on OpenShift
        ("/run/nvidia/driver", "usr/lib64"),
        ("/home/kubernetes/bin/nvidia", "lib64"),  # GKE
        ("/opt/nvidia", "usr/lib64"),
        ("/opt/nvidia/current", "lib64"),  # Flatcar
        ("/var/lib/nvidia", "lib64"),  # Container-Optimized OS
    ],
)
def test_the_usual_places_are_searched(tmp_path: Path, root: str, folder: str) -> None:
    install(tmp_path, root, folder)
    found = find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys")
    assert found is not None
    assert found.path == root
    library = found.library(LIBRARY)
    assert library is not None
    assert library.host == f"{root.rstrip('/')}/{folder}/libnvidia-ml.so.{VERSION}"
    assert library.container == f"/{folder}/{LIBRARY}"
    assert library.here == tmp_path / library.host.strip("/")
    assert found.version == VERSION


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys") is None


def test_a_root_that_is_named_is_the_only_one_looked_at(tmp_path: Path) -> None:
    install(tmp_path, "/")
    assert find_driver_root("/opt/nvidia", host_root=tmp_path, sysfs_root=tmp_path / "sys") is None
    install(tmp_path, "/opt/nvidia")
    found = find_driver_root("/opt/nvidia", host_root=tmp_path, sysfs_root=tmp_path / "sys")
    assert found == DriverRoot("/opt/nvidia", tmp_path)


def test_of_two_roots_the_one_of_the_loaded_module_counts(tmp_path: Path) -> None:
    """Libraries of a driver that was removed from the host stay behind when a container brings another."""
    install(tmp_path, "/", version="535.104.05")
    install(tmp_path, "/run/nvidia/driver")
    module = tmp_path / "sys/module/nvidia"
    assert find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys") == DriverRoot("/", tmp_path)
    module.mkdir(parents=True)
    (module / "version").write_text(f"{VERSION}\n")
    found = find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys")
    assert found == DriverRoot("/run/nvidia/driver", tmp_path)


def test_the_operators_choice_is_looked_at(tmp_path: Path) -> None:
    install(tmp_path, "/srv/gpu/driver")
    ready = tmp_path / "run/nvidia/validations/driver-ready"
    ready.parent.mkdir(parents=True)
    ready.write_text("IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/srv/gpu/driver\nDRIVER_ROOT_CTR_PATH=/x\n")
    found = find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys")
    assert found == DriverRoot("/srv/gpu/driver", tmp_path)


@pytest.mark.parametrize("text", ["NVIDIA_DRIVER_ROOT=/../..", "NVIDIA_DRIVER_ROOT=run", "\0\xff", "="])
def test_a_choice_that_is_nonsense_changes_nothing(tmp_path: Path, text: str) -> None:
    usual = candidates(AUTO, tmp_path)
    ready = tmp_path / "run/nvidia/validations/driver-ready"
    ready.parent.mkdir(parents=True)
    ready.write_bytes(text.encode("latin-1"))
    assert candidates(AUTO, tmp_path) == usual


def test_links_are_followed_inside_of_the_root(tmp_path: Path) -> None:
    """An absolute link of the driver container's file system begins at its root, not at the host's."""
    folder = install(tmp_path, "/run/nvidia/driver", "usr/lib64")
    (folder / LIBRARY).unlink()
    (folder / LIBRARY).symlink_to(f"/usr/lib64/libnvidia-ml.so.{VERSION}")
    found = find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys")
    assert found is not None
    library = found.library(LIBRARY)
    assert library is not None
    assert library.host == f"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.{VERSION}"


@pytest.mark.parametrize("target", [LIBRARY, "/../../../etc/passwd", "gone"])
def test_links_that_lead_nowhere_are_no_files(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "opt/nvidia/lib64"
    folder.mkdir(parents=True)
    (folder / LIBRARY).symlink_to(target)
    assert find_driver_root(host_root=tmp_path, sysfs_root=tmp_path / "sys") is None


def test_device_nodes_come_from_the_roots_own_dev_where_it_has_them(tmp_path: Path) -> None:
    root = DriverRoot("/run/nvidia/driver", tmp_path)
    (tmp_path / "run/nvidia/driver/dev").mkdir(parents=True)
    # A /dev without the driver's nodes, as in an unpacked image, counts for nothing.
    assert not root.has_dev
    assert root.device_node("/dev/nvidia0").host == "/dev/nvidia0"
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "run/nvidia/driver/dev" / name).touch()
    assert root.has_dev
    node = root.device_node("/dev/nvidia0")
    assert node.host == "/run/nvidia/driver/dev/nvidia0"
    assert node.container == "/dev/nvidia0"
    assert node.here == tmp_path / "run/nvidia/driver/dev/nvidia0"
    # One that the container does not have is the host's.
    assert root.device_node("/dev/nvidia1").host == "/dev/nvidia1"


def test_programs_are_found(tmp_path: Path) -> None:
    place = tmp_path / "home/kubernetes/bin/nvidia/bin"
    place.mkdir(parents=True)
    (place / "nvidia-smi").touch()
    root = DriverRoot("/home/kubernetes/bin/nvidia", tmp_path)
    program = root.program("nvidia-smi")
    assert program is not None
    assert program.host == "/home/kubernetes/bin/nvidia/bin/nvidia-smi"
    assert root.program("nvidia-persistenced") is None


def test_a_driver_in_a_folder_of_its_own_has_its_programs_beside_it(tmp_path: Path) -> None:
    """As in images whose /usr/bin/nvidia-smi is a script that starts /usr/local/nvidia/bin/nvidia-smi."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        linker_cache(("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"))
    )
    for place in ("usr/bin", "usr/local/nvidia/bin"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").write_text("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n")
    root = DriverRoot("/", tmp_path)
    assert root.program("nvidia-smi") is None
    (tmp_path / "usr/local/nvidia/bin/nvidia-smi").write_bytes(b"\x7fELF")
    found = root.program("nvidia-smi")
    assert found is not None
    assert found.host == "/usr/local/nvidia/bin/nvidia-smi"
