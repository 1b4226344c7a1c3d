"""Big objects, and objects that many others name, changed as fast as the API server takes it."""

from __future__ import annotations

from collections.abc import Sequence

import attack_objects as objects
from attack_api import Manifest, path_of
from attack_objects import claim, one, pod, selected
from attack_world import TENANT, AttackedCluster, attack

from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL

# The embedded API server needs time by the square of more. What a pod of thousands costs the controller is
# counted by tests (test_shared_claims_churn.py).
_MANY_CLAIMS = 300
_MANY_USERS = 1_000
# The API server takes objects of 1.5 MiB, and 256 KiB of annotations.
_BIG = 1_400_000
# Changes a second: the embedded API server is the slower the larger an object is, and others need it as well.
_FAST, _LARGE = 60.0, 6.0


async def _relabel(
    world: AttackedCluster, per_second: float, *paths: str, key: str = "example.com/n"
) -> None:
    """Change a label of each object in turn."""
    async for number in world.ticks(per_second):
        await world.api.patch(paths[number % len(paths)], {"metadata": {"labels": {key: f"v{number}"}}})


def _never(name: str) -> Manifest:
    """Return a claim for a device that does not exist."""
    return claim(name, TENANT, selected(f'{objects.UUID} == "none"'))


def _users(number: int, *claims: str, gated: bool = True) -> list[Manifest]:
    made = [pod(f"user-{i}", TENANT, *claims) for i in range(number)]
    for manifest in () if gated else made:
        del manifest["spec"]["schedulingGates"]
    return made


async def _create(world: AttackedCluster, manifests: Sequence[Manifest]) -> None:
    """Create everything before the measurement begins."""
    await world.create(m for m in manifests if m["kind"] != "Pod")
    await world.create(m for m in manifests if m["kind"] == "Pod")


# --- pods that name hundreds of claims -----------------------------------------------------------------


@attack
async def pods_of_hundreds_of_claims(world: AttackedCluster) -> None:
    """Change labels of pods that name 300 claims each, which do not exist."""
    names = [f"none-{i}" for i in range(_MANY_CLAIMS)]
    made = [pod(f"many-{i}", TENANT, *names) for i in range(20)]
    await _create(world, made)
    world.strike()
    await _relabel(world, _LARGE, *map(path_of, made))


@attack
async def pods_of_hundreds_of_templates(world: AttackedCluster) -> None:
    """Change labels of pods with 300 claims from a template, all of which the controller-manager names."""
    made = [pod(f"many-{i}", TENANT) for i in range(20)]
    for manifest in made:
        manifest["spec"]["resourceClaims"] = [
            {"name": f"c{i}", "resourceClaimTemplateName": "t"} for i in range(_MANY_CLAIMS)
        ]
    await _create(world, made)
    statuses = [{"name": f"c{i}", "resourceClaimName": f"made-{i}"} for i in range(_MANY_CLAIMS)]
    for manifest in made:
        await world.api.patch(f"{path_of(manifest)}/status", {"status": {"resourceClaimStatuses": statuses}})
    world.strike()
    await _relabel(world, _LARGE, *map(path_of, made))


@attack
async def claims_of_one_pod_relabelled(world: AttackedCluster) -> None:
    """Change labels of 100 claims that one pod names, none of which fits."""
    claims = [_never(f"one-of-{i}") for i in range(100)]
    await _create(world, [*claims, pod("many", TENANT, *(c["metadata"]["name"] for c in claims))])
    world.strike()
    await _relabel(world, _FAST, *map(path_of, claims))


@attack
async def many_pods_of_many_claims(world: AttackedCluster) -> None:
    """Let 100 pods name the same 30 claims, and change labels of both."""
    claims = [_never(f"shared-{i}") for i in range(30)]
    users = _users(100, *(c["metadata"]["name"] for c in claims))
    await _create(world, [*claims, *users])
    world.strike()
    await _relabel(world, _FAST, *map(path_of, claims + users))


# --- thousands of pods of one claim ---------------------------------------------------------------------


@attack
async def claim_of_thousands_relabelled(world: AttackedCluster) -> None:
    """Change the label of a claim that 1,000 pods name and no node can serve."""
    shared = _never("shared")
    await _create(world, [shared, *_users(_MANY_USERS, "shared")])
    world.strike()
    await _relabel(world, _FAST, path_of(shared))


@attack
async def claim_of_hundreds_changes_its_group(world: AttackedCluster) -> None:
    """Change the label of a claim that puts all of its pods, 250, into another group."""
    shared = _never("shared")
    shared["metadata"]["labels"] = {GROUP_SIZE_LABEL: "250"}
    await _create(world, [shared, *_users(250, "shared")])
    world.strike()
    await _relabel(world, _FAST, path_of(shared), key=GROUP_LABEL)


@attack
async def users_of_one_claim_relabelled(world: AttackedCluster) -> None:
    """Change labels of 1,000 pods without a gate that use one claim."""
    users = _users(_MANY_USERS, "shared", gated=False)
    await _create(world, [_never("shared"), *users])
    world.strike()
    await _relabel(world, _FAST, *map(path_of, users))


@attack
async def claim_of_thousands_comes_and_goes(world: AttackedCluster) -> None:
    """Delete and create a claim that 1,000 pods name."""
    shared = _never("shared")
    await _create(world, [shared, *_users(_MANY_USERS, "shared")])
    world.strike()
    async for _ in world.ticks(5):
        await world.api.free(shared)
        await world.create([shared])


@attack
async def served_claim_of_thousands_relabelled(world: AttackedCluster) -> None:
    """Change the label of a claim that is allocated, and that 1,000 pods name."""
    shared = claim("shared", TENANT, objects.devices())
    await _create(world, [shared, *_users(_MANY_USERS, "shared")])
    world.strike()
    await _relabel(world, _FAST, path_of(shared))


# --- big objects ----------------------------------------------------------------------------------------


@attack
async def big_pods_relabelled(world: AttackedCluster) -> None:
    """Change labels of pods of 1.4 MB, most of it the environment of a container, and of their claims."""
    made: list[Manifest] = []
    for i in range(4):
        claim_, pod_ = one(f"big-{i}", TENANT, selected(f'{objects.UUID} == "none"'))
        pod_["spec"]["containers"][0]["env"] = [{"name": "X", "value": "x" * _BIG}]
        claim_["metadata"]["annotations"] = {"example.com/x": "x" * 250_000}
        made += [claim_, pod_]
    await _create(world, made)
    world.strike()
    await _relabel(world, _LARGE, *map(path_of, made))


@attack
async def big_configuration_relabelled(world: AttackedCluster) -> None:
    """Change labels of claims with the largest opaque parameters, 32 of them each."""
    opaque = {"driver": objects.DRIVER, "parameters": {"kind": "GpuConfig", "text": "x" * 9_000}}
    config = [{"requests": ["r0"], "opaque": opaque} for _ in range(32)]
    spec = objects.requests(objects.exactly(f'{objects.UUID} == "none"'), config=config)
    made = [one(f"configured-{i}", TENANT, spec) for i in range(8)]
    await _create(world, [m for pair in made for m in pair])
    world.strike()
    await _relabel(world, _LARGE, *(path_of(claim_) for claim_, _ in made))


@attack
async def templates_relabelled(world: AttackedCluster) -> None:
    """Change labels of templates of 1.4 MB."""
    made = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"big-{i}", "namespace": TENANT},
            "spec": {
                "metadata": {"annotations": {f"example.com/{i}": "x" * 250_000}},
                "spec": {"devices": objects.devices()},
            },
        }
        for i in range(4)
    ]
    await _create(world, made)
    world.strike()
    await _relabel(world, _LARGE, *map(path_of, made))


@attack
async def big_inventories_rewritten(world: AttackedCluster) -> None:
    """Change labels of inventories of 128 devices with all that a device can have."""
    paths = []
    for n in range(4):
        facts = {f"attribute{i:02}": {"string": "x" * 64} for i in range(28)}
        found = [{"name": f"gpu-{k}", "attributes": facts} for k in range(128)]
        paths.append(await world.node(f"liar-{n}", found))
    world.strike()
    await _relabel(world, 1.0, *paths)
