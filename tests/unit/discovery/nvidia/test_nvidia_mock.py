"""The backend ``nvml`` on NVIDIA's own mock of NVML, where it is at hand: not our idea of the library.

``NVML_MOCK`` names the folder ``pkg/gpu/mocknvml`` of github.com/NVIDIA/k8s-test-infra after
``make NO_PADDING=1``, which needs Go and a C compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROFILES = ("a100", "h100", "b200", "gb200", "gb300", "l40s", "t4")
ARCHITECTURES = {
    "ampere": "Ampere",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "ada": "Ada Lovelace",
    "ada_lovelace": "Ada Lovelace",
    "turing": "Turing",
}
BUS = "resource.kubernetes.io/pciBusID"


@pytest.fixture(scope="module")
def mock() -> Path:
    named = os.environ.get("NVML_MOCK")
    if not named:
        pytest.skip("NVML_MOCK names no folder with NVIDIA's mock of NVML (k8s-test-infra, pkg/gpu/mocknvml)")
    folder = Path(named)
    if not (folder / "libnvidia-ml.so.1").exists():
        pytest.fail(f"NVML_MOCK={folder}: there is no libnvidia-ml.so.1; make NO_PADDING=1 builds it")
    return folder


def nodes(root: Path) -> Path:
    """Device nodes of eight GPUs, as files."""
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(8))):
        (root / name).touch()
    return root


def found(mock: Path, config: Path, dev_root: Path) -> list[dict[str, Any]]:
    """What the command finds, in a process that has the mock for its NVML."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(mock), "MOCK_NVML_CONFIG": str(config)}
    words = ["devices", "--backend=nvml", f"--dev-root={dev_root}", "--output=json"]
    command = [sys.executable, "-m", "dra_driver.cli.main", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    devices: list[dict[str, Any]] = json.loads(done.stdout)["devices"]
    return devices


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_the_mock_is_found_as_it_is_described(mock: Path, tmp_path: Path, profile: str) -> None:
    config = mock / "configs" / f"mock-nvml-config-{profile}.yaml"
    described = yaml.safe_load(config.read_text())
    devices = found(mock, config, nodes(tmp_path))
    seen = [(d["attributes"]["uuid"]["string"], d["attributes"][BUS]["string"]) for d in devices]
    assert sorted(seen) == sorted((d["uuid"], d["pci"]["bus_id"].lower()) for d in described["devices"])
    every = described["device_defaults"]
    for device in devices:
        attributes = device["attributes"]
        assert attributes["productName"] == {"string": every["name"]}
        assert attributes["architecture"] == {"string": ARCHITECTURES[every["architecture"]]}
        version = ".".join(str(int(n)) for n in described["system"]["driver_version"].split("."))
        assert attributes["driverVersion"] == {"version": version}
        assert not device.get("health")
        assert device["capacity"]["memory"]["value"] == f"{every['memory']['total_bytes'] >> 30}Gi"
