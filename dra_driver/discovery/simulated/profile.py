"""Simulated nodes described in YAML: the schema of the file, and its strict decoding.

::

    description: two GPUs that do not exist       # for people
    driverVersion: "570.148.08"                   # optional; so are all that follow, unless marked
    cudaDriverVersion: "12.8"
    gpus:                                         # required; may be empty
    - pciAddress: "0000:3b:00.0"                  # required, unique; gives the device its name
      product: A100-40                            # a known product: fills in what is recorded about it
      pcieRoot: pci0000:3a
      numaNode: 0
      # Each of these overrides the product's value. Without product, productName is required.
      vendor: nvidia                              # nvidia (default), amd or intel
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
      load: 90                                    # percent; default: the GPU does not tell
      health: [{reason: XidError, severity: failed, message: off the bus}]
    nvlink:
    - members: ["0000:3b:00.0", "0000:5e:00.0"]   # PCI addresses of gpus
      links: 4                                    # per pair, or per GPU where switched
      switched: false                             # true: every member is linked to an NVSwitch
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api import names
from dra_driver.api.inventory import DeviceHealth, PartitionPlacement
from dra_driver.discovery.core import schema, strict
from dra_driver.discovery.core.pci import PciAddress
from dra_driver.discovery.nvidia.products import MIB, Product, products

__all__ = ["NvlinkGroup", "Partition", "SimulatedGpu", "SimulatedProfile", "decode"]

MAX_GPUS: Final = 256

_GPU_KEYS = (
    "pciAddress", "product", "pcieRoot", "numaNode", "vendor", "productName", "model", "architecture",
    "brand", "cudaComputeCapability", "memory", "multiprocessors", "addressingMode", "eccEnabled",
    "fabricClique", "uuid", "partitions", "deviceNodes", "env", "health", "load",
)  # fmt: skip
_ENGINES = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_PARTITION_KEYS = ("name", "id", "size", "starts", "memory", *_ENGINES)
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_PARTITION_NAME = re.compile(r"[0-9a-z][0-9a-z.+-]{0,31}", re.ASCII)
_DEVICE_PATH = re.compile(r"/dev(/[A-Za-z0-9_:@+-][A-Za-z0-9_.:@+-]*)+", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REASON = re.compile(r"[A-Z][A-Za-z0-9]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Partition:
    """A kind of partition; capacities by the names of the schema."""

    name: str
    profile_id: int
    placements: tuple[PartitionPlacement, ...]
    capacity: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One GPU of a profile.

    Attributes:
        facts: attributes by the names of the schema; None is unknown.
        uuid: None means that the backend makes one.
        memory: bytes.
        load: percent; None: it does not tell.
    """

    address: PciAddress
    facts: Mapping[str, str | int | bool | None]
    uuid: str | None
    memory: int | None
    multiprocessors: int | None
    partitions: tuple[Partition, ...]
    device_nodes: tuple[str, ...]
    env: Mapping[str, str]
    health: tuple[DeviceHealth, ...]
    load: int | None = None


@dataclass(frozen=True, slots=True)
class NvlinkGroup:
    """GPUs that NVLink connects: pair by pair, or all through a switch."""

    members: tuple[PciAddress, ...]
    links: int
    switched: bool


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """A node's hardware; GPUs in the order of their PCI addresses."""

    description: str
    driver_version: str | None
    cuda_driver_version: str | None
    gpus: tuple[SimulatedGpu, ...]
    nvlink: tuple[NvlinkGroup, ...]


def decode(text: str, name: str) -> SimulatedProfile:
    """Decodes the YAML ``text`` of the profile ``name`` (a file name or the name of a built-in one).

    Raises:
        ConfigurationError: with every mistake, each naming path, value and what is allowed.
    """
    reader = strict.Reader(f"simulated profile {name}")
    top = reader.mapping(
        strict.parse_yaml(text, f"simulated profile {name}"),
        "",
        ("description", "driverVersion", "cudaDriverVersion", "gpus", "nvlink"),
        required=("gpus",),
    )
    gpus: list[SimulatedGpu] = []
    for path, item in reader.items(top.get("gpus"), "gpus", MAX_GPUS):
        gpu = _gpu(reader, item, path)
        if gpu is None:
            continue
        if any(g.address == gpu.address for g in gpus):
            reader.finding(f"{path}.pciAddress", f"'{gpu.address}' is given twice; every GPU has its own")
        if gpu.uuid is not None and any(g.uuid == gpu.uuid for g in gpus):
            reader.finding(f"{path}.uuid", f"{gpu.uuid!r} is given twice; every GPU has its own")
        gpus.append(gpu)
    addresses = frozenset(g.address for g in gpus)
    nvlink = [
        _nvlink(reader, item, path, addresses) for path, item in reader.items(top.get("nvlink"), "nvlink", 64)
    ]
    profile = SimulatedProfile(
        description=reader.text(top.get("description"), "description", limit=400) or "",
        driver_version=reader.version(top.get("driverVersion"), "driverVersion"),
        cuda_driver_version=reader.version(top.get("cudaDriverVersion"), "cudaDriverVersion"),
        gpus=tuple(sorted(gpus, key=lambda g: g.address)),
        nvlink=tuple(group for group in nvlink if group is not None),
    )
    reader.finish()
    return profile


def _address(reader: strict.Reader, value: object, path: str) -> PciAddress | None:
    address = PciAddress.parse(value) if isinstance(value, str) else None
    if address is None and value is not None:
        shown = repr(value[:80]) if isinstance(value, str) else "the value"
        reader.finding(path, f"{shown} is not a PCI address, for example 0000:3b:00.0")
    return address


def _gpu(reader: strict.Reader, value: object, path: str) -> SimulatedGpu | None:
    raw = reader.mapping(value, path, _GPU_KEYS, required=("pciAddress",))
    address = _address(reader, raw.get("pciAddress"), f"{path}.pciAddress")
    key = reader.choice(raw.get("product"), f"{path}.product", tuple(products()))
    product = products()[key] if key else None
    if isinstance(value, Mapping) and "product" not in raw and "productName" not in raw:
        reader.finding(path, "product or productName is missing")
    facts = _facts(reader, raw, path, product)
    memory = reader.byte_count(raw.get("memory"), f"{path}.memory")
    multiprocessors = reader.integer(raw.get("multiprocessors"), f"{path}.multiprocessors", 1, 10**6)
    uuid = reader.text(raw.get("uuid"), f"{path}.uuid")
    partitions = _partitions(reader, raw, path, product)
    facts["migCapable"] = facts["vendor"] == "nvidia" and (
        product.mig_capable and raw.get("partitions") != [] if product else bool(partitions)
    )
    device_nodes = tuple(_device_nodes(reader, raw.get("deviceNodes"), f"{path}.deviceNodes"))
    env = _env(reader, raw.get("env"), f"{path}.env")
    health = tuple(
        h
        for p, item in reader.items(raw.get("health"), f"{path}.health", 16)
        if (h := _health(reader, item, p))
    )
    if address is None:
        return None
    return SimulatedGpu(
        address=address,
        facts=facts,
        uuid=uuid,
        memory=memory or (product.memory_mib * MIB if product else None),
        multiprocessors=multiprocessors or (product.multiprocessors if product else None),
        partitions=partitions,
        device_nodes=device_nodes,
        env=env,
        health=health,
        load=reader.integer(raw.get("load"), f"{path}.load", 0, 100),
    )


def _facts(
    reader: strict.Reader, raw: Mapping[str, object], path: str, product: Product | None
) -> dict[str, str | int | bool | None]:
    vendor = reader.choice(raw.get("vendor"), f"{path}.vendor", ("nvidia", "amd", "intel")) or "nvidia"
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
        names.PCIE_ROOT: reader.text(
            raw.get("pcieRoot"), f"{path}.pcieRoot", _PCIE_ROOT, "a PCIe root, for example pci0000:3a"
        ),
        names.NUMA_NODE: reader.integer(raw.get("numaNode"), f"{path}.numaNode", 0, 1023),
    }


def _partitions(
    reader: strict.Reader, raw: Mapping[str, object], path: str, product: Product | None
) -> tuple[Partition, ...]:
    if "partitions" not in raw:
        return tuple(
            Partition(
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
    found: list[Partition] = []
    for where, item in reader.items(raw["partitions"], f"{path}.partitions", 32):
        partition = _partition(reader, item, where)
        if partition is not None and any(p.name == partition.name for p in found):
            reader.finding(f"{where}.name", f"{partition.name!r} is given twice")
        elif partition is not None:
            found.append(partition)
    return tuple(found)


def _partition(reader: strict.Reader, value: object, path: str) -> Partition | None:
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
    return Partition(
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


def _nvlink(
    reader: strict.Reader, value: object, path: str, gpus: frozenset[PciAddress]
) -> NvlinkGroup | None:
    raw = reader.mapping(value, path, ("members", "links", "switched"), required=("members",))
    members: list[PciAddress] = []
    for where, item in reader.items(raw.get("members"), f"{path}.members", MAX_GPUS):
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
    return NvlinkGroup(members=tuple(members), links=links or 1, switched=bool(switched))
