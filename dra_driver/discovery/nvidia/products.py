"""Facts about NVIDIA's data centre products, for the simulated backend.

The data file holds what was recorded from real hardware (totals as NVML tells them, MIG tables as
``nvidia-smi mig -lgip`` and ``-lgipp`` show them). What was not recorded is absent, and a MIG table is there
whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

from dra_driver.api.own.inventory import PartitionPlacement, PartitionProfile
from dra_driver.discovery.core import schema

__all__ = ["MIB", "MigProfile", "Product", "mig_partition", "products"]

MIB = 1 << 20


class MigProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One row of a MIG table; ``starts`` and ``size`` are in memory slices, ``id`` is NVML's."""

    name: str
    id: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    starts: tuple[int, ...] = ()
    size: int = 0


class Product(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One product; ``product_name`` is what NVML calls it, ``pci_device_id`` has four hexadecimal digits."""

    key: str
    product_name: str
    architecture: str
    cuda_compute_capability: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    mig_capable: bool = False
    multiprocessors: int | None = None
    addressing_mode: str | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    pci_device_id: str | None = None


_files = msgspec.json.Decoder(tuple[Product, ...])  # not in a backend's thread: ``codec.build`` says why


@cache
def products() -> Mapping[str, Product]:
    """Return every product by its key (``A100-40``, ``H100-80``, ``T4`` …)."""
    data = resources.files("dra_driver.discovery").joinpath("data/nvidia_products.json").read_bytes()
    return {p.key: p for p in _files.decode(data)}


def mig_partition(
    *,
    name: str,
    profile_id: int,
    placements: tuple[PartitionPlacement, ...],
    capacity: Mapping[str, int | None],
    parent_uuid: str | None,
) -> PartitionProfile:
    """Return one kind of MIG partition in the form of the inventory: all backends publish it alike."""
    properties = schema.build({"type": "mig", "profile": name, "parentUUID": parent_uuid}, capacity)
    return PartitionProfile(
        name=name,
        profile_id=profile_id,
        placements=placements,
        attributes=properties.attributes,
        capacity=properties.capacity,
    )
