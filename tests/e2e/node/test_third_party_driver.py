"""A third party's driver beside a real kubelet, whose devices need longer than the kubelet waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import e2e_support
import pytest
from e2e_support import clear, eventually, make_namespace
from example_driver import EXAMPLE

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.demo import examples
from kubelet_plugin.claims.checkpoint_file import read_checkpoint

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

# Not labelled for our controller: the agent publishes, kube-scheduler allocates.
NAMESPACE = "dra-e2e-third-party"
DRIVER = "npu.acme.example"
# The agent answers the kubelet after 25 s, and the kubelet comes back after 65 s or more.
SECONDS = 30.0
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == {DRIVER!r}"}}]},
}
MODULE = f"""
import dataclasses, time
import acme_driver
from dra_driver import sdk

class Slow(acme_driver.AcmeBackend):
    name = "slow"

    def discover(self):
        edits = sdk.ContainerEdits(env=("DRA_NPU=1",))
        return [dataclasses.replace(d, material=edits, own_nodes=()) for d in super().discover()]

    def plan_device(self, use):
        return sdk.DevicePlan({{"watts": 100, "before": 300}}, seconds=120)

    def prepare_device(self, work):
        time.sleep({SECONDS})
        super().prepare_device(work)

def factory(arg, *, node_name, **roots):
    acme_driver.factory(arg, node_name=node_name, **roots)  # makes the files
    return Slow(roots["sysfs_root"].__class__(arg, node_name), simulated=True)
"""
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture
def npus(background: Background, cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The files of the node's NPUs, which an agent beside the GPUs' publishes while the test runs."""
    if cluster.actions is None or "runtime" not in cluster.actions.parts:
        pytest.skip("only a local cluster's node is this machine")
    (node,) = {s.spec.node_name for s in background.run(cluster.api.list(RESOURCE_SLICES)).items}
    info = tmp_path / "site/slow_acme-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dra_driver.backends]\nslow = slow_acme:factory\n")
    (info.parent / "slow_acme.py").write_text(MODULE)
    files = tmp_path / "npus"
    command = [
        str(Path(sys.executable).with_name("dra-driver")),
        "kubelet-plugin",
        f"--node-name={node}",
        f"--driver-name={DRIVER}",
        f"--backend=slow={files}",
        "--publish=node",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(info.parent), str(EXAMPLE)))}
    background.run(make_namespace(cluster, NAMESPACE))
    background.run(examples.apply(cluster.api, [CLASS]))
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield files / str(node) / "class/acme"
        assert agent.poll() is None, (tmp_path / "log").read_text()[-2000:]
    finally:
        background.run(clear(cluster, NAMESPACE))
        agent.terminate()
        agent.wait(90)
        print((tmp_path / "log").read_text()[-4000:])


def jobs(npus: Path) -> set[str]:
    """UIDs of the claims that NPUs work for."""
    return {file.read_text().strip() for file in npus.glob("*/job")} - {""}


def test_a_device_that_needs_long_gets_ready_and_is_given_back(
    background: Background, cluster: Cluster, npus: Path
) -> None:
    api = cluster.api

    async def uid(name: str) -> str:
        return str((await api.get(RESOURCE_CLAIMS, name, NAMESPACE)).metadata.uid)

    async def reported(name: str) -> list[str]:
        found = (await api.list(EVENTS, NAMESPACE)).items
        return [e.message for e in found if e.involved_object.name == name]

    async def gone() -> bool:
        state = Path("/var/lib/kubelet/plugins", DRIVER, "checkpoint.json")
        return not jobs(npus) and not list(read_checkpoint(state))

    async def scenario() -> None:
        began = time.monotonic()
        exactly = {"deviceClassName": DRIVER}
        await examples.apply(api, [claim("a", exactly), pod("a", "a"), claim("b", exactly), pod("b", "b")])

        async def preparing() -> bool:
            return all([any("still prepares it" in text for text in await reported(name)) for name in "ab"])

        await eventually("the kubelet to be told that both are still being prepared", preparing)
        assert time.monotonic() - began < SECONDS + 60
        # One is deleted meanwhile: what was begun is undone.
        await api.delete(PODS, "b", NAMESPACE)
        await e2e_support.running(cluster, NAMESPACE, "a")
        print(f"ready after {time.monotonic() - began:.0f} s")
        assert jobs(npus) == {await uid("a")}
        (view,) = (await cluster.containers(await api.get(PODS, "a", NAMESPACE)) or {}).values()
        assert view.env["DRA_NPU"] == "1"
        await api.delete(PODS, "a", NAMESPACE)
        await eventually("everything to be given back", gone)

    background.run(scenario())
