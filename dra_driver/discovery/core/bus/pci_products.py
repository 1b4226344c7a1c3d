"""Names of products by PCI id, where the hardware does not report its own: tables of facts under ``data/``.

Each file says where its facts come from. A product that is not in a table has no name, not a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

__all__ = ["PciProduct", "amd_product", "gpu_of_model", "intel_product", "rdma_product"]


class PciProduct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One product.

    Attributes:
        id: PCI device id, four hex digits.
        name: as its maker sells it.
        model: the short id for the attribute ``model``; None where it is to be made of the name.
        vendor: PCI vendor id, where a file is about several.
        revision: PCI revision, where it distinguishes products.
        family: family of products.
        architecture: generation of the chip.
        integrated: whether it is a part of a processor.
    """

    id: str
    name: str
    model: str | None = None
    vendor: str | None = None
    revision: str | None = None
    family: str | None = None
    architecture: str | None = None
    integrated: bool = False


class _AmdFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    instinct: tuple[PciProduct, ...]
    radeon: tuple[PciProduct, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    devices: tuple[PciProduct, ...]


# Built here, not in the threads of several backends, which may look at once: ``codec.build`` says why.
_amd_files = msgspec.json.Decoder(_AmdFile)
_files = msgspec.json.Decoder(_File)


def _data(name: str) -> bytes:
    return resources.files("dra_driver.discovery").joinpath(f"data/{name}").read_bytes()


@cache
def _amd() -> Mapping[str, PciProduct]:
    file = _amd_files.decode(_data("amd_products.json"))
    radeon = {f"{p.id}/{p.revision}": p for p in file.radeon}
    return radeon | {p.id: p for p in file.instinct}


@cache
def _intel() -> Mapping[str, PciProduct]:
    return {p.id: p for p in _files.decode(_data("intel_products.json")).devices}


@cache
def _rdma() -> Mapping[str, PciProduct]:
    return {f"{p.vendor}:{p.id}": p for p in _files.decode(_data("rdma_products.json")).devices}


def amd_product(device: int, revision: int | None) -> PciProduct | None:
    """Return AMD's product with this PCI device id; Radeon models of one id differ by revision."""
    key = f"{device:04x}"
    exact = _amd().get(f"{key}/{revision:02x}") if revision is not None else None
    return exact or _amd().get(key)


def intel_product(device: int) -> PciProduct | None:
    """Return Intel's GPU with this PCI device id."""
    return _intel().get(f"{device:04x}")


def gpu_of_model(vendor: str, model: str) -> PciProduct | None:
    """Return the GPU of ``amd`` or ``intel`` with this short id; the first one if several PCI ids have it."""
    table = {"amd": _amd, "intel": _intel}.get(vendor)
    return next((p for p in table().values() if p.model == model), None) if table else None


def rdma_product(pci_id: str) -> PciProduct | None:
    """Return the NIC with this PCI vendor and device id (``15b3:1021``)."""
    return _rdma().get(pci_id)
