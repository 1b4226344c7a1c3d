"""``gpus`` and ``nvlink`` of a profile: GPUs in the words of what is published of them.

::

    gpus:
    - pciAddress: "0000:3b:00.0"                  # required, unique; gives the device its name
      product: A100-40                            # a known product: fills in what is recorded about it
      pcieRoot: pci0000:3a
      numaNode: 0
      # Each of these overrides the product's value. Without product, productName is required.
      vendor: nvidia                              # nvidia (default), amd or intel
      deviceID: "20b0"                            # PCI device id, for trees of files; default: the product's
      productName: NVIDIA A100-SXM4-40GB
      model: A100-SXM4-40GB                       # default: made of productName
      architecture: Ampere
      brand: Nvidia                               # default for nvidia: Nvidia
      cudaComputeCapability: "8.0"
      memory: 40960Mi
      multiprocessors: 108
      addressingMode: HMM                         # HMM, ATS or None
      eccEnabled: true
      fabricClique: <cluster uuid>.<clique id>
      uuid: GPU-…                                 # default: made of the seed and the PCI address
      partitions:                                 # default: the product's MIG profiles; [] for none
      - {name: 1g.5gb, id: 19, size: 1, starts: [0, 1, 2], memory: 4864Mi, multiprocessors: 14}
      deviceNodes: [/dev/null]                    # default: none, for there is no such hardware
      env: {NAME: value}                          # added to what the container sees
      load: 90                                    # percent; default: the GPU reports no load
      health: [{reason: XidError, severity: failed, message: off the bus}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dra_driver.api.own.inventory import DeviceHealth, PartitionPlacement
from dra_driver.discovery.core import schema, strict
from dra_driver.discovery.core.bus import pci_products
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.nvidia.products import MIB, Product, products
from dra_driver.discovery.simulated.machine import (
    AmdGpu,
    IntelGpu,
    LinkGroup,
    MigProfile,
    NvidiaGpu,
    PciFunction,
    PublishedGpu,
    SimulatedDevice,
)

__all__ = ["GPU_KEYS", "nvidia_group_gpu", "read_gpus", "read_nvlink"]

_MAX_GPUS: Final = 256

GPU_KEYS: Final = (
    "pciAddress", "product", "pcieRoot", "numaNode", "vendor", "deviceID", "productName", "model",
    "architecture", "brand", "cudaComputeCapability", "memory", "multiprocessors", "addressingMode",
    "eccEnabled", "fabricClique", "uuid", "partitions", "deviceNodes", "env", "health", "load",
)  # fmt: skip
_ENGINES: Final = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_PARTITION_KEYS: Final = ("name", "id", "size", "starts", "memory", *_ENGINES)
# Vendor → PCI vendor id, class and kernel driver of its GPUs.
_FUNCTIONS: Final = {
    "nvidia": ("10de", "030200", "nvidia"),
    "amd": ("1002", "030000", "amdgpu"),
    "intel": ("8086", "030000", "i915"),
}
_HEX4: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)
_GFX: Final = re.compile(r"gfx([0-9]{1,2})([0-9a-f])([0-9a-f])", re.ASCII)
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_PARTITION_NAME: Final = re.compile(r"[0-9a-z][0-9a-z.+-]{0,31}", re.ASCII)
_DEVICE_PATH: Final = re.compile(r"/dev(/[A-Za-z0-9_:@+-][A-Za-z0-9_.:@+-]*)+", re.ASCII)
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]*", re.ASCII)


def read_gpus(
    reader: strict.Reader, value: object, modules: Mapping[str, str], driver_version: str | None
) -> list[SimulatedDevice]:
    """Read ``gpus``, in the order of their PCI addresses.

    Args:
        reader: collects every mistake.
        value: the list as it is decoded from YAML.
        modules: versions of kernel modules; they go before ``driver_version``.
        driver_version: the profile's ``driverVersion``.
    """
    gpus: list[SimulatedDevice] = []
    for path, item in reader.items(value, "gpus", _MAX_GPUS):
        gpu = _gpu(reader, item, path, modules, driver_version)
        if gpu is None:
            continue
        address, uuid = gpu.function.address, gpu.published.uuid if gpu.published else None
        if any(g.function.address == address for g in gpus):
            reader.finding(f"{path}.pciAddress", f"'{address}' is given twice; every GPU has its own")
        if uuid is not None and any(g.published and g.published.uuid == uuid for g in gpus):
            reader.finding(f"{path}.uuid", f"{uuid!r} is given twice; every GPU has its own")
        gpus.append(gpu)
    return sorted(gpus, key=lambda g: g.function.address)


def read_nvlink(reader: strict.Reader, value: object, gpus: frozenset[PciAddress]) -> list[LinkGroup]:
    """Read ``nvlink``; its members have to be among ``gpus``."""
    found = (_nvlink(reader, item, path, gpus) for path, item in reader.items(value, "nvlink", 64))
    return [group for group in found if group is not None]


def nvidia_group_gpu(product_name: str | None) -> PublishedGpu:
    """Return what NVML reports of a GPU of ``devices``, as far as its product's name says it."""
    product = next((p for p in products().values() if p.product_name == product_name), None)
    return _published(strict.Reader(""), {"productName": product_name}, "", product)


def _address(reader: strict.Reader, value: object, path: str) -> PciAddress | None:
    address = PciAddress.parse(value) if isinstance(value, str) else None
    if address is None and value is not None:
        shown = repr(value[:80]) if isinstance(value, str) else "the value"
        reader.finding(path, f"{shown} is not a PCI address, for example 0000:3b:00.0")
    return address


def _gpu(
    reader: strict.Reader, value: object, path: str, modules: Mapping[str, str], driver_version: str | None
) -> SimulatedDevice | None:
    raw = reader.mapping(value, path, GPU_KEYS, required=("pciAddress",))
    address = _address(reader, raw.get("pciAddress"), f"{path}.pciAddress")
    key = reader.choice(raw.get("product"), f"{path}.product", tuple(products()))
    product = products()[key] if key else None
    if isinstance(value, Mapping) and "product" not in raw and "productName" not in raw:
        reader.finding(path, "product or productName is missing")
    published = _published(reader, raw, path, product)
    device_id = reader.text(raw.get("deviceID"), f"{path}.deviceID", _HEX4, "four hex digits in lower case")
    root = reader.text(
        raw.get("pcieRoot"), f"{path}.pcieRoot", _PCIE_ROOT, "a PCIe root, for example pci0000:3a"
    )
    numa_node = reader.integer(raw.get("numaNode"), f"{path}.numaNode", 0, 1023)
    if address is None:
        return None
    vendor = str(published.facts["vendor"])
    vendor_id, class_code, driver = _FUNCTIONS[vendor]
    known = pci_products.gpu_of_model(vendor, str(published.facts["model"]))
    function = PciFunction(
        address=address,
        root=root,
        numa_node=numa_node,
        vendor_id=vendor_id,
        device_id=device_id or (product.pci_device_id if product else None) or (known.id if known else None),
        revision=(known.revision if known and device_id is None else None) or "00",
        class_code=class_code,
        driver=driver,
        driver_version=modules.get(driver, driver_version),
    )
    return SimulatedDevice(function, _hardware(published), published)


def _hardware(gpu: PublishedGpu) -> AmdGpu | IntelGpu | NvidiaGpu:
    """Return what files show of a GPU that is described by what is published of it."""
    facts = gpu.facts
    product_name = facts["productName"]
    name = product_name if isinstance(product_name, str) else None
    if facts["vendor"] == "nvidia":
        return NvidiaGpu(product_name=name)
    if facts["vendor"] == "intel":
        return IntelGpu(memory=gpu.memory)
    match = _GFX.fullmatch(str(facts["architecture"]))
    return AmdGpu(
        product_name=name or "",
        memory=gpu.memory,
        gfx_target=int(match[1]) * 10000 + int(match[2], 16) * 100 + int(match[3], 16) if match else 0,
        compute_units=gpu.multiprocessors or 0,
        ecc=facts["eccEnabled"] is True,
    )


def _published(
    reader: strict.Reader, raw: Mapping[str, object], path: str, product: Product | None
) -> PublishedGpu:
    facts = _facts(reader, raw, path, product)
    memory = reader.byte_count(raw.get("memory"), f"{path}.memory")
    multiprocessors = reader.integer(raw.get("multiprocessors"), f"{path}.multiprocessors", 1, 10**6)
    mig_profiles = _mig_profiles(reader, raw, path, product)
    facts["migCapable"] = facts["vendor"] == "nvidia" and (
        product.mig_capable and raw.get("partitions") != [] if product else bool(mig_profiles)
    )
    health = (_health(reader, item, p) for p, item in reader.items(raw.get("health"), f"{path}.health", 16))
    return PublishedGpu(
        facts=facts,
        uuid=reader.text(raw.get("uuid"), f"{path}.uuid"),
        memory=memory or (product.memory_mib * MIB if product else None),
        multiprocessors=multiprocessors or (product.multiprocessors if product else None),
        mig_profiles=mig_profiles,
        device_nodes=tuple(_device_nodes(reader, raw.get("deviceNodes"), f"{path}.deviceNodes")),
        env=_env(reader, raw.get("env"), f"{path}.env"),
        health=tuple(h for h in health if h is not None),
        load=reader.integer(raw.get("load"), f"{path}.load", 0, 100),
    )


def _facts(
    reader: strict.Reader, raw: Mapping[str, object], path: str, product: Product | None
) -> dict[str, str | int | bool | None]:
    vendor = reader.choice(raw.get("vendor"), f"{path}.vendor", tuple(_FUNCTIONS)) or "nvidia"
    name = reader.text(raw.get("productName"), f"{path}.productName") or (
        product.product_name if product else None
    )
    capability = reader.version(raw.get("cudaComputeCapability"), f"{path}.cudaComputeCapability")
    architecture = reader.text(raw.get("architecture"), f"{path}.architecture")
    mode = reader.choice(raw.get("addressingMode"), f"{path}.addressingMode", ("HMM", "ATS", "None"))
    return {
        "vendor": vendor,
        "productName": name,
        "model": reader.text(raw.get("model"), f"{path}.model") or (schema.model_of(name) if name else None),
        "architecture": architecture or (product.architecture if product else None),
        "brand": reader.text(raw.get("brand"), f"{path}.brand") or ("Nvidia" if vendor == "nvidia" else None),
        "cudaComputeCapability": capability or (product.cuda_compute_capability if product else None),
        "addressingMode": mode or (product.addressing_mode if product else None),
        "eccEnabled": reader.boolean(raw.get("eccEnabled"), f"{path}.eccEnabled"),
        "fabricClique": reader.text(raw.get("fabricClique"), f"{path}.fabricClique"),
    }


def _mig_profiles(
    reader: strict.Reader, raw: Mapping[str, object], path: str, product: Product | None
) -> tuple[MigProfile, ...]:
    if "partitions" not in raw:
        return tuple(
            MigProfile(
                name=mig.name,
                profile_id=mig.id,
                placements=tuple(PartitionPlacement(start=s, size=mig.size) for s in mig.starts),
                capacity={
                    "memory": mig.memory_mib * MIB,
                    "multiprocessors": mig.multiprocessors,
                    "copyEngines": mig.copy_engines,
                    "decoders": mig.decoders,
                    "encoders": mig.encoders,
                    "jpegEngines": mig.jpeg_engines,
                    "ofaEngines": mig.ofa_engines,
                },
            )
            for mig in (product.mig_profiles if product else ())
        )
    found: list[MigProfile] = []
    for where, item in reader.items(raw["partitions"], f"{path}.partitions", 32):
        partition = _mig_profile(reader, item, where)
        if partition is not None and any(p.name == partition.name for p in found):
            reader.finding(f"{where}.name", f"{partition.name!r} is given twice")
        elif partition is not None:
            found.append(partition)
    return tuple(found)


def _mig_profile(reader: strict.Reader, value: object, path: str) -> MigProfile | None:
    raw = reader.mapping(value, path, _PARTITION_KEYS, required=("name", "id", "size", "starts", "memory"))
    name = reader.text(
        raw.get("name"), f"{path}.name", _PARTITION_NAME, "a name of lower case letters, digits and . + -"
    )
    profile_id = reader.integer(raw.get("id"), f"{path}.id", 0, 2**31 - 1)
    size = reader.integer(raw.get("size"), f"{path}.size", 1, 64)
    starts = [
        reader.integer(item, p, 0, 63) for p, item in reader.items(raw.get("starts"), f"{path}.starts", 64)
    ]
    memory = reader.byte_count(raw.get("memory"), f"{path}.memory")
    engines = {key: reader.integer(raw.get(key), f"{path}.{key}", 0, 10**6) for key in _ENGINES}
    if name is None or profile_id is None or size is None or memory is None:
        return None
    return MigProfile(
        name=name,
        profile_id=profile_id,
        placements=tuple(PartitionPlacement(start=s, size=size) for s in starts if s is not None),
        capacity={"memory": memory} | {k: v for k, v in engines.items() if v is not None},
    )


def _device_nodes(reader: strict.Reader, value: object, path: str) -> list[str]:
    nodes = (
        reader.text(item, p, _DEVICE_PATH, "a path below /dev without . and ..", limit=255)
        for p, item in reader.items(value, path, 64)
    )
    return [node for node in nodes if node is not None]


def _env(reader: strict.Reader, value: object, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > 64:
        reader.finding(path, "not a mapping of at most 64 names to values")
        return {}
    env: dict[str, str] = {}
    for key, item in value.items():
        name = reader.text(key, path, _ENV_NAME, "the name of an environment variable")
        text = "" if item == "" else reader.text(item, f"{path}.{name}", limit=4096)
        if name is not None and text is not None:
            env[name] = text
    return env


def _health(reader: strict.Reader, value: object, path: str) -> DeviceHealth | None:
    raw = reader.mapping(value, path, ("reason", "severity", "message"), required=("reason", "severity"))
    reason = reader.text(
        raw.get("reason"), f"{path}.reason", _REASON, "a CamelCase reason, for example XidError"
    )
    severity = reader.choice(raw.get("severity"), f"{path}.severity", ("info", "degraded", "failed"))
    message = reader.text(raw.get("message"), f"{path}.message", limit=1024) or ""
    if reason is None or severity is None:
        return None
    return DeviceHealth(reason=reason, severity=severity, message=message)


def _nvlink(reader: strict.Reader, value: object, path: str, gpus: frozenset[PciAddress]) -> LinkGroup | None:
    raw = reader.mapping(value, path, ("members", "links", "switched"), required=("members",))
    members: list[PciAddress] = []
    for where, item in reader.items(raw.get("members"), f"{path}.members", _MAX_GPUS):
        address = _address(reader, item, where)
        if address is None:
            continue
        if address not in gpus:
            reader.finding(where, f"'{address}' is no pciAddress of gpus")
        if address in members:
            reader.finding(where, f"'{address}' is given twice")
        members.append(address)
    links = reader.integer(raw.get("links"), f"{path}.links", 1, 64)
    switched = reader.boolean(raw.get("switched"), f"{path}.switched")
    return LinkGroup("nvlink", tuple(members), links or 1, bool(switched))
