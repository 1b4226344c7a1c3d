"""Groups of pods that are allocated all or none."""

from __future__ import annotations

import attack_objects as objects
from attack_api import Manifest, path_of
from attack_objects import RACK, UUID, alternatives, member
from attack_world import TENANT, AttackedCluster, attack

from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL

_HOST = "kubernetes.io/hostname"


def _gang(group: str, size: int, domain: str = "", spec: Manifest | None = None) -> list[Manifest]:
    return [m for i in range(size) for m in member(f"{group}-{i}", TENANT, group, size, domain, spec)]


@attack
async def gang_on_one_host(world: AttackedCluster) -> None:
    """Ask for nine devices on one host: every host is a domain, and each has eight."""
    await world.submit(*_gang("host", 9, _HOST))


@attack
async def gang_in_a_rack(world: AttackedCluster) -> None:
    """Ask for 33 devices in one rack of 32, in 50 racks of 200 nodes."""
    await world.submit(*_gang("rack", 33, RACK), *_gang("rack-too", 35, RACK))


@attack
async def gang_of_pairs(world: AttackedCluster) -> None:
    """Ask for pairs on one NUMA node, nine of them on one host: the order in which they are tried matters."""
    two = objects.requests(
        objects.exactly(), objects.exactly(), constraints=[{"matchAttribute": objects.NUMA}]
    )
    three = objects.devices(3)
    members = [m for i in range(5) for m in member(f"pairs-{i}", TENANT, "pairs", 9, _HOST, two)]
    members += [m for i in range(5, 9) for m in member(f"pairs-{i}", TENANT, "pairs", 9, _HOST, three)]
    await world.submit(*members)


@attack
async def gang_of_hard_claims(world: AttackedCluster) -> None:
    """Let every member of a group have a claim that is hard by itself."""
    expressions = [f'{UUID}.charAt({4 + i}) != "~"' for i in range(8)]
    await world.submit(*_gang("hard", 9, RACK, alternatives(7, expressions)))


@attack
async def gang_that_lies(world: AttackedCluster) -> None:
    """Say sizes that are not true, that differ, that are no numbers, or that are larger than any."""
    sizes: tuple[int | str, ...] = (0, 2, 3, 1024, 1025, "999999999999999999999", "x", "1e3", "-1", "007")
    lies = [m for i, n in enumerate(sizes) for m in member(f"lies-{i}", TENANT, "lies", n)]
    alone = [m for i, n in enumerate(sizes) for m in member(f"alone-{i}", TENANT, f"alone-{i}", n)]
    await world.submit(*lies, *alone)


@attack
async def gang_that_flickers(world: AttackedCluster) -> None:
    """Add and remove members, so that the group is complete and incomplete many times a second."""
    members = _gang("flickers", 9, RACK)
    await world.submit(*members)
    pods = [m for m in members if m["kind"] == "Pod"]
    async for i in world.ticks(30):
        pod = pods[i // 2 % len(pods)]
        if i % 2:
            await world.api.create(pod)
        else:
            await world.api.delete("Pod", pod["metadata"]["name"], TENANT)


@attack
async def gang_that_relabels(world: AttackedCluster) -> None:
    """Move members from one group to another by their labels, with other sizes each time."""
    members = _gang("moves", 12)
    await world.submit(*members)
    pods = [path_of(m) for m in members if m["kind"] == "Pod"]
    async for i in world.ticks(40):
        labels = {GROUP_LABEL: f"moves-{i % 3}", GROUP_SIZE_LABEL: str(2 + i % 7)}
        await world.api.patch(pods[i % len(pods)], {"metadata": {"labels": labels}})


@attack
async def gang_of_a_thousand(world: AttackedCluster) -> None:
    """Ask for 1,024 members, one of which wants more than there is, so that all wait."""
    members = [m for i in range(1023) for m in member(f"big-{i}", TENANT, "big", 1024)]
    await world.submit(*members, *member("big-last", TENANT, "big", 1024, spec=objects.devices(9)))


@attack
async def many_gangs(world: AttackedCluster) -> None:
    """Let 30 groups of 9 wait for one host each, so that every freed device has all of them looked at."""
    await world.submit(*(m for k in range(30) for m in _gang(f"many-{k}", 9, _HOST)))


@attack
async def gang_of_strange_domains(world: AttackedCluster) -> None:
    """Name domains that no node has, that every node has alone, and that are no labels."""
    domains = ("none.example.com/zone", "x" * 300, "ü/ü", "topology.kubernetes.io/zone", "/", _HOST)
    await world.submit(
        *(
            m
            for i, d in enumerate(domains)
            for k in range(2)
            for m in member(f"d{i}-{k}", TENANT, f"d{i}", 2, d)
        )
    )


@attack
async def gang_with_the_largest_parameters(world: AttackedCluster) -> None:
    """Give each of 80 pods that start together a claim whose allocation repeats 320 KiB of parameters."""
    parameters = {"apiVersion": "attack/v1", "kind": "Attack", "text": "x" * 10_000}
    config = [{"opaque": {"driver": objects.DRIVER, "parameters": parameters}}] * 32
    await world.submit(*_gang("large", 80, spec=objects.requests(objects.exactly(), config=config)))
