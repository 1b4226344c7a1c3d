"""What a real container runtime is asked to do. A script stands in for it; no root, no containers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dra_driver.sim.cdi_reader import ContainerView, DeviceView, MountView
from dra_driver.sim.container_runtime import ContainerFailed, ContainerRuntime

VIEW = ContainerView(
    env={"DRA_G__R__0_UUID": "GPU-1", "SPACES": "two words"},
    devices=[
        DeviceView("/dev/nvidia0", "/dev/nvidia0", "c", 0, 0, "rwm"),
        DeviceView("/dev/real", "/dev/real", "c", 195, 7, "rwm"),
    ],
    mounts=[MountView("/opt/lib.so", "/usr/lib/lib.so", ("ro", "bind"))],
)


def runtime(tmp_path: Path, body: str, name: str = "runc") -> ContainerRuntime:
    path = tmp_path / name
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(0o755)
    return ContainerRuntime(path)


SHOW_BUNDLE = """
if "run" in sys.argv:
    print(open(sys.argv[sys.argv.index("--bundle") + 1] + "/config.json").read())
"""


def test_runc_gets_a_bundle_with_the_edits(tmp_path: Path) -> None:
    config = json.loads(runtime(tmp_path, SHOW_BUNDLE).run(VIEW, tmp_path))
    assert "SPACES=two words" in config["process"]["env"]
    assert "DEVICE_NODES=/dev/nvidia0 /dev/real" in config["process"]["env"]
    simulated, real = config["linux"]["devices"]
    assert (simulated["path"], simulated["major"], simulated["minor"]) == ("/dev/nvidia0", 1, 3)
    assert (real["path"], real["major"], real["minor"]) == ("/dev/real", 195, 7)
    assert config["mounts"][-1]["destination"] == "/usr/lib/lib.so"
    assert [p.name for p in tmp_path.iterdir()] == ["runc"], "the bundle is removed"


def test_podman_gets_the_edits_as_flags(tmp_path: Path) -> None:
    output = runtime(tmp_path, "print(json.dumps(sys.argv[1:]))", "podman").run(VIEW, tmp_path)
    flags = json.loads(output)
    assert "--env=SPACES=two words" in flags
    assert "--volume=/opt/lib.so:/usr/lib/lib.so:ro" in flags
    assert any(f.endswith(":/dev/nvidia0") for f in flags)


def test_a_failure_has_the_runtimes_words(tmp_path: Path) -> None:
    broken = runtime(tmp_path, "sys.exit('no cgroups here')")
    with pytest.raises(ContainerFailed, match="status 1: no cgroups here"):
        broken.run(VIEW, tmp_path)
