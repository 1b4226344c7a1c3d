"""Profiles of the embedded cluster's nodes: those of the backend ``simulated``, with device nodes added.

The built-in profiles name no device nodes, because on a real node a container with a device node that does
not exist cannot start. Nodes of the embedded cluster have no such limit, and containers should see what they
would on hardware. Each node gets a file of its own, so that tests can change its hardware while it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

from dra_driver.discovery.core import strict
from dra_driver.discovery.simulated import profile as simulated_profile

__all__ = ["device_nodes", "write_profile"]


def write_profile(profile: str, path: Path) -> None:
    """Write a node's profile.

    Args:
        profile: built-in name or file, as for ``--backend simulated=``.
        path: where to write it.

    Raises:
        ConfigurationError: there is no such profile, or it has mistakes.
    """
    simulated_profile.load(profile)
    document = _parse(simulated_profile.read(profile))
    for index, gpu in enumerate(document.get("gpus") or ()):
        gpu.setdefault("deviceNodes", _device_nodes(gpu, index))
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    simulated_profile.load(str(path))


def _parse(text: str) -> dict[str, Any]:
    # All scalars stay text: YAML's own types would change PCI addresses and ids.
    return cast("dict[str, Any]", strict.parse_yaml(text, "simulated profile"))


def _device_nodes(gpu: dict[str, Any], index: int) -> list[str]:
    if gpu.get("vendor", "nvidia") == "nvidia":
        return [f"/dev/nvidia{index}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    driver = ["/dev/kfd"] if gpu["vendor"] == "amd" else []
    return [*driver, f"/dev/dri/renderD{128 + index}"]


def device_nodes(path: Path) -> dict[str, frozenset[str]]:
    """Return the device nodes of each GPU of a profile file, by PCI address."""
    document = _parse(path.read_text("utf-8"))
    return {
        str(gpu["pciAddress"]): frozenset(gpu.get("deviceNodes") or ()) for gpu in document.get("gpus") or ()
    }
