"""A reboot of a real node after which nothing has the name that it had: each pod gets its own devices back.

While the machine is off, its GPUs change their device nodes among each other, another driver with files of
other names is installed, and MIG instances go, as they do. The boot ID is another one, and ``/run`` is empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
import yaml
from e2e_support import allocated, clear, eventually, gpu_settings, make_namespace, published, running
from local.node_files import DRIVER, GPU_NODES, NodeFiles

from dra_driver.api.core import PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.sim.demo import examples
from kubelet_plugin.claims.checkpoint_file import read_checkpoint

if TYPE_CHECKING:
    from e2e_support import Actions, Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-reboot"
PART = "part"
PODS_OF = ("whole", "other", PART)
OTHER_DRIVER = "580.65.06"
claim = partial(e2e_support.claim, NAMESPACE)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Of each node its numbers as the kernel has them: "gpu3:195,3".
# One write, as the log is read when its first bytes are there.
COMMAND = f"""
seen=$(env | grep -E '^DRA_'
echo "NODES=$(ls -l {GPU_NODES} | grep gpu | while read m l u g major minor d1 d2 t name; do
  echo "$name:$major$minor"; done)"
echo "FILES=$(echo {LIBRARIES}/*.so.[0-9]*)")
echo "$seen"
sleep 3600
"""


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


@pytest.fixture
def actions(cluster: Cluster) -> Actions:
    if cluster.actions is None or "runtime" not in cluster.actions.parts:
        pytest.skip("only a local cluster has containers, device nodes and driver files of its own")
    return cluster.actions


@pytest.fixture
def machine(actions: Actions) -> Iterator[Machine]:
    made = Machine(actions.hardware(""), NodeFiles(Path(os.environ["E2E_FILES"])))
    made.give_nodes()
    yield made
    made.restore()


class Machine:
    """Eight of the node's GPUs, which have device nodes and NVIDIA's driver while the test runs."""

    def __init__(self, profile: Path, files: NodeFiles) -> None:
        self._profile = profile
        self._files = files
        self._before = profile.read_text()

    def give_nodes(self) -> None:
        """Give every GPU a node, and what marks it as one whose driver's files containers need."""

        def change(gpus: list[dict[str, Any]]) -> None:
            for n, gpu in enumerate(gpus):
                gpu["deviceNodes"] = [f"{GPU_NODES}/gpu{n}"]
                gpu["env"] = {"NVIDIA_VISIBLE_DEVICES": "void"}

        self._change(change, DRIVER)

    def change_everything(self) -> None:
        """Have GPUs swap their nodes, in pairs and around, and another driver."""

        def change(gpus: list[dict[str, Any]]) -> None:
            nodes = [gpu["deviceNodes"] for gpu in gpus]
            order = (1, 0, 3, 4, 2, 7, 5, 6)
            for gpu, n in zip(gpus, order, strict=True):
                gpu["deviceNodes"] = nodes[n]

        self._change(change, OTHER_DRIVER)
        self._files.install_driver(OTHER_DRIVER, "libcuda.so", "libnvidia-ml.so", "libnvidia-gpucomp.so")

    def node(self, device: str) -> str:
        """Return the name of the node that a device's GPU has now."""
        address = device.partition("-mig-")[0]
        for gpu in yaml.safe_load(self._profile.read_text())["gpus"]:
            if "gpu-" + gpu["pciAddress"].replace(":", "-").replace(".", "-") == address:
                return str(gpu["deviceNodes"][0]).rpartition("/")[2]
        raise AssertionError(f"no GPU {address}")

    def restore(self) -> None:
        """Be as before the test."""
        self._write(self._before)
        self._files.install_driver(DRIVER, "libcuda.so", "libnvidia-ml.so")

    def _change(self, change: Any, driver: str) -> None:
        document = yaml.safe_load(self._profile.read_text())
        # One of them is the one that may be cut.
        change([*document["gpus"][:7], *(g for g in document["gpus"] if g.get("product") == "A100-80")])
        document["driverVersion"] = driver
        self._write(yaml.safe_dump(document))

    def _write(self, text: str) -> None:
        fresh = self._profile.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._profile)


def request(mig: str = "") -> dict[str, Any]:
    """A device of the GPUs that have nodes: whole, or a partition."""
    attributes = f'device.attributes["{DEFAULT_DRIVER_NAME}"]'
    what = f'{attributes}.?profile.orValue("") == "{mig}"' if mig else f'{attributes}.type == "gpu"'
    expression = what if mig else f'{attributes}.?model.orValue("").startsWith("H100") && {what}'
    name = f"mig.{DEFAULT_DRIVER_NAME}" if mig else DEFAULT_DRIVER_NAME
    return {"deviceClassName": name, "selectors": [{"cel": {"expression": expression}}]}


def pods_of(cluster: Cluster) -> tuple[str, ...]:
    """The pods; none has a partition where the API server drops what partitions are described by."""
    return tuple(p for p in PODS_OF if p != PART or cluster.served["partitionable devices"])


async def views(cluster: Cluster) -> dict[str, Mapping[str, str]]:
    """What the container of each pod says that it sees."""
    found: dict[str, Mapping[str, str]] = {}
    for body in await running(cluster, NAMESPACE, *pods_of(cluster)):
        containers = await cluster.containers(body)
        assert containers is not None
        (view,) = containers.values()
        found[body.metadata.name] = view.env
    return found


async def check(cluster: Cluster, machine: Machine, driver: str) -> dict[str, str]:
    """Each pod sees the node of its device's GPU and the driver's files; return the UUIDs that they see."""
    uuids: dict[str, str] = {}
    seen = await views(cluster)
    for name, env in seen.items():
        ((_, device),) = await allocated(cluster, NAMESPACE, name)
        node = machine.node(device)
        assert env["NODES"].split() == [f"{node}:195,{node.removeprefix('gpu')}"], (name, device)
        files = env["FILES"].split()
        assert f"{LIBRARIES}/libcuda.so.{driver}" in files or f"{LIBRARIES}/libcuda.so.1" in files, files
        others = {DRIVER, OTHER_DRIVER} - {driver}
        assert not any(f.endswith(other) for f in files for other in others), files
        (uuids[name],) = (value for key, value in env.items() if key.endswith("_UUID"))
    assert len({env["NODES"] for env in seen.values()}) == len(seen), "two pods have one node"
    return uuids


async def shows(cluster: Cluster, driver: str) -> bool:
    """Whether devices are published as of this driver: what else the agent sees of them is as new."""
    version = ".".join(str(int(number)) for number in driver.split("."))
    slices = (await cluster.api.list(RESOURCE_SLICES)).items
    attributes = [d.attributes.get("driverVersion") for s in slices for d in s.spec.devices]
    return any(a is not None and a.version_value == version for a in attributes)


def boots(state: Path) -> set[str]:
    """The boots that the records of prepared claims are of."""
    checkpoint = read_checkpoint(state / "checkpoint.json")
    return {c.boot_id or checkpoint.boot_id for c in checkpoint if not c.ended}


def test_after_a_reboot_each_pod_has_its_own_devices_by_their_new_names(
    background: Background, cluster: Cluster, actions: Actions, machine: Machine
) -> None:
    async def scenario() -> None:
        await eventually("the GPUs of this test", partial(shows, cluster, DRIVER))
        names_of = pods_of(cluster)
        for name in names_of:
            asked = request("1g.10gb" if name == PART else "")
            body = e2e_support.pod(NAMESPACE, name, name, command=COMMAND, restartPolicy="Always")
            await examples.apply(cluster.api, [claim(name, asked), body])
        (before, *_) = await running(cluster, NAMESPACE, *names_of)
        node = before.spec.node_name
        uuids = await check(cluster, machine, DRIVER)
        devices = {name: await allocated(cluster, NAMESPACE, name) for name in names_of}
        names = {name: machine.node(d[0][1]) for name, d in devices.items()}
        state, cdi = actions.state(node)
        (boot,) = boots(state)
        epoch = (await published(cluster))[node]

        def change() -> None:
            assert not list(cdi.glob("*")), "/run was not emptied"
            machine.change_everything()
            # Hardware forgets instances; MIG mode stays, as before Hopper.
            settings = {uuid: {**gpu, "instances": []} for uuid, gpu in gpu_settings(cluster, node).items()}
            (state / "simulated-gpus.json").write_text(json.dumps(settings))

        await actions.reboot(node, change)

        async def back() -> bool:
            return (await published(cluster)).get(node, 0) > epoch and boots(state) not in ({boot}, set())

        await eventually("the node's devices to be published, and claims to be prepared anew", back)

        async def again() -> bool:
            for name in names_of:
                found = await cluster.api.get(PODS, name, NAMESPACE)
                containers = await cluster.containers(found) or {}
                if not any(OTHER_DRIVER in view.env.get("FILES", "") for view in containers.values()):
                    return False
            return True

        await eventually("all containers to be started again, on the other driver", again)
        assert await check(cluster, machine, OTHER_DRIVER) == uuids
        assert {name: await allocated(cluster, NAMESPACE, name) for name in names_of} == devices
        assert all(machine.node(d[0][1]) != names[name] for name, d in devices.items())
        assert len(list(cdi.glob("k8s.*claim*"))) >= len(names_of)
        made = [gpu["instances"] for gpu in gpu_settings(cluster, node).values() if gpu.get("instances")]
        assert [len(instances) for instances in made] == [1] * (PART in names_of)

    background.run(scenario())
