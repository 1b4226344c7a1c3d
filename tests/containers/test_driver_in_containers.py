"""Programs in containers of real images find NVIDIA's driver without any hook: dlopen of what CUDA opens."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import glibc_images as images
import pytest
from examples import one_of, share

from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits
from dra_driver.discovery.nvidia.injection.material import NvidiaMaterial
from dra_driver.hardware import DiscoveredDevice

HOSTS = {
    "debian": ("/", f"usr/lib/{images.TRIPLET}"),
    "debian-alternatives": ("/", f"usr/lib/{images.TRIPLET}/nvidia/current"),
    "redhat": ("/", "usr/lib64"),
    "driver-container": ("/run/nvidia/driver", "usr/lib64"),
}
OPENED = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def runc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, which can run containers here."""
    program = images.runc()
    folder = tmp_path_factory.mktemp("probe")
    root = images.image(folder / "root", images.DEBIAN)
    answer = images.run(program, folder / "bundle", root, ContainerEdits(), folder, "/usr/bin/look")
    if answer.returncode:
        pytest.skip(f"runc runs no container here: {answer.stderr.strip()[-300:]}")
    return program


def edits(host: Path, driver_root: str, *capabilities: str) -> ContainerEdits:
    """What a container gets of the driver on this host."""
    gpu = DiscoveredDevice(
        InventoryDevice(name="gpu", attributes={"driverVersion": DeviceAttribute(version_value="570.148.8")}),
        "GPU-0",
        ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",)),
    )
    material = NvidiaMaterial(
        host_root=host,
        driver_root=driver_root,
        sysfs_root=host / "sys",
        dev_root=host / "dev",
        proc_root=host / "proc",
    )
    (found,) = material.complete([gpu])
    return found.parts.added_to(found.material, capabilities or None)


@pytest.mark.slow
@pytest.mark.parametrize("host", one_of(2, HOSTS))
@pytest.mark.parametrize("image", share([images.DEBIAN, images.REDHAT], 1))
def test_a_program_finds_the_driver_in_an_image_of_any_glibc(
    tmp_path: Path, runc: Path, host: str, image: str
) -> None:
    driver_root, folder = HOSTS[host]
    images.driver(tmp_path / "host" / driver_root.strip("/"), folder)
    root = images.image(tmp_path / "image", image)

    bare = images.run(runc, tmp_path / "bare", root, ContainerEdits(), tmp_path, "/usr/bin/look", *OPENED)
    assert bare.returncode == 1, bare.stdout

    given = edits(tmp_path / "host", driver_root)
    assert given.hooks == ()
    answer = images.run(runc, tmp_path / "run", root, given, tmp_path / "host", "/usr/bin/look", *OPENED)
    assert answer.stdout.splitlines() == [f"{name} {images.VERSION}" for name in OPENED], answer.stderr
    assert answer.returncode == 0

    smi = images.run(
        runc, tmp_path / "smi", root, given, tmp_path / "host", "/usr/bin/nvidia-smi", "libnvidia-ml.so.1"
    )
    assert smi.stdout.split() == ["libnvidia-ml.so.1", images.VERSION], smi.stderr


@pytest.mark.slow
def test_only_capabilities_that_a_claim_asks_for_are_there(tmp_path: Path, runc: Path) -> None:
    images.driver(tmp_path / "host", "usr/lib64")
    root = images.image(tmp_path / "image", images.DEBIAN)
    opened = ("libGLX_nvidia.so.0", "libGLX_indirect.so.0", "libcuda.so.1")
    for asked, there in (("graphics", opened[:2]), ("compute", opened[2:])):
        given = edits(tmp_path / "host", "/", asked)
        answer = images.run(runc, tmp_path / asked, root, given, tmp_path / "host", "/usr/bin/look", *opened)
        found = [line.split()[0] for line in answer.stdout.splitlines() if line.endswith(images.VERSION)]
        assert found == list(there), answer.stdout


@pytest.mark.slow
def test_the_hosts_driver_counts_more_than_one_that_an_image_brings(tmp_path: Path, runc: Path) -> None:
    """Its linker's cache knows the image's own, by a link that leads to the old file."""
    images.driver(tmp_path / "host", "usr/lib64")
    root = images.image(tmp_path / "image", images.DEBIAN)
    images.driver(root, f"usr/lib/{images.TRIPLET}", "470.57.02")
    subprocess.run(["ldconfig", "-r", root], check=True, capture_output=True)
    before = images.run(
        runc, tmp_path / "a", root, ContainerEdits(), tmp_path, "/usr/bin/look", "libcuda.so.1"
    )
    assert before.stdout.split() == ["libcuda.so.1", "470.57.02"]
    given = edits(tmp_path / "host", "/")
    answer = images.run(runc, tmp_path / "b", root, given, tmp_path / "host", "/usr/bin/look", *OPENED)
    assert answer.stdout.splitlines() == [f"{name} {images.VERSION}" for name in OPENED], answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("image", [images.DEBIAN, images.REDHAT])
def test_nvidias_own_hook_program_does_what_we_ask_of_it(
    tmp_path: Path, runc: Path, host: str, image: str
) -> None:
    """Also the first commands that not every version has, and forward compatibility of CUDA."""
    program = os.environ.get("NVIDIA_CDI_HOOK")
    if not program:
        pytest.skip("NVIDIA_CDI_HOOK names no nvidia-cdi-hook (of NVIDIA/nvidia-container-toolkit)")
    driver_root, folder = HOSTS[host]
    images.driver(tmp_path / "host" / driver_root.strip("/"), folder)
    (tmp_path / "host/usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(program, tmp_path / "host/usr/bin/nvidia-cdi-hook")
    given = edits(tmp_path / "host", driver_root)
    assert {h.args[1] for h in given.hooks} >= {"create-symlinks", "update-ldcache", "enable-cuda-compat"}
    for compat, version in (("", images.VERSION), ("999.10.02", "999.10.02")):
        root = images.image(tmp_path / f"image-{compat}", image)
        if compat:
            images.library(root / f"usr/local/cuda/compat/libcuda.so.{compat}", "libcuda.so.1", text=compat)
        answer = images.run(
            runc, tmp_path / f"run-{compat}", root, given, tmp_path / "host", "/usr/bin/look", "libcuda.so.1"
        )
        assert answer.stdout.split() == ["libcuda.so.1", version], answer.stderr
