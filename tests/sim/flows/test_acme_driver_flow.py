"""A third party's driver as its users have it: installed by pip, run by the node agent, killed in between."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_support import apply, delete, environment, gone, phase
from paths import PROJECT

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.sim.cluster import ClusterConfig, EmbeddedCluster
from dra_driver.sim.kubelet import KubeletSettings

pytestmark = [pytest.mark.sim, pytest.mark.slow]

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "npu.acme.example"},
    "spec": {
        "selectors": [
            {
                "cel": {
                    "expression": f"device.driver == '{DEFAULT_DRIVER_NAME}' && "
                    f"device.attributes['{DEFAULT_DRIVER_NAME}'].type == 'npu'"
                }
            }
        ]
    },
}
HALVES = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "halves"},
    "spec": {"partitions": {"profiles": ["half"]}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the example from its own folder."""
    folder = tmp_path_factory.mktemp("site")
    source = str(PROJECT / "docs" / "examples" / "acme-driver")
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(folder), source]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def template(watts: int | None = None, kind: str = "npu") -> dict[str, Any]:
    """The template of the page, for the driver name that the cluster has."""
    text = (PROJECT / "docs" / "sdk.md").read_text().split("## A pod that has one")[1]
    found: dict[str, Any] = next(yaml.safe_load_all(text.split("```yaml")[1].split("```")[0]))
    found["metadata"] = {"name": f"{kind}-{watts or 'plain'}", "namespace": "default"}
    devices = found["spec"]["spec"]["devices"]
    (config,) = devices["config"]
    config["opaque"]["driver"] = DEFAULT_DRIVER_NAME
    config["opaque"]["parameters"]["powerLimit"] = watts
    if watts is None:
        del devices["config"]
    if kind == "half":
        where = f"device.attributes['{DEFAULT_DRIVER_NAME}'].type == 'slice'"
        devices["requests"][0]["exactly"] = {
            "deviceClassName": "half.acme.example",
            "selectors": [{"cel": {"expression": where}}],
        }
    return found


def pod(name: str, of_template: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "npu", "resourceClaimTemplateName": of_template}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sh", "-c", "sleep 3600"],
                    "resources": {"claims": [{"name": "npu"}]},
                }
            ],
        },
    }


def read(tree: Path, file: str) -> list[str]:
    return [(f / file).read_text().strip() if (f / file).is_file() else "" for f in sorted(tree.glob("npu?"))]


@pytest.mark.long
def test_from_its_package_to_pods_and_through_a_kill(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{site}:{PROJECT}")
    tree = tmp_path / "node1" / "class" / "acme"
    config = ClusterConfig(
        profiles=("t4x2",), kubelet=KubeletSettings.quick(), plugin_flags=(f"--backend=acme={tmp_path}",)
    )

    async def main() -> None:
        async with asyncio.timeout(240), EmbeddedCluster(config) as cluster:
            await cluster.ready()
            half = {**CLASS, "metadata": {"name": "half.acme.example"}, "spec": {}}
            await apply(cluster, CLASS, half, HALVES, template(250), template(), template(kind="half"))
            await parameters_reach_the_device_and_go(cluster, tree)
            await a_partition_is_made_and_destroyed(cluster, tree)
            await trouble_is_published(cluster, tree)
            await a_kill_in_the_middle_leaves_nothing(cluster, tree)
            cluster.check()

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.parametrize("faults", [(), ("--faults", "kill plugin node1 at 1s for 2s")], ids=["", "kill"])
def test_the_demo_shows_parameters_and_partitions(
    site: Path, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    """The commands of the page, with the pods beside the example."""
    pods = PROJECT / "docs" / "examples" / "acme-driver" / "demo"
    command = [sys.executable, "-m", "dra_driver.cli.main", "demo", "--nodes", "2", "--profile", "t4x2"]
    command += ["--backend", "acme", "--examples", str(pods), "-v", *faults]
    environment = {**os.environ, "PYTHONPATH": f"{site}:{PROJECT}"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for seen in ("ACME_POWER_LIMIT=250", "-slice-half-0", "backend-acme"):
        assert seen in done.stdout, done.stdout
    assert "NOT AS PROMISED" not in done.stdout


async def parameters_reach_the_device_and_go(cluster: EmbeddedCluster, tree: Path) -> None:
    await apply(cluster, pod("a", "npu-250"), pod("b", "npu-plain"))
    one = await phase(cluster, "a", "Running")
    await phase(cluster, "b", "Running")
    assert sorted(read(tree, "power_limit")) == ["250", "300"]
    assert environment(cluster, one)["ACME_POWER_LIMIT"] == "250"
    await delete(cluster, "a")
    await delete(cluster, "b")
    await gone(cluster, "a")
    await gone(cluster, "b")
    assert read(tree, "power_limit") == ["300", "300"]
    assert read(tree, "job") == ["", ""]


async def a_partition_is_made_and_destroyed(cluster: EmbeddedCluster, tree: Path) -> None:
    await apply(cluster, pod("half", "half-plain"))
    found = await phase(cluster, "half", "Running")
    made = [p.read_text().strip() for p in tree.glob("npu?/partitions/*/uuid")]
    assert len(made) == 1
    assert made[0] in environment(cluster, found).values()
    await delete(cluster, "half")
    await gone(cluster, "half")
    assert not list(tree.glob("npu?/partitions/*/uuid"))


async def trouble_is_published(cluster: EmbeddedCluster, tree: Path) -> None:
    async def taints() -> set[str]:
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        found = [d for s in slices for d in s.spec.devices if d.name == "npu1"]
        return {t.value for d in found for t in d.taints if t.key == "dra-driver.dev/unhealthy"}

    async def bad() -> bool:
        return await taints() == {"NpuFault"}

    async def good() -> bool:
        return not await taints()

    (tree / "npu1" / "state").write_text("overheated\n")
    await cluster.wait_for("the fault to be published", bad)
    (tree / "npu1" / "state").write_text("ok\n")
    await cluster.wait_for("the fault to be over", good)


async def a_kill_in_the_middle_leaves_nothing(cluster: EmbeddedCluster, tree: Path) -> None:
    """The device takes the first of two writes, and never answers to the second."""
    for folder in tree.glob("npu?"):
        (folder / "power_limit").unlink()
        os.mkfifo(folder / "power_limit")
    await apply(cluster, pod("c", "npu-250"))

    async def begun() -> bool:
        return any(read(tree, "job"))

    await cluster.wait_for("the device to be prepared half-way", begun)
    await cluster.kill_plugin("node1")
    assert any(read(tree, "job")), "half-prepared, and nobody there to undo it"
    for folder in tree.glob("npu?"):
        (folder / "power_limit").unlink()
        (folder / "power_limit").write_text("250\n")
    await delete(cluster, "c")
    await cluster.start_process(cluster.nodes["node1"].plugin)

    async def undone() -> bool:
        return not any(read(tree, "job")) and "300" in read(tree, "power_limit")

    await cluster.wait_for("what was begun to be undone", undone)
    await gone(cluster, "c")

    async def nothing_left() -> bool:
        return not cluster.nodes["node1"].leftovers()

    await cluster.wait_for("nothing to be left", nothing_left)
    # The device is as good as new.
    await apply(cluster, pod("d", "npu-250"))
    await phase(cluster, "d", "Running")
    assert "250" in read(tree, "power_limit")
