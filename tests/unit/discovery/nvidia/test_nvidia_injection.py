"""What is found of NVIDIA's driver on a disk, and what becomes of it in a container; compared with nvcdi."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import pytest
from driver_tree import LIB, complete, completed, driver, gpu, linker_cache, mounted, seen, touch
from hypothesis import given
from hypothesis import strategies as st
from nonempty import nonempty

from dra_driver.api.names import PCI_BUS_ID
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.nvidia.injection import capabilities, elf
from dra_driver.hardware import DiscoveredDevice

VERSION = "570.148.08"
TRIPLET = f"/usr/lib/{os.uname().machine}-linux-gnu"
COMMANDS = b"\x7fELF enable-cuda-compat disable-device-node-modification update-application-profile"


def library(soname: str, bits: int = 64) -> bytes:
    """The smallest ELF file with a SONAME: two segments, the dynamic section, the strings."""
    name = b"\0" + soname.encode() + b"\0"
    if bits == 64:
        header = struct.pack("<16s16xQ14xHH6x", b"\x7fELF\x02\x01\x01", 64, 56, 2)
        start = 64 + 2 * 56
        dynamic = struct.pack("<qQqQqQ", 14, 1, 5, 0x1000 + start + 48, 0, 0)
        load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0x1000, 0x1000, 4096, 4096, 4096)
        table = struct.pack("<IIQQQQQQ", 2, 4, start, 0x1000 + start, 0, len(dynamic), len(dynamic), 8)
    else:
        header = struct.pack("<16s12xI10xHH6x", b"\x7fELF\x01\x01\x01", 52, 32, 2)
        start = 52 + 2 * 32
        dynamic = struct.pack("<iIiIiI", 14, 1, 5, 0x1000 + start + 24, 0, 0)
        load = struct.pack("<IIIIIIII", 1, 0, 0x1000, 0x1000, 4096, 4096, 4, 4096)
        table = struct.pack("<IIIIIIII", 2, start, 0x1000 + start, 0, len(dynamic), len(dynamic), 4, 8)
    return header + load + table + dynamic + name


def write(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def material(root: Path, *asked: str) -> ContainerEdits:
    """What a container gets whose claim asks for these capabilities."""
    (found,) = completed(root, gpu())
    return found.parts.added_to(found.material, asked or None)


# --- the machine of nvidia-ctk's own test of `cdi generate` -------------------------------------------------


def test_a_container_gets_what_nvidia_ctk_generates_for_the_same_machine(tmp_path: Path) -> None:
    """nvidia-container-toolkit, cmd/nvidia-ctk/cdi/generate/generate_test.go, testdata/lookup/rootfs-1."""
    folder, version = "lib/x86_64-linux-gnu", "999.88.77"
    touch(tmp_path, f"{folder}/libcuda.so.{version}", f"{folder}/vdpau/libvdpau_nvidia.so.{version}")
    write(tmp_path, "usr/bin/nvidia-cdi-hook", COMMANDS)
    (found,) = completed(tmp_path, gpu(0, version))
    edits = found.parts.added_to(found.material, ("compute", "utility", "video"))
    assert [n.path for n in edits.device_nodes] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert set(edits.env) == {f"NVIDIA_CTK_LIBCUDA_DIR=/{folder}", "NVIDIA_VISIBLE_DEVICES=void"}
    files = [f"/{folder}/libcuda.so.{version}", f"/{folder}/vdpau/libvdpau_nvidia.so.{version}"]
    assert mounted(edits) == {f: f for f in files}
    assert {m.options for m in edits.mounts} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}
    assert {(h.hook_name, h.path) for h in edits.hooks} == {("createContainer", "/usr/bin/nvidia-cdi-hook")}
    assert [h.args for h in edits.hooks] == [
        ("nvidia-cdi-hook", "create-symlinks", "--link", f"libcuda.so.1::/{folder}/libcuda.so"),
        ("nvidia-cdi-hook", "enable-cuda-compat", f"--host-driver-version={version}"),
        ("nvidia-cdi-hook", "update-ldcache", "--folder", f"/{folder}", "--folder", f"/{folder}/vdpau"),
        ("nvidia-cdi-hook", "disable-device-node-modification"),
        ("nvidia-cdi-hook", "update-application-profile"),
    ]


# --- capabilities -------------------------------------------------------------------------------------------

FILES = {
    f"{LIB}/libcuda.so.{VERSION}": {"compute", "video"},
    f"{LIB}/libnvidia-nvvm.so.{VERSION}": {"compute", "video"},
    f"{LIB}/libnvidia-nvvm70.so.4": {"compute", "video"},
    f"{LIB}/libnvidia-unheard-of.so.{VERSION}": {"compute", "video"},
    f"{LIB}/libnvidia-ml.so.{VERSION}": {"utility"},
    f"{LIB}/libnvcuvid.so.{VERSION}": {"video"},
    f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}": {"video"},
    f"{LIB}/libGLX_nvidia.so.{VERSION}": {"graphics", "display"},
    f"{LIB}/libnvidia-egl-gbm.so.1.1.2": {"graphics", "display"},
    f"{LIB}/libnvidia-gpucomp.so.{VERSION}": {"compute", "video", "graphics", "display"},
    f"{LIB}/libnvidia-ngx.so.{VERSION}": {"ngx"},
    "usr/bin/nvidia-smi": {"utility"},
    "usr/sbin/nvidia-imex-ctl": {"utility"},
    "usr/bin/nvidia-cuda-mps-server": {"compute", "video"},
    "usr/bin/nvidia-xconfig": {"display"},
    "etc/OpenCL/vendors/nvidia.icd": {"compute", "video"},
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": {"graphics", "display"},
    "usr/share/vulkan/icd.d/nvidia_icd.json": {"graphics", "display"},
    "usr/share/nvidia/nvoptix.bin": {"graphics", "display"},
    "usr/lib/xorg/modules/drivers/nvidia_drv.so": {"display"},
    f"usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}": {"display"},
    f"usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": set(capabilities.NAMES),
}
OTHERS = (
    f"{LIB}/libc.so.6",
    f"{LIB}/libcuda.so.535.104.05",
    f"{LIB}/libnvidia-container.so.1.17.8",
    "usr/bin/nvidia-modprobe",
    "usr/lib/firmware/nvidia/535.104.05/gsp_ga10x.bin",
)


@pytest.mark.parametrize("hook", [True, False])
def test_each_capability_brings_its_files(tmp_path: Path, *, hook: bool) -> None:
    touch(tmp_path, *FILES, *OTHERS)
    if hook:
        touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    for capability in capabilities.NAMES:
        got = {p.lstrip("/") for p in mounted(material(tmp_path, capability)).values()}
        assert got == {f for f, of in FILES.items() if capability in of}, capability
    default = mounted(complete(tmp_path, gpu())[0])
    assert {p.lstrip("/") for p in default.values()} == {
        f for f, of in FILES.items() if of & {"compute", "utility"}
    }
    # Configuration lies where programs look for it, firmware where the kernel would.
    graphics = mounted(material(tmp_path, "graphics"))
    assert graphics["/etc/vulkan/icd.d/nvidia_icd.json"] == "/usr/share/vulkan/icd.d/nvidia_icd.json"
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in graphics


def test_libraries_of_32_bits_are_a_capability_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, f"usr/lib64/libcuda.so.{VERSION}", library("libcuda.so.1"))
    write(tmp_path, f"usr/lib/libcuda.so.{VERSION}", library("libcuda.so.1", 32))
    assert set(mounted(material(tmp_path)).values()) == {f"/usr/lib64/libcuda.so.{VERSION}"}
    both = mounted(material(tmp_path, "compute", "compat32"))
    for folder, at in ((TRIPLET, "lib64"), ("/usr/lib64", "lib64"), ("/usr/lib", "lib")):
        assert both[f"{folder}/libcuda.so.1"] == f"/usr/{at}/libcuda.so.{VERSION}"
    assert both["/usr/lib/i386-linux-gnu/libcuda.so.1"] == f"/usr/lib/libcuda.so.{VERSION}"


# --- names and links ----------------------------------------------------------------------------------------

LINKS = {
    "libcuda.so": "libcuda.so.1",
    "libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
    "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
    "libnvidia-vulkan-producer.so": f"libnvidia-vulkan-producer.so.{VERSION}",
}
LINKED = (
    "libcuda",
    "libGLX_nvidia",
    "libnvidia-opticalflow",
    "libnvidia-allocator",
    "libnvidia-vulkan-producer",
)


def test_links_that_programs_look_for_are_there_though_the_host_has_none(tmp_path: Path) -> None:
    """As nvcdi makes them; without the hook program they are other names of the same file."""
    touch(tmp_path, *(f"usr/lib64/{name}.so.{VERSION}" for name in LINKED))
    everything = mounted(material(tmp_path, "graphics", "video"))
    of = dict(zip(LINKS, LINKED, strict=True))
    for folder in (TRIPLET, "/usr/lib64"):
        for link, name in of.items():
            assert everything[f"{folder}/{link}"] == f"/usr/lib64/{name}.so.{VERSION}"
    touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    edits = material(tmp_path, "graphics", "video")
    arguments = {a for h in edits.hooks for a in h.args}
    assert {f"{target}::/usr/lib64/{link}" for link, target in LINKS.items()} <= arguments
    assert set(mounted(edits)) == {f"/usr/lib64/{name}.so.{VERSION}" for name in LINKED}


def test_a_library_is_found_by_its_soname_though_the_host_has_no_link(tmp_path: Path) -> None:
    write(tmp_path, f"usr/lib64/libcuda.so.{VERSION}", library("libcuda.so.1"))
    write(tmp_path, f"usr/lib64/libnvidia-nvvm.so.{VERSION}", library("libnvidia-nvvm.so.4"))
    write(tmp_path, f"usr/lib64/libnvidia-pkcs11.so.{VERSION}", library("../../etc/passwd"))
    places = mounted(material(tmp_path))
    assert places[f"{TRIPLET}/libnvidia-nvvm.so.4"] == f"/usr/lib64/libnvidia-nvvm.so.{VERSION}"
    assert not any("passwd" in p for p in places)


def test_folders_under_two_names_are_one(tmp_path: Path) -> None:
    driver(tmp_path, "usr/lib64")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    (tmp_path / "lib").symlink_to("/usr/lib")  # leads out of the tree
    touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    assert all(p.startswith("/usr/") for p in nonempty(mounted(material(tmp_path))))


def test_libraries_in_several_folders_belong_together(tmp_path: Path) -> None:
    """Debian keeps some in a folder of their own, which alternatives lead to."""
    touch(tmp_path, f"{LIB}/nvidia/current/libcuda.so.{VERSION}", f"{LIB}/libnvidia-nvvm.so.{VERSION}")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia--nvidia-smi")
    (tmp_path / "usr/bin/nvidia-debugdump").symlink_to("/usr/lib/nvidia/gone")
    seen(tmp_path, "usr")
    places = mounted(material(tmp_path))
    assert {f"{TRIPLET}/libcuda.so", f"{TRIPLET}/libnvidia-nvvm.so.{VERSION}"} <= set(places)
    # The first leads to what is not seen here, and the runtime follows it on the host.
    assert places["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert "/usr/bin/nvidia-debugdump" not in places


def test_programs_are_those_beside_the_libraries_and_no_scripts(tmp_path: Path) -> None:
    own = "usr/local/nvidia"
    driver(tmp_path, f"{own}/lib64")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(linker_cache(("libcuda.so.1", f"/{own}/lib64/libcuda.so.1")))
    touch(tmp_path, f"{own}/bin/nvidia-smi", "usr/bin/nvidia-persistenced")
    for script in ("nvidia-smi", "nvidia-debugdump"):
        (tmp_path / "usr/bin" / script).write_text(f"#!/bin/sh\nexec /{own}/bin/{script}\n")
    places = mounted(material(tmp_path))
    assert places["/usr/bin/nvidia-smi"] == f"/{own}/bin/nvidia-smi"
    assert places["/usr/bin/nvidia-persistenced"] == "/usr/bin/nvidia-persistenced"
    assert "/usr/bin/nvidia-debugdump" not in places


# --- the hook program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "commands"),
    [
        (b"", []),
        (b"\x7fELF ... update-ldcache create-symlinks", []),
        (b"\x7fELF enable-cuda-compat", ["enable-cuda-compat"]),
        (COMMANDS, ["enable-cuda-compat", "disable-device-node-modification", "update-application-profile"]),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_commands_that_a_hook_program_does_not_have_are_not_asked_of_it(
    tmp_path: Path, data: bytes, commands: list[str], *, wrapped: bool
) -> None:
    """An older program fails the container over a command that it does not know."""
    driver(tmp_path)
    path = "usr/local/nvidia/toolkit/nvidia-cdi-hook"
    write(tmp_path, f"{path}.real" if wrapped else path, data)
    if wrapped:
        write(tmp_path, path, b'#! /bin/sh\nexec /usr/local/nvidia/toolkit/nvidia-cdi-hook.real "$@"\n')
    edits = material(tmp_path)
    assert {h.path for h in edits.hooks} == {f"/{path}"}
    asked = [h.args[1] for h in edits.hooks]
    assert [a for a in asked if a not in ("create-symlinks", "update-ldcache")] == commands
    assert asked[-1 - sum(c != "enable-cuda-compat" for c in commands)] == "update-ldcache"


# --- nodes --------------------------------------------------------------------------------------------------

ADDRESS = "0000:07:00.0"


def at_address(uuid: str = "GPU-0") -> DiscoveredDevice:
    attributes = {PCI_BUS_ID: DeviceAttribute(string_value=ADDRESS)}
    return DiscoveredDevice(
        InventoryDevice(name="gpu-0", attributes=attributes),
        uuid,
        ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0"),), env=("NVIDIA_VISIBLE_DEVICES=void",)),
        own_nodes=("/dev/nvidia0",),
        is_partition=uuid.startswith("MIG-"),
    )


def nodes(root: Path, device: DiscoveredDevice, *asked: str) -> list[str]:
    (found,) = completed(root, device)
    edits = found.parts.added_to(found.material, asked or None)
    return [n.path for n in edits.device_nodes]


def drm(root: Path, *names: str) -> None:
    for name in ("card1", "renderD128", "controlD64"):
        (root / "sys/bus/pci/devices" / ADDRESS / "drm" / name).mkdir(parents=True)
    touch(root, *(f"dev/dri/{name}" for name in names))


def test_a_whole_gpu_has_its_drm_nodes_without_a_document(tmp_path: Path) -> None:
    drm(tmp_path, "card0", "card1", "renderD128")
    driver(tmp_path)
    (found,) = completed(tmp_path, at_address())
    assert [n.path for n in found.material.device_nodes] == [
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    # They are its own: partitions do not get them.
    assert found.own_nodes == ("/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128")
    assert found.material.hooks == ()
    touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    (found,) = completed(tmp_path, at_address())
    assert found.material.hooks[-1].args[2:] == (
        "--link",
        f"../card1::/dev/dri/by-path/pci-{ADDRESS}-card",
        "--link",
        f"../renderD128::/dev/dri/by-path/pci-{ADDRESS}-render",
    )


def test_a_partition_has_no_drm_nodes_nor_a_gpu_whose_nodes_are_not_there(tmp_path: Path) -> None:
    drm(tmp_path, "card1")
    assert nodes(tmp_path, at_address("MIG-a")) == ["/dev/nvidia0"]
    assert nodes(tmp_path, at_address()) == ["/dev/nvidia0", "/dev/dri/card1"]


def test_nodes_of_gpudirect_storage_and_of_gdrcopy_go_with_compute(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidia-fs0", "dev/nvidia-fs1", "dev/gdrdrv", "etc/cufile.json", "run/udev/data/x")
    expected = ["/dev/nvidia0", "/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/gdrdrv"]
    assert nodes(tmp_path, at_address()) == expected
    assert nodes(tmp_path, at_address("MIG-a")) == expected
    assert nodes(tmp_path, at_address(), "graphics") == ["/dev/nvidia0"]
    (found,) = completed(tmp_path, at_address())
    assert set(mounted(found.parts.edits["compute"])) == {"/run/udev", "/etc/cufile.json"}
    # None of them belongs to one GPU.
    assert found.own_nodes == ("/dev/nvidia0",)


@pytest.mark.parametrize(
    ("parameters", "present", "expected"),
    [
        ("EnableMSI: 1\nCreateImexChannel0: 1\n", True, True),
        ("EnableMSI: 1\nCreateImexChannel0: 1\n", False, False),
        ("CreateImexChannel0: 0\n", True, False),
        ("CreateImexChannel0: 10\n", True, False),
        (None, True, False),
    ],
)
def test_the_imex_channel_is_to_be_had_where_the_driver_makes_it_for_everybody(
    tmp_path: Path, parameters: str | None, *, present: bool, expected: bool
) -> None:
    channel = "dev/nvidia-caps-imex-channels/channel0"
    if present:
        touch(tmp_path, channel, "dev/nvidia-caps-imex-channels/channel1")
    if parameters is not None:
        write(tmp_path, "proc/driver/nvidia/params", parameters.encode())
    (found,) = completed(tmp_path, at_address())
    assert ("imex" in found.parts.edits) is expected
    # Only a claim that asks for it has it.
    assert nodes(tmp_path, at_address()) == ["/dev/nvidia0"]
    assert nodes(tmp_path, at_address(), "imex") == ["/dev/nvidia0", *([f"/{channel}"] if expected else [])]


# --- headers of libraries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_headers_of_a_library(tmp_path: Path, bits: int) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(library("libcuda.so.1", bits))
    assert elf.read_library(file) == elf.Library(bits, "libcuda.so.1")


@given(st.integers(0, 400), st.binary(max_size=40), st.sampled_from([32, 64]))
def test_any_file_is_read_or_is_no_library(at: int, noise: bytes, bits: int) -> None:
    whole = library("libcuda.so.1", bits)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lib.so")
        for data in (whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
            file.write_bytes(data)
            found = elf.read_library(file)
            assert found is None or ("/" not in found.soname and found.bits in (32, 64))
