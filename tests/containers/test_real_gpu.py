"""Containers with a claim's document compute on a real NVIDIA GPU, and the metrics say what nvidia-smi says.

No setting of the GPU is changed.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import glibc_images as images
import pytest
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import DRIVER, add_claim, claim, running
from real_gpu import ROOTS, first, opened, uuid_of

from dra_driver import cdi
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import TelemetrySource

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SMI = "/usr/bin/nvidia-smi"
MIB = 2**20


@pytest.fixture(scope="module")
def gpu() -> DiscoveredDevice:
    return first()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cuda") / "compute"
    images.compile_file(Path(__file__).with_name("cuda_program.c"), target)
    return target


def edits_of(document: bytes) -> cdi.ContainerEdits:
    spec = cdi.decode(document)
    (device,) = spec.devices
    return cdi.merge(spec.container_edits, device.container_edits)


def parameters(**given: Any) -> Mapping[str, Any]:
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": "dra-driver.dev/v1alpha1", **given}}
    return {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}


@pytest.mark.parametrize("kind", [images.DEBIAN, images.REDHAT])
def test_a_container_computes_on_the_gpu_of_its_claim(
    tmp_path: Path, gpu: DiscoveredDevice, program: Path, kind: str
) -> None:
    runc = images.runc()
    root = images.image(tmp_path / "image", kind)
    shutil.copy(program, root / "usr/bin/compute")
    host = Path("/")

    def run(name: str, edits: cdi.ContainerEdits, *words: str) -> subprocess.CompletedProcess[str]:
        return images.run(runc, tmp_path / name, root, edits, host, *words)

    without = run("without", cdi.ContainerEdits(), "/usr/bin/compute")
    assert without.returncode == 1, "nothing of the driver is in the image"

    async def scenario() -> None:
        kube = FakeClient()
        shares: dict[str, Any] = {"consumedCapacity": {"memory": "1Gi"}}
        whole = add_claim(kube, claim("whole", gpu.device.name))
        looks = add_claim(kube, claim("looks", gpu.device.name, adminAccess=True))
        one = claim("one", gpu.device.name, shareID=str(uuid.uuid4()), **shares)
        limited = claim("limited", gpu.device.name)
        limited["status"]["allocation"]["devices"]["config"] = [
            parameters(kind="GpuConfig", driverCapabilities=["utility"])
        ]
        one["status"]["allocation"]["devices"]["config"] = [
            parameters(kind="ShareConfig", enforcement="None")
        ]
        add_claim(kube, one)
        settings = {**ROOTS, "host_root": host}
        async with running(tmp_path / "agent", kube, backend=opened(), settings=settings) as node:

            async def edits(body: dict[str, Any]) -> cdi.ContainerEdits:
                uid = body["metadata"]["uid"]
                answer = (await prepare(node, body))[uid]
                assert not answer.error
                (document,) = node.config.cdi_dir.glob(f"*{uid}*")
                return edits_of(document.read_bytes())

            for body in (whole, one):
                name, given = body["metadata"]["name"], await edits(body)
                found = await asyncio.to_thread(run, name, given, "/usr/bin/compute", str(64 * MIB))
                lines = dict(line.split() for line in found.stdout.splitlines())
                assert found.returncode == 0, found.stderr
                assert lines["devices"] == "1"
                assert lines["uuid"] == uuid_of(gpu)
                assert lines["result"] == "right"
                await unprepare(node, body)
            for body in (looks, add_claim(kube, limited)):
                given = await edits(body)
                name = body["metadata"]["name"]
                listed = await asyncio.to_thread(run, f"{name}-smi", given, SMI, "-L")
                assert uuid_of(gpu) in listed.stdout, listed.stderr
                if body is not looks:
                    computed = await asyncio.to_thread(run, name, given, "/usr/bin/compute")
                    assert computed.returncode == 1, "utility has no libcuda"
                await unprepare(node, body)
            assert node.specs() == []

    asyncio.run(scenario())


def test_samples_are_what_nvidia_smi_says(gpu: DiscoveredDevice) -> None:
    backend = opened()
    assert isinstance(backend, TelemetrySource)
    try:
        backend.discover()
        (sample,) = (s for s in backend.sample() if s.device == gpu.device.name)
        asked = "memory.used,memory.total,temperature.gpu"
        command = [
            "nvidia-smi",
            f"--id={uuid_of(gpu)}",
            f"--query-gpu={asked}",
            "--format=csv,noheader,nounits",
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(",")
        used, total, temperature = (float(text) for text in said)
    finally:
        backend.close()
    assert sample.memory_used is not None
    assert sample.memory_total == total * MIB
    # Both are rounded, and something may have begun in between.
    assert abs(sample.memory_used / MIB - used) <= 64
    assert sample.temperature is not None
    assert abs(sample.temperature - temperature) <= 10
