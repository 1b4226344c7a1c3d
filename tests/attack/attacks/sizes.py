"""Objects as large as the API takes them, which nothing has to be done about."""

from __future__ import annotations

import signal
from typing import Any

import attack_objects as objects
from attack_api import Manifest
from attack_objects import claim, pod
from attack_world import TENANT, AttackedCluster, attack

_PODS = 60
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _filled(kind: int, i: int) -> Manifest:
    """Return a pod without any claim that has a megabyte of one field."""
    made = pod(f"big-{i}", TENANT)
    spec: dict[str, Any] = made["spec"]
    del spec["resourceClaims"]
    # Held by nobody that is there: what removes a gate has the embedded API server work for seconds.
    spec["schedulingGates"] = [{"name": "example.com/held"}]
    match kind:
        case 0:
            spec["tolerations"] = [{"operator": "Exists", "key": f"example.com/{k}"} for k in range(20_000)]
        case 1:
            values = [f"v{k}" for k in range(110_000)]
            term = {"matchExpressions": [{"key": "example.com/k", "operator": "In", "values": values}]}
            spec["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}
        case _:
            selector = {"matchLabels": {"example.com/app": "a"}}
            near = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
            spec["affinity"] = {"podAntiAffinity": {_REQUIRED: [near] * 10_400}}
    return made


async def _create_pods(world: AttackedCluster) -> None:
    """Create the pods one after the other: the embedded API server needs a while for each."""
    for i in range(_PODS):
        await world.create([_filled(i % 3, i)])


@attack
async def big_pods(world: AttackedCluster) -> None:
    """Create gated pods of a megabyte each without any claim, of fields that say where a pod can go."""
    await _create_pods(world)
    world.strike()


@attack
async def big_pods_at_a_start(world: AttackedCluster) -> None:
    """Create gated pods of a megabyte each without any claim, and have the next leader read them all."""
    world.measure_from_strike = True
    await _create_pods(world)
    leader = await world.controllers.leader()
    pid = leader.pid
    leader.signal(signal.SIGKILL)
    await world.controllers.leader(after=pid)
    world.strike()


@attack
async def big_claims(world: AttackedCluster) -> None:
    """Create claims and templates of a megabyte of selectors and parameters each, which no pod uses."""
    selector = {"cel": {"expression": f"true || {' ' * 10_000} false"}}
    spec = objects.requests(*({**objects.exactly(), "selectors": [selector] * 32} for _ in range(3)))
    made: list[Manifest] = []
    for i in range(_PODS // 2):
        made.append(claim(f"big-{i}", TENANT, spec))
        template = claim(f"big-{i}", TENANT, spec)
        inner = template.pop("spec")
        made.append({**template, "kind": "ResourceClaimTemplate", "spec": {"spec": inner}})
    await world.create(made)
    world.strike()
