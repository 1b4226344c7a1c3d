"""What sysfs, procfs and devfs show of Intel's and NVIDIA's GPUs and of RDMA NICs, for fake machines."""

from __future__ import annotations

import hashlib
import uuid

from dra_driver.discovery.core.pci import PciAddress
from dra_driver.discovery.simulated.fake_spec import DevicePosition, FakeGroup
from dra_driver.discovery.simulated.fake_tree import FakeTree

__all__ = ["write_intel", "write_nvidia", "write_rdma"]


def _facts(group: FakeGroup, vendor: str, default_class: str) -> dict[str, object]:
    return {
        "vendor": f"0x{vendor}",
        "device": f"0x{group.texts['deviceID']}",
        "class": f"0x{group.texts.get('class', default_class)}",
        "revision": f"0x{group.texts.get('revision', '00')}",
        "sriov_totalvfs": group.numbers.get("totalVFs"),
        "sriov_numvfs": group.numbers.get("vfs", 0) if "totalVFs" in group.numbers else None,
    }


def _virtual(address: PciAddress, number: int) -> PciAddress:
    """Address of virtual function ``number``, from 0: they follow the physical one."""
    slot = (address.device << 3 | address.function) + 1 + number
    return PciAddress(address.domain, address.bus + (slot >> 8), slot >> 3 & 0x1F, slot & 7)


def _virtual_functions(
    tree: FakeTree, group: FakeGroup, place: DevicePosition, driver: str | None
) -> list[str]:
    """The virtual functions of a device: their directories."""
    vendor = "8086" if group.kind == "intel" else group.texts.get("vendorID", "15b3")
    facts = _facts(group, vendor, "030000" if group.kind == "intel" else "020000")
    facts |= {"sriov_totalvfs": None, "sriov_numvfs": None}
    parent = f"sys/devices/{place.root}/{place.address}"
    folders: list[str] = []
    for number in range(group.numbers.get("vfs", 0)):
        address = _virtual(place.address, number)
        folder = tree.pci_function(address, root=place.root, numa=place.numa, driver=driver, facts=facts)
        tree.link(f"{folder}/physfn", parent)
        tree.link(f"{parent}/virtfn{number}", folder)
        folders.append(folder)
    return folders


def write_intel(tree: FakeTree, group: FakeGroup) -> None:
    """A group of Intel GPUs with their virtual functions."""
    driver = group.texts.get("driver", "i915")
    bound = None if driver == "none" else driver
    facts = _facts(group, "8086", "030000")
    for place in group.places:
        folder = tree.pci_function(place.address, root=place.root, numa=place.numa, driver=bound, facts=facts)
        functions = _virtual_functions(tree, group, place, bound)
        if driver not in ("i915", "xe"):
            if driver == "vfio-pci":
                tree.link(f"{folder}/iommu_group", "sys/kernel/iommu_groups/42")
                tree.node("vfio/vfio")
                tree.node("vfio/42")
            continue
        card, _ = tree.drm(folder, place.address)
        _intel_memory(tree, group, folder, card, driver)
        for number, function in enumerate(functions, start=1):
            address = PciAddress.parse(function.rpartition("/")[2])
            tree.drm(function, address)
            if "vfMemory" in group.numbers:
                quota = (
                    f"{folder}/drm/card{card}/prelim_iov/vf{number}/gt/lmem_quota"
                    if driver == "i915"
                    else f"{folder}/sriov_admin/vf{number}/profile/vram_quota"
                )
                tree.file(quota, group.numbers["vfMemory"])


def _intel_memory(tree: FakeTree, group: FakeGroup, folder: str, card: int, driver: str) -> None:
    memory, tiles = group.numbers.get("memory"), group.numbers.get("tiles", 1)
    if driver == "i915":
        if memory is not None:
            tree.file(f"{folder}/drm/card{card}/lmem_total_bytes", memory)
        return
    for tile in range(tiles):
        tree.folder(f"{folder}/tile{tile}/gt0")
        if memory is not None:
            tree.file(f"{folder}/tile{tile}/physical_vram_size_bytes", memory // tiles)


def write_nvidia(tree: FakeTree, group: FakeGroup, first_minor: int) -> int:
    """A group of NVIDIA GPUs as the kernel shows them (NVML is not in files); gives the next minor number."""
    for minor, place in enumerate(group.places, start=first_minor):
        facts = _facts(group, "10de", "030200")
        folder = tree.pci_function(
            place.address, root=place.root, numa=place.numa, driver="nvidia", facts=facts
        )
        tree.drm(folder, place.address)
        identity = uuid.uuid5(uuid.NAMESPACE_DNS, str(place.address))
        name = group.texts.get("productName", "NVIDIA GPU")
        tree.file(
            f"proc/driver/nvidia/gpus/{place.address}/information",
            f"Model: \t\t {name}\nGPU UUID: \t GPU-{identity}\nBus Location: \t {place.address}\n"
            f"Device Minor: \t {minor}",
        )
        tree.node(f"nvidia{minor}")
    for node in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        tree.node(node)
    return first_minor + len(group.places)


def write_rdma(tree: FakeTree, group: FakeGroup, first: int) -> int:
    """A group of NICs and their virtual functions; gives the next number of an RDMA device."""
    driver = group.texts.get("driver", "mlx5_core")
    for place in group.places:
        facts = _facts(group, group.texts.get("vendorID", "15b3"), "020700")
        folder = tree.pci_function(
            place.address, root=place.root, numa=place.numa, driver=driver, facts=facts
        )
        for function in (folder, *_virtual_functions(tree, group, place, driver)):
            _rdma_device(tree, group, function, first)
            first += 1
    tree.node("infiniband/rdma_cm")
    return first


def _rdma_device(tree: FakeTree, group: FakeGroup, function: str, number: int) -> None:
    texts = group.texts
    prefix = texts.get("driver", "mlx5_core").removesuffix("_core").removesuffix("_en")
    name = f"{prefix}_{number}"
    folder = f"{function}/infiniband/{name}"
    digest = hashlib.sha256(function.encode()).hexdigest()
    tree.files(
        folder,
        {
            "node_guid": ":".join(digest[i : i + 4] for i in range(0, 16, 4)),
            "node_type": "1: CA",
            "fw_ver": texts.get("firmware"),
            "hca_type": texts.get("hcaType"),
            "board_id": texts.get("boardID"),
            "ports/1/state": texts.get("state", "4: ACTIVE"),
            "ports/1/phys_state": "5: LinkUp",
            "ports/1/rate": texts.get("rate"),
            "ports/1/link_layer": texts.get("linkLayer", "InfiniBand"),
        },
    )
    tree.link(f"sys/class/infiniband/{name}", folder)
    tree.link(f"{folder}/device", function)
    tree.files(f"{function}/infiniband_verbs/uverbs{number}", {"ibdev": name, "dev": f"231:{192 + number}"})
    tree.link(f"sys/class/infiniband_verbs/uverbs{number}", f"{function}/infiniband_verbs/uverbs{number}")
    tree.node(f"infiniband/uverbs{number}")
    tree.files(f"{function}/infiniband_mad/umad{number}", {"ibdev": name, "port": 1})
    tree.link(f"sys/class/infiniband_mad/umad{number}", f"{function}/infiniband_mad/umad{number}")
    tree.node(f"infiniband/umad{number}")
    if "netdev" in texts:
        interface = f"{texts['netdev']}{number}"
        tree.files(f"{function}/net/{interface}", {"dev_port": 0, "operstate": "up"})
        tree.link(f"sys/class/net/{interface}", f"{function}/net/{interface}")
