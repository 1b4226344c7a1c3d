"""Hardware profiles of simulated nodes: those of the ``simulated`` backend, with device nodes added.

The built-in profiles name no device nodes, because on a real node a container with a device node that does
not exist cannot start. Simulated nodes do not mind, and containers should see what they would on hardware.
Each node gets a file of its own, so that tests can change its hardware while it runs.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from dra_driver.discovery.simulated import backend as simulated

__all__ = ["device_nodes", "write_profile"]


def write_profile(profile: str, path: Path) -> None:
    """Writes a node's profile.

    Args:
        profile: built-in name or file, as for ``--backend simulated=``.
        path: where to.

    Raises:
        ConfigurationError: there is no such profile, or it has mistakes.
    """
    simulated.load(profile)
    built_in = resources.files("dra_driver.discovery").joinpath(f"data/profiles/{profile}.yaml")
    text = (
        built_in.read_text("utf-8")
        if profile in simulated.built_in_profiles()
        else Path(profile).read_text("utf-8")
    )
    document = yaml.safe_load(text)
    for index, gpu in enumerate(document.get("gpus") or ()):
        gpu.setdefault("deviceNodes", _device_nodes(gpu, index))
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    simulated.load(str(path))


def _device_nodes(gpu: dict[str, Any], index: int) -> list[str]:
    if gpu.get("vendor", "nvidia") == "nvidia":
        return [f"/dev/nvidia{index}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    driver = ["/dev/kfd"] if gpu["vendor"] == "amd" else []
    return [*driver, f"/dev/dri/renderD{128 + index}"]


def device_nodes(path: Path) -> dict[str, frozenset[str]]:
    """The device nodes of each GPU of a profile file, by PCI address."""
    document = yaml.safe_load(path.read_text("utf-8"))
    return {str(gpu["pciAddress"]): frozenset(gpu.get("deviceNodes") or ()) for gpu in document["gpus"]}
