"""Claims that allow more combinations than can be tried, want more than there is, or come in masses."""

from __future__ import annotations

import attack_objects as objects
from attack_api import Manifest
from attack_objects import NUMA, UUID, alternatives, claim, exactly, one, pair, pod, requests
from attack_world import TENANT, AttackedCluster, attack

_ATTRIBUTES = (NUMA, "resource.kubernetes.io/pcieRoot", f"{objects.DRIVER}/uuid", f"{objects.DRIVER}/model")


@attack
async def nothing(world: AttackedCluster) -> None:
    """Attack nothing: what honest pods and the controller need alone."""
    world.strike()


@attack
async def alternatives_alike(world: AttackedCluster) -> None:
    """Ask nine times for one of eight equal alternatives: 8^9 combinations, and no node has nine devices."""
    await world.submit(*one("alike", TENANT, alternatives(9)))


@attack
async def alternatives_by_uuid(world: AttackedCluster) -> None:
    """Tell the alternatives apart by characters of the uuid, so that no two nodes look alike."""
    expressions = [f'{UUID}.charAt({4 + i}) != "~"' for i in range(8)]
    await world.submit(*one("by-uuid", TENANT, alternatives(9, expressions)))


@attack
async def alternatives_on_one_numa_node(world: AttackedCluster) -> None:
    """Ask for seven of eight alternatives on one NUMA node, which has four devices."""
    expressions = [f'{UUID}.charAt({4 + i}) != "~"' for i in range(8)]
    together = [{"matchAttribute": NUMA}]
    await world.submit(*one("one-numa", TENANT, alternatives(7, expressions, together)))


@attack
async def alternatives_that_never_fit(world: AttackedCluster) -> None:
    """Give each of 32 requests seven alternatives that no device has, before one that any device has."""
    never = [f'{UUID} == "no-{i}"' for i in range(7)]
    await world.submit(
        *(m for k in range(4) for m in one(f"never-{k}", TENANT, alternatives(32, [*never, "true"])))
    )


@attack
async def puzzle_of_matches(world: AttackedCluster) -> None:
    """Tie eight requests together in pairs and rings of matchAttribute, of which the last cannot hold."""
    ring = [
        {"requests": [f"r{i}", f"r{(i + 1) % 8}"], "matchAttribute": _ATTRIBUTES[i % 2]} for i in range(8)
    ]
    last = {"requests": ["r0", "r7"], "matchAttribute": f"{objects.DRIVER}/uuid"}
    spec = requests(*(exactly() for _ in range(8)), constraints=[*ring, last])
    await world.submit(*(m for k in range(4) for m in one(f"matches-{k}", TENANT, spec)))


@attack
async def puzzle_of_distincts(world: AttackedCluster) -> None:
    """Ask for eight devices that differ in the NUMA node, of which there are two: a pigeonhole."""
    spec = requests(*(exactly() for _ in range(8)), constraints=[{"distinctAttribute": NUMA}])
    both = requests(
        *(exactly() for _ in range(8)),
        constraints=[
            {"requests": [f"r{i}" for i in range(4)], "matchAttribute": NUMA},
            {"requests": [f"r{i}" for i in range(3, 8)], "matchAttribute": NUMA},
            {"requests": ["r0", "r7"], "distinctAttribute": NUMA},
        ],
    )
    await world.submit(*one("pigeons", TENANT, spec), *one("both", TENANT, both))


@attack
async def huge_counts(world: AttackedCluster) -> None:
    """Ask for numbers of devices up to the largest that the API takes."""
    counts = (9, 32, 33, 1_000_000, 2**31, 2**63 - 1)
    made = [m for n in counts for m in one(f"count-{n}", TENANT, objects.devices(n))]
    many = requests(*(exactly(count=2**62) for _ in range(32)))
    await world.submit(*made, *one("counts", TENANT, many))


@attack
async def all_devices(world: AttackedCluster) -> None:
    """Ask for all devices, again and again in one claim, with selectors that leave one out."""
    left_out = requests(*(exactly(f'{UUID} != "{i}"', allocationMode="All") for i in range(16)))
    made = [m for k in range(10) for m in one(f"all-{k}", TENANT, left_out)]
    await world.submit(*made)


@attack
async def honest_looking(world: AttackedCluster) -> None:
    """Let 20 pods ask for 8 GPUs of distinct uuids and a NIC beside one of them, on six nodes."""
    gpus = [exactly() for _ in range(8)]
    nic = exactly(deviceClassName=objects.NIC_CLASS)
    spec = requests(
        *gpus,
        nic,
        constraints=[
            {"requests": ["r0", "r8"], "matchAttribute": NUMA},
            {"requests": [f"r{i}" for i in range(8)], "distinctAttribute": f"{objects.DRIVER}/uuid"},
        ],
    )
    only = {objects.SIX: "true"}
    await world.submit(*(m for i in range(20) for m in one(f"looks-{i}", TENANT, spec, selector=only)))


@attack
async def admin_access(world: AttackedCluster) -> None:
    """Look at all devices with admin access, from a namespace that may."""
    await world.namespace("tenant-admin", **{"resource.kubernetes.io/admin-access": "true"})
    spec = requests(*(exactly(allocationMode="All", adminAccess=True) for _ in range(4)))
    await world.submit(*(m for i in range(20) for m in one(f"admin-{i}", "tenant-admin", spec)))


@attack
async def many_tolerations(world: AttackedCluster) -> None:
    """Tolerate the same taint in thousands of ways, in claims and in pods."""
    tolerations = [{"key": f"k{i}", "operator": "Exists", "effect": "NoSchedule"} for i in range(16)]
    spec = requests(*(exactly(tolerations=tolerations) for _ in range(32)))
    made: list[Manifest] = []
    for i in range(10):
        claim_, pod_ = one(f"tolerant-{i}", TENANT, spec)
        keys = [{"key": f"k{j}", "operator": "Exists", "effect": "NoSchedule"} for j in range(5000)]
        pod_["spec"]["tolerations"] = keys
        made += [claim_, pod_]
    await world.submit(*made)


@attack
async def long_affinity(world: AttackedCluster) -> None:
    """Give pods node affinity with thousands of requirements, none of which helps to find a node."""
    made: list[Manifest] = []
    for i in range(10):
        claim_, pod_ = one(f"affine-{i}", TENANT, objects.devices())
        values = [f"n{j}" for j in range(300)]
        term = [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values} for _ in range(30)]
        terms = [{"matchExpressions": [*term, {"key": "none", "operator": "Exists"}]} for _ in range(5)]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod_["spec"]["affinity"] = {"nodeAffinity": required}
        made += [claim_, pod_]
    await world.submit(*made)


@attack
async def one_claim_of_many_pods(world: AttackedCluster) -> None:
    """Let 300 pods use one claim that is hard to decide."""
    shared = claim("shared", TENANT, alternatives(9))
    await world.submit(shared, *(pod(f"user-{i}", TENANT, "shared") for i in range(300)))


@attack
async def many_claims_of_one_pod(world: AttackedCluster) -> None:
    """Let a pod use twelve claims of eight alternatives each."""
    expressions = [f'{UUID}.charAt({4 + i}) != "~"' for i in range(8)]
    specs = [alternatives(2, expressions) for _ in range(12)]
    await world.submit(*(m for k in range(3) for m in pair(f"many-{k}", TENANT, *specs)))


@attack
async def long_configuration(world: AttackedCluster) -> None:
    """Bring the largest opaque parameters along, 32 in each claim."""
    opaque = {"driver": objects.DRIVER, "parameters": {"kind": "GpuConfig", "text": "x" * 9_000}}
    spec = requests(exactly(), config=[{"requests": ["r0"], "opaque": opaque} for _ in range(32)])
    await world.submit(*(m for k in range(20) for m in one(f"configured-{k}", TENANT, spec)))


def _hard(number: int) -> Manifest:
    """Return one of a hundred claims that are hard in different ways."""
    expressions = [f'{UUID}.charAt({4 + i}) != "{number}"' for i in range(8)]
    match number % 4:
        case 0:
            return alternatives(9, expressions)
        case 1:
            return alternatives(7 + number % 3, expressions, [{"matchAttribute": NUMA}])
        case 2:
            return requests(
                *(exactly(expressions[i]) for i in range(8)),
                constraints=[{"distinctAttribute": _ATTRIBUTES[number % 2]}],
            )
        case _:
            return objects.selected(f'{UUID}.replace("", "xxxxxxxx").replace("", "xxxxxxxx") == "{number}"')


@attack
async def hard_namespace(world: AttackedCluster) -> None:
    """Write a hundred different hard claims into one namespace."""
    await world.submit(*(m for i in range(100) for m in one(f"hard-{i}", TENANT, _hard(i))))


@attack
async def hard_namespaces(world: AttackedCluster) -> None:
    """Write one hard claim into each of a hundred namespaces."""
    for i in range(100):
        await world.namespace(f"tenant-{i}")
    await world.submit(*(m for i in range(100) for m in one(f"hard-{i}", f"tenant-{i}", _hard(i))))


@attack
async def claims_named_twice(world: AttackedCluster) -> None:
    """Name one claim in two entries of a pod, thirty times: kube-scheduler could never reserve it."""
    alone = [
        m
        for k in range(30)
        for m in (
            claim(f"twice-{k}", TENANT, objects.devices()),
            pod(f"twice-{k}", TENANT, f"twice-{k}", f"twice-{k}"),
        )
    ]
    await world.submit(*alone)
