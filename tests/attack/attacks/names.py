"""Texts of users: names, labels, annotations, quantities."""

from __future__ import annotations

import attack_objects as objects
from attack_api import Manifest
from attack_objects import claim, exactly, member, one, pod, requests
from attack_world import TENANT, AttackedCluster, attack

from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, TOPOLOGY_ANNOTATION

_UNICODE = (
    "ü" * 200,
    "\u202e\u0000x"[:1] * 50,
    "漢字" * 100,
    "\u0301" * 200,
    "💥" * 100,
    "a\nb\tc" * 40,
    "\\\"'" * 60,
)


@attack
async def longest_names(world: AttackedCluster) -> None:
    """Give everything the longest name that it can have, so that every message is as long as it gets."""
    space = "n" * 63
    await world.namespace(space)
    spec = requests(*(exactly(count=9) for _ in range(32)))
    for i, request in enumerate(spec["requests"]):
        request["name"] = f"r{i:02}" + "r" * 60
    made: list[Manifest] = []
    for i in range(20):
        name = f"{i:03}" + "c" * 59 + "." + ("d" * 62 + ".") * 2 + "e" * 62
        made += [claim(name[:253], space, spec), pod(f"{i:03}" + "p" * 250, space, name[:253])]
    await world.submit(*made)


@attack
async def unicode_annotations(world: AttackedCluster) -> None:
    """Write annotations that we read in Unicode, with control characters and without an end."""
    made: list[Manifest] = []
    for i, text in enumerate(_UNICODE):
        for k, key in enumerate((TOPOLOGY_ANNOTATION, GROUP_DOMAIN_ANNOTATION)):
            for j, value in enumerate((text, f"required:{text}", f"preferred:{text},{text}")):
                name = f"text-{i}-{k}-{j}"
                made.append(claim(name, TENANT, objects.devices(), annotations={key: value}))
                made.append(pod(name, TENANT, name, annotations={key: value}))
    await world.submit(*made)


@attack
async def long_topologies(world: AttackedCluster) -> None:
    """Ask for thousands of attributes in common in one annotation."""
    wanted = ",".join(f"required:attribute{i}" for i in range(8_000))
    liked = ",".join(["preferred:numaNode"] * 10_000)
    made: list[Manifest] = []
    for i, value in enumerate((wanted, liked) * 6):
        made.append(
            claim(f"topology-{i}", TENANT, objects.devices(4), annotations={TOPOLOGY_ANNOTATION: value})
        )
        made.append(pod(f"topology-{i}", TENANT, f"topology-{i}"))
    await world.submit(*made)


@attack
async def large_annotations(world: AttackedCluster) -> None:
    """Fill claims and pods up to what an object may have: 256 KiB of annotations each."""
    filling = {f"example.com/a{i}": "x" * 10_000 for i in range(25)}
    made: list[Manifest] = []
    for i in range(60):
        made.append(claim(f"large-{i}", TENANT, objects.devices(9), annotations=filling))
        made.append(pod(f"large-{i}", TENANT, f"large-{i}", annotations=filling))
    await world.submit(*made)


@attack
async def many_labels(world: AttackedCluster) -> None:
    """Give pods thousands of labels, and members of groups labels that differ in everything."""
    labels = {f"example.com/l{i}": f"v{i}" for i in range(3_000)}
    made: list[Manifest] = []
    for i in range(20):
        for manifest in member(f"labelled-{i}", TENANT, f"{'g' * 60}{i}", 2):
            manifest["metadata"]["labels"] = {**labels, **manifest["metadata"].get("labels", {})}
            made.append(manifest)
    await world.submit(*made)


@attack
async def strange_quantities(world: AttackedCluster) -> None:
    """Ask for amounts at the ends of what a quantity can say, and beyond."""
    amounts = (
        *("1e18", "9223372036854775807", "9223372036854775808", "8Ei", "99999999999Ei", "0.0000000001"),
        *("1n", "1e-18", "1e999", "-1", "0", "1" * 400, "0." + "0" * 400 + "1", "1e1000000000", "NaN"),
    )
    made = [
        m
        for i, amount in enumerate(amounts)
        for m in one(
            f"amount-{i}",
            TENANT,
            requests(exactly(capacity={"requests": {"memory": amount, "shares": amount}})),
        )
    ]
    for i, amount in enumerate(amounts):
        claim_, pod_ = one(f"room-{i}", TENANT, objects.devices())
        pod_["spec"]["containers"][0]["resources"] = {"requests": {"cpu": amount, "memory": amount}}
        made += [claim_, pod_]
    await world.submit(*made)


@attack
async def many_gates(world: AttackedCluster) -> None:
    """Gate pods by thousands of gates of others, and take them off one after the other."""
    made: list[Manifest] = []
    for i in range(20):
        claim_, pod_ = one(f"gated-{i}", TENANT, objects.devices())
        pod_["spec"]["schedulingGates"] += [{"name": f"example.com/gate-{k}"} for k in range(1_000)]
        made += [claim_, pod_]
    await world.submit(*made)
    async for k in world.ticks(8):
        gates = [{"name": f"example.com/gate-{j}"} for j in range(k // 20 + 1, 1_000)]
        path = f"/api/v1/namespaces/{TENANT}/pods/gated-{k % 20}"
        await world.api.patch(path, {"spec": {"schedulingGates": gates}})
