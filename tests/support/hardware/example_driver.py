"""The driver that docs/sdk.md writes, and machines with its NPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from paths import PROJECT

__all__ = ["EXAMPLE", "acme_machine", "install_example"]

EXAMPLE = PROJECT / "docs" / "examples" / "acme-driver"
_FACTS: Mapping[str, object] = {"model": "NPU-1", "memory_bytes": 2**34, "tops": 400}
_LIMITS: Mapping[str, object] = {"power_limit": 300, "power_limit_default": 300}


def install_example(site: Path) -> tuple[str, str]:
    """Leave in a folder what pip would of the example's pyproject.toml; return what belongs into the path."""
    pattern = r"^\[project\.entry-points\.\"(.+)\"\]\n(\w+) = \"(.+)\"$"
    found = re.findall(pattern, (EXAMPLE / "pyproject.toml").read_text(), re.M)
    assert {group for group, _, _ in found} == {"dra_driver.backends", "dra_driver.parameters"}
    info = site / "acme_driver-1.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-driver\nVersion: 1.0.0\n")
    text = "".join(f"[{group}]\n{name} = {value}\n" for group, name, value in found)
    (info / "entry_points.txt").write_text(text)
    return str(site), str(EXAMPLE)


def acme_machine(root: Path, npus: int = 2) -> Path:
    """Make the sysfs of a machine whose NPUs are PCI functions, as the kernel does; return its root."""
    bus, by_name = root / "sys/bus/pci/devices", root / "sys/class/acme"
    for folder in (bus, by_name):
        folder.mkdir(parents=True)
    for i in range(npus):
        function = root / f"sys/devices/pci0000:3a/0000:3b:0{i}.0"
        npu = function / f"acme/npu{i}"
        npu.mkdir(parents=True)
        (function / "numa_node").write_text("1\n")
        (npu / "device").symlink_to(Path("../../..") / function.name)
        for name, text in {**_FACTS, **_LIMITS, "serial": f"S{i}"}.items():
            (npu / name).write_text(f"{text}\n")
        for link, target in ((bus / function.name, function), (by_name / npu.name, npu)):
            link.symlink_to(os.path.relpath(target, link.parent))
    return root
