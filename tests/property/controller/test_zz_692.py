import asyncio, random, os, traceback
import pytest
import virtual_time
import test_pods_with_grants as base
from test_pods_with_grants import *
from open_cluster import without_taints
from dra_driver.api.core import CONFIG_MAPS, NAMESPACES
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.ownership import PoolAllocator
from dra_driver.api.resource import RESOURCE_SLICES
from controller_harness import request as req


def policy(node, allocator):
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": f"of-{node}"},
        "spec": {
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [term]}]},
            "allocator": allocator,
        },
    }


class World(SimulatedCluster):
    def __init__(self, seed, wild):
        super().__init__(seed)
        self.wild = wild
        self.log = []

    def admin(self):
        c, rng = self.cluster, self.rng
        acts = ["policy", "policy", "nopolicy", "gate", "label", "label"] + (
            ["rmobj", "wipe", "pools", "uninstall", "install", "install", "evaluates"] if self.wild else []
        )
        act = rng.choice(acts)
        self.log.append(act)
        node = rng.choice(NODES)
        if act == "policy":
            c.put(DEVICE_POLICIES, policy(node, rng.choice(["scheduler", "controller"])))
        elif act == "nopolicy":
            if c.find(DEVICE_POLICIES, f"of-{node}") is not None:
                c.remove(DEVICE_POLICIES, f"of-{node}")
        elif act == "gate":
            (c.gate_labelled if rng.random() < 0.5 else c.gate_everywhere)()
        elif act == "label":
            if c.find(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE):
                c.edit(
                    CONFIG_MAPS,
                    GRANTS,
                    {"metadata": {"labels": {"n": str(rng.random())[2:8]}}},
                    SYSTEM_NAMESPACE,
                )
        elif act == "rmobj":
            if c.find(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE):
                c.remove(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
        elif act == "wipe":
            if c.find(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE):
                c.edit(CONFIG_MAPS, GRANTS, {"data": None}, SYSTEM_NAMESPACE)
        elif act == "pools":
            if c.find(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE):
                c.edit(
                    CONFIG_MAPS,
                    GRANTS,
                    {
                        "data": {
                            "_default": rng.choice(["scheduler", "controller"]),
                            "_kept": "x/y",
                            "_pools": "gpu.example.com/n1\nfoo",
                        }
                    },
                    SYSTEM_NAMESPACE,
                )
        elif act == "uninstall":
            try:
                c.uninstall()
            except Exception:
                pass
        elif act == "install":
            c.install()
        elif act == "evaluates":
            c.evaluates = rng.random() < 0.5


N = int(os.environ.get("SEEDS", "6"))
S0 = int(os.environ.get("SEED0", "0"))


def repair(world):
    c = world.cluster
    c.evaluates = True
    c.install()
    c.gate_everywhere()


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("taints", [True, False])
@pytest.mark.parametrize("seed", range(S0, S0 + N))
def test_admin(seed, wild, taints):
    world = World(seed, wild)
    c = world.cluster
    if not taints:
        c.strip = without_taints
    default = PoolAllocator.SCHEDULER if seed % 3 == 2 else PoolAllocator.CONTROLLER

    async def main():
        async with asyncio.timeout(60_000):
            for _ in range(3):
                async with controlling(c, open_pools=True, allocator=default):
                    await asyncio.sleep(world.rng.choice([0.5, 3.0, IN_FORCE]))
                    for _ in range(25):
                        if world.rng.random() < 0.3:
                            world.admin()
                        world.step()
                        await asyncio.sleep(world.rng.choice([0.1, 1.0, 5.0, 20.0]))
                        if not wild:
                            assert not doubles(c), (seed, world.log)
            repair(world)
            world.late.clear()
            for p in c.all(PODS):
                c.remove(PODS, p.metadata.name, NS)
            for k in c.all(RESOURCE_CLAIMS):
                if k.metadata.namespace == NS:
                    c.remove(RESOURCE_CLAIMS, k.metadata.name, NS)
            async with controlling(c, open_pools=True, allocator=default) as h:
                await asyncio.sleep(120)
                # all must be served now
                for i in range(6):
                    kind = i % 3
                    if kind == 0:
                        claim(c, f"z{i}")
                        pod(c, f"z{i}", f"z{i}")
                    elif kind == 1:
                        pod(c, f"z{i}", amount=1)
                    else:
                        claim(c, f"z{i}", request(), request("nic", "nic"))
                        pod(c, f"z{i}", f"z{i}")
                for _ in range(200):
                    world.decide(at_once=True)
                    await asyncio.sleep(1.0)
                    if all(p.spec.node_name for p in c.all(PODS)):
                        break
                left = [
                    (p.metadata.name, h.reason(p.metadata.name), [dict(x) for x in p.status.conditions][:1])
                    for p in c.all(PODS)
                    if not p.spec.node_name
                ]
                assert not left, (
                    "UNSERVED",
                    seed,
                    wild,
                    taints,
                    left,
                    [c.record(n) for n in NODES],
                    c.grants(),
                    world.log,
                )
                assert not doubles(c)

    virtual_time.run(main())
