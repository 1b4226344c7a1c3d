"""Profiles: machines that do not exist, described in YAML; the schema of the file, and its strict decoding.

A profile has GPUs in the words of what is published of them (``gpus``), devices in the words of what the
kernel shows of them (``devices``), or both::

    description: two GPUs and eight NICs          # for people
    driverVersion: "570.148.08"                   # of the GPUs in gpus; optional, and so is all that follows
    cudaDriverVersion: "12.8"
    processors: [96, 96]                          # cores of each NUMA node; default: one node with 8
    modules: {amdgpu: "6.10.5"}                   # versions of kernel modules that show one
    gpus:                                         # see gpu_entries.py
    - {pciAddress: "0000:3b:00.0", product: A100-40}
    nvlink:
    - members: ["0000:3b:00.0", "0000:5e:00.0"]   # PCI addresses of gpus
      links: 4                                    # per pair, or per GPU where switched
      switched: false                             # true: every member is linked to an NVSwitch
    devices:                                      # groups of equal devices, see device_groups.py
    - {kind: rdma, at: ["0000:18:00.0 pci0000:15 0"], deviceID: "1021"}

``gpus`` or ``devices`` is required; both may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from dra_driver.discovery.core import strict
from dra_driver.discovery.simulated.device_groups import WORD, read_groups
from dra_driver.discovery.simulated.gpu_entries import read_gpus, read_nvlink
from dra_driver.discovery.simulated.machine import SimulatedDevice, SimulatedMachine
from dra_driver.errors import ConfigurationError
from dra_driver.suggestions import did_you_mean

__all__ = ["built_in_profiles", "decode", "load", "read"]

_KEYS = (
    "description", "driverVersion", "cudaDriverVersion", "processors", "modules", "gpus", "nvlink", "devices",
)  # fmt: skip
_FOLDER = resources.files("dra_driver.discovery").joinpath("data/profiles")


def built_in_profiles() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _FOLDER.iterdir() if f.name.endswith(".yaml")))


def read(profile: str) -> str:
    """Return the text of a built-in profile, or of the file that ``profile`` names.

    Args:
        profile: a built-in name; the path of a file if it contains ``/`` or ends in ``.yaml`` or ``.yml``.

    Raises:
        ConfigurationError: there is no such profile, or the file cannot be read.
    """
    if "/" in profile or profile.endswith((".yaml", ".yml")):
        return strict.read_text(Path(profile), "simulated profile")
    known = built_in_profiles()
    if profile not in known:
        raise ConfigurationError(
            f"simulated profile {profile[:80]!r} is unknown{did_you_mean(profile, known) or ':'} "
            f"allowed are {', '.join(known)}, "
            "or the path of a YAML file (./NAME.yaml)"
        )
    return _FOLDER.joinpath(f"{profile}.yaml").read_text(encoding="utf-8")


def load(profile: str) -> SimulatedMachine:
    """Decode a built-in profile, or the file that ``profile`` names (see ``read``).

    Raises:
        ConfigurationError: there is no such profile, the file cannot be read, or it has mistakes.
    """
    return _built_in(profile) if profile in built_in_profiles() else decode(read(profile), profile)


@cache
def _built_in(name: str) -> SimulatedMachine:
    return decode(read(name), name)


def decode(text: str, name: str) -> SimulatedMachine:
    """Decode the YAML ``text`` of the profile ``name`` (a file name or the name of a built-in one).

    Raises:
        ConfigurationError: with every mistake, each naming path, value and what is allowed.
    """
    reader = strict.Reader(f"simulated profile {name}")
    document = strict.parse_yaml(text, f"simulated profile {name}")
    top = reader.mapping(document, "", _KEYS)
    if isinstance(document, Mapping) and not top.keys() & {"gpus", "devices"}:
        reader.finding("", "gpus or devices is missing")
    cores = [
        reader.integer(item, path, 1, 4096)
        for path, item in reader.items(top.get("processors"), "processors", 64)
    ]
    modules = _modules(reader, top.get("modules"))
    # Kept as it is written: that is how a kernel module shows its version.
    stated = top["driverVersion"] if reader.version(top.get("driverVersion"), "driverVersion") else None
    gpus = read_gpus(reader, top.get("gpus"), modules, stated if isinstance(stated, str) else None)
    nvlink = read_nvlink(reader, top.get("nvlink"), frozenset(g.function.address for g in gpus))
    devices, xgmi = read_groups(reader, top.get("devices"), modules)
    _check_addresses(reader, gpus, devices)
    versions = {d.function.driver: d.function.driver_version for d in gpus}
    machine = SimulatedMachine(
        description=reader.text(top.get("description"), "description", limit=400) or "",
        processors=tuple(c for c in cores if c is not None) or (8,),
        modules={d: v for d, v in versions.items() if d is not None and v is not None} | modules,
        cuda_driver_version=reader.version(top.get("cudaDriverVersion"), "cudaDriverVersion"),
        devices=(*gpus, *devices),
        links=(*nvlink, *xgmi),
    )
    reader.finish()
    return machine


def _modules(reader: strict.Reader, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.finding("modules", "not a mapping of module names to versions")
        return {}
    found: dict[str, str] = {}
    for key, item in value.items():
        name = reader.text(key, "modules", WORD, "the name of a kernel module")
        version = reader.text(item, f"modules.{name}")
        if name and version:
            found[name] = version
    return found


def _check_addresses(
    reader: strict.Reader, gpus: list[SimulatedDevice], devices: list[SimulatedDevice]
) -> None:
    """Note every address of ``devices`` that another device has; those of ``gpus`` are checked already."""
    taken = {gpu.function.address for gpu in gpus}
    twice = set()
    for device in devices:
        if device.function.address in taken:
            twice.add(device.function.address)
        taken.add(device.function.address)
    for address in sorted(twice):
        reader.finding("devices", f"'{address}' is given twice; every device has its own address")
