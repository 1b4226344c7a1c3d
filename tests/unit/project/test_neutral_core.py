"""Only rooms of a vendor know the vendor: elsewhere devices are typed facts, not names to be recognised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from paths import PROJECT

# All that decides, but for ``api``, where vendors' names are those of published attributes and kinds.
NEUTRAL = (
    "dra_driver/cdi",
    "dra_driver/cel",
    "dra_driver/fleet",
    "dra_driver/hardware.py",
    "dra_driver/kube",
    "dra_driver/nodefit",
    "dra_driver/ownership",
    "dra_driver/planning",
    "dra_driver/ports.py",
    "dra_driver/preemption",
    "dra_driver/preparation",
    "dra_driver/publishing",
    "dra_driver/resourceclaim",
    "dra_driver/resourceslice",
    "dra_driver/sdk",
    "dra_driver/serving",
    "dra_driver/structured",
    "controller",
    "kubelet_plugin/claims",
    "kubelet_plugin/core",
    "kubelet_plugin/devices",
    "kubelet_plugin/extensions",
    "kubelet_plugin/grpc",
    "kubelet_plugin/health",
    "kubelet_plugin/telemetry",
    "kubelet_plugin/usage",
    "kubelet_plugin/app.py",
    "kubelet_plugin/config.py",
)

# Vendors, their libraries, modules, device nodes and modes, and the backend that stands in for all of them.
# Intel RDT is a part of the CDI specification.
WORDS = re.compile(
    r"nvidia|nvml|cuda|amdgpu|\bamd\b|\bkfd\b|\bintel\b(?!-?_?rdt)|\bi915\b|\bxe\b|mellanox|infiniband"
    r"|(?-i:(?:(?<![A-Za-z])(?:mig|MIG)|Mig)(?![a-z]))|/dev/dri|renderd|[\"']simulated",
    re.IGNORECASE,
)

# Path → words that it may have, and why. An entry without need fails as well.
ALLOWED: Mapping[str, tuple[set[str], str]] = {
    "dra_driver/hardware.py": ({"mig", "nvidia"}, "examples in the descriptions of two fields"),
    "dra_driver/ports.py": ({"nvml"}, "an example of the name of a backend"),
    "dra_driver/preparation/claim.py": (
        {"mig"},
        "names of fields in checkpoints, which earlier versions have written and read",
    ),
    "dra_driver/preparation/sharing.py": (
        {"cuda"},
        "variables of MPS, which parameters of ours ask for by that name",
    ),
    "dra_driver/preparation/renewal.py": (
        {"cuda"},
        "the same variables, in documents that say nothing else of what was made for the claim",
    ),
    "dra_driver/resourceslice/partitioning.py": (
        {"mig"},
        "names and a value of published attributes; inventories of earlier node agents do not say the type",
    ),
    "dra_driver/resourceslice/devices.py": (
        {"cuda"},
        "names of published attributes, in the order in which they are kept",
    ),
    "dra_driver/resourceslice/device_plugins.py": (
        {"nvidia", "amd", "intel", "i915", "xe", "mig"},
        "resources of other software in the cluster; the controller has no backend that could name them",
    ),
    "controller/config.py": ({"nvidia"}, "a value of --node-labels"),
    "controller/observe/node_labels.py": ({"nvidia"}, "the labels that this value stands for"),
    "kubelet_plugin/config.py": (
        {"nvidia", "cuda"},
        "flags with the vendor's name, handed to its room",
    ),
}


def words(path: Path) -> set[str]:
    return {w.lower().strip("\"'") for w in WORDS.findall(path.read_text(encoding="utf-8"))}


def sources() -> dict[str, Path]:
    found = [p for part in NEUTRAL for p in _python(PROJECT / part)]
    return {str(p.relative_to(PROJECT)): p for p in found}


def _python(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_what_is_neutral_knows_no_vendor() -> None:
    found = {name: words(path) for name, path in sources().items()}
    allowed = {name: words for name, (words, _) in ALLOWED.items()}
    assert {name: w for name, w in found.items() if w} == allowed


@pytest.mark.parametrize("part", NEUTRAL)
def test_the_parts_are_there(part: str) -> None:
    assert (PROJECT / part).exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('re.compile(r"/dev/nvidia[0-9]+")', True),
        ('reason == "MigEnabled"', True),
        ("mig_mode", True),
        ("set_mig_mode", True),
        ('backend.name == "simulated"', True),
        ("/dev/dri/renderD128", True),
        ("migration", False),
        ("might", False),
        ("simulated=now.simulated", False),
        ("intel_rdt: IntelRdt", False),
    ],
)
def test_the_words(text: str, *, word: bool) -> None:
    assert bool(WORDS.search(text)) is word
