"""Recordings of whole machines: what NVIDIA's own tool said of its GPUs, and PCIe trees of GPUs and NICs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import hardware_support as hw
import nvml_stub_support as stub
import pytest

from dra_driver.api import names
from dra_driver.discovery import open_backend
from dra_driver.discovery.nvidia.products import MIB

# NVML's numbers for the words of nvidia-smi.
ARCHITECTURES = {"Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
MODES = {"None": 0, "HMM": 1, "ATS": 2}
VIRTUALIZATION = {"None": 0, "Pass-Through": 1}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stub.Probe]:
    library = stub.shared(tmp_path_factory)
    process = stub.Probe(library, tmp_path_factory.mktemp("probe"))
    yield process
    process.stop()


def text(gpu: ET.Element, path: str) -> str | None:
    found = (gpu.findtext(path) or "").strip()
    return None if found in ("", "N/A") else found


def configuration(log: ET.Element) -> str:
    """The stub's configuration of the machine of which nvidia-smi wrote the log."""
    lines = [f"driver {log.findtext('driver_version')}"]
    for i, gpu in enumerate(log.findall("gpu")):
        lines += ["gpu", f"bus {gpu.get('id')}", f"uuid GPU-{i}", "brand 14"]
        lines.append(f"name {text(gpu, 'product_name')}")
        lines.append(f"minor {text(gpu, 'minor_number')}")
        lines.append(f"arch {ARCHITECTURES[text(gpu, 'product_architecture') or '']}")
        lines.append(f"mode {MODES[text(gpu, 'addressing_mode') or '']}")
        lines.append(f"ecc {int(text(gpu, 'ecc_mode/current_ecc') == 'Enabled')}")
        lines.append(f"virt {VIRTUALIZATION[text(gpu, 'gpu_virtualization_mode/virtualization_mode') or '']}")
        lines.append(f"memory {int((text(gpu, 'fb_memory_usage/total') or '').split()[0]) * MIB}")
        if text(gpu, "mig_mode/current_mig"):
            lines.append("mig 0")
        if text(gpu, "fabric/state") == "Completed":
            cluster = (text(gpu, "fabric/clusterUuid") or "").replace("-", "")
            lines.append(f"fabric 3 0 {text(gpu, 'fabric/cliqueId')} {cluster}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["a100", "b200", "gb200", "gb300", "h100", "l40s", "t4"])
def test_nvidia_gpus_are_what_nvidia_smi_said(name: str, probe: stub.Probe, tmp_path: Path) -> None:
    hw.unpack(hw.recording("nvidia/nvidia-smi-q-x-real-hardware.tar.gz"), tmp_path / "smi")
    (file,) = (tmp_path / "smi").rglob(f"qx-{name}.xml")
    log = ET.fromstring(file.read_text())  # our own recording
    probe.open(configuration(log))
    devices = {d["name"]: d for d in probe.discover()["devices"]}
    gpus = log.findall("gpu")
    assert len(devices) == len(gpus) == int(log.findtext("attached_gpus") or 0)
    for gpu in gpus:
        address = (gpu.get("id") or "").lower()[4:]
        device = devices[f"gpu-{address.replace(':', '-').replace('.', '-')}"]
        facts = {n: next(iter(v.values())) for n, v in device["attributes"].items()}
        assert facts[names.PCI_BUS_ID] == address
        assert facts["productName"] == text(gpu, "product_name")
        assert facts["architecture"] == text(gpu, "product_architecture")
        assert facts["addressingMode"] == text(gpu, "addressing_mode")
        assert facts["brand"] == "Nvidia"
        assert facts["eccEnabled"] is True
        assert facts["migCapable"] is (text(gpu, "mig_mode/current_mig") is not None)
        assert facts.get("virtualization") == (
            "passthrough" if text(gpu, "gpu_virtualization_mode/virtualization_mode") != "None" else None
        )
        cluster = text(gpu, "fabric/clusterUuid") or ""
        clique = f"{cluster}.{text(gpu, 'fabric/cliqueId')}" if cluster.strip("0-") else None
        assert facts.get("fabricClique") == clique
        assert f"/dev/nvidia{text(gpu, 'minor_number')}" in device["nodes"]
        memory = int((text(gpu, "fb_memory_usage/total") or "").split()[0])
        assert device["capacity"]["memory"]["value"] in (f"{memory}Mi", f"{memory / 1024:g}Gi")


# --- PCIe trees that RCCL and NCCL recorded ---


def write_topology(root: ET.Element, target: Path) -> Counter[str]:
    """A simulated machine of a recorded PCIe tree; gives the number of functions by vendor and class.

    The recordings begin below the root complex: each tree of theirs gets one of its own.
    """
    groups: list[str] = []
    counts: Counter[str] = Counter()
    for cpu in root.findall("cpu"):
        for top in cpu.findall("pci"):
            domain, bus, _ = (top.get("busid") or "").split(":")
            for function in top.iter("pci"):
                kind = {"0x1002": "amdgpu", "0x15b3": "rdma", "0x10de": "nvidia"}.get(
                    function.get("vendor") or ""
                )
                code = (function.get("class") or "").removeprefix("0x")
                if kind is None or code == "060400":
                    continue
                counts[kind] += 1
                place = f"{function.get('busid')} pci{domain}:{bus} {cpu.get('numaid')}"
                device = (function.get("device") or "").removeprefix("0x")
                more = ""
                if kind == "rdma":
                    more = ', rate: "400 Gb/sec (4X NDR)"'
                elif kind == "amdgpu":
                    units = function.find("gpu")
                    more = f", computeUnits: {units.get('sm')}" if units is not None else ""
                groups.append(
                    f'- {{kind: {kind}, at: ["{place}"], deviceID: "{device}", class: "{code}"{more}}}'
                )
    hw.machine(target, "devices:\n" + "\n".join(groups) + "\n")
    return counts


def test_the_recorded_p4d_has_adapters_of_amazon(tmp_path: Path) -> None:
    root = ET.fromstring(hw.recording("nic/aws-p4d-24xl-topo.xml").read_text())
    places = [f.get("busid") for f in root.iter("pci") if f.get("vendor") == "0x1d0f"]
    at = ", ".join(f'"{place}"' for place in places)
    hw.machine(
        tmp_path,
        f"devices:\n- {{kind: rdma, at: [{at}], vendorID: 1d0f, deviceID: efa0, driver: efa}}\n",
    )
    # EFA has neither an interface of its own nor umad.
    shutil.rmtree(tmp_path / "machine/sys/class/infiniband_mad")
    roots: dict[str, Any] = {"sysfs_root": tmp_path / "machine/sys", "dev_root": tmp_path / "machine/dev"}
    adapters = open_backend("rdma=umad", **roots, node_name="n").discover()
    assert [hw.value(d, names.PCI_BUS_ID) for d in adapters] == sorted(str(p) for p in places)
    assert len(adapters) == 4
    assert {(hw.value(d, "vendor"), hw.value(d, "model")) for d in adapters} == {("amazon", "EFA")}
    assert hw.nodes(adapters[0]) == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "model"),
    [
        ("amd/rccl-topo_8p_940.xml", 8, 8, "MI300X"),
        ("amd/rccl-topo_4p_940.xml", 4, 0, "MI300A"),
        ("amd/rccl-topo_8p_90a_1.xml", 8, None, "MI250X"),
    ],
)
def test_recorded_trees_of_amd(name: str, gpus: int, nics: int | None, model: str, tmp_path: Path) -> None:
    counts = write_topology(ET.fromstring(hw.recording(name).read_text()), tmp_path)
    roots: dict[str, Any] = {
        "sysfs_root": tmp_path / "machine/sys",
        "dev_root": tmp_path / "machine/dev",
        "node_name": "n",
    }
    found = open_backend("amdgpu", **roots).discover()
    assert len(found) == counts["amdgpu"] == gpus
    assert {hw.value(d, "model") for d in found} == {model}
    if nics is not None:
        assert counts["rdma"] == nics
    if not counts["rdma"]:
        return
    adapters = open_backend("rdma", **roots).discover()
    assert len(adapters) == counts["rdma"]
    if model == "MI300X":
        # One NIC beside each GPU: what a claim with matchAttribute pcieRoot relies on.
        of_gpus = sorted(str(hw.value(d, names.PCIE_ROOT)) for d in found)
        assert of_gpus == sorted(str(hw.value(d, names.PCIE_ROOT)) for d in adapters)
        assert len(set(of_gpus)) == 8
        assert {d.device.capacity["multiprocessors"].value.value() for d in found} == {304}
