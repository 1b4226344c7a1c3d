"""The allocator over fleets of 8-GPU nodes: claims per second, best fit over all nodes, claims committed.

Claims of some 60 shapes take turns; about half of them are freed again. Baselines are those of the allocator
of kube-scheduler (1.36, in Go, one core of another machine) where it looks at all nodes, as best fit must.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.cli.allocator.stream import Service
from dra_driver.structured import (
    AllocatedState,
    GroupAllocated,
    GroupMember,
    Level,
    Snapshot,
    Strategy,
    allocate_group,
)

Row = dict[str, Any]
GO = "kube-scheduler 1.36, all nodes, measured elsewhere"
DRIVER = "gpu.example.com"
NODES = 5000
# Claims per second at 5,000 nodes: (empty, 95 % full).
BASELINES = {
    "one GPU": (4.8, 17.0),
    "4 of one model": (2.9, 21.0),
    "all 8": (2.5, 2.1),
    "MIG 3g": (0.00036, 0.00034),
}
MODELS = (("H100", "80Gi"), ("A100", "40Gi"), ("L4", "24Gi"))
PROFILES = (
    ("7g", "80Gi", 7, 8, 1),
    ("3g", "40Gi", 3, 4, 2),
    ("2g", "20Gi", 2, 2, 2),
    ("1g", "10Gi", 1, 1, 3),
)


def slice_(node: str, suffix: str, count: int, **spec: Any) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"{node}-{suffix}"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **spec},
    }


def gpu_slices(number: int, node: str) -> Iterator[dict[str, Any]]:
    devices = []
    for k in range(8):
        model, memory = MODELS[number % 3 if number % 4 else k % 3]
        attributes = {
            "model": {"string": model},
            "uuid": {"string": f"GPU-{number}-{k}"},
            "driverVersion": {"version": "570.86.15" if number % 2 else "550.54.14"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{k // 2:02x}"},
            "numaNode": {"int": k // 4},
        }
        devices.append(
            {"name": f"gpu-{k}", "attributes": attributes, "capacity": {"memory": {"value": memory}}}
        )
    yield slice_(node, "gpus", 1, devices=devices)


def mig_slices(_number: int, node: str) -> Iterator[dict[str, Any]]:
    counters = {"sm": {"value": "7"}, "slices": {"value": "8"}}
    devices = [
        {
            "name": f"gpu-{g}-{profile}-{k}",
            "attributes": {"profile": {"string": profile}, "parent": {"int": g}},
            "capacity": {"memory": {"value": memory}},
            "consumesCounters": [
                {
                    "counterSet": f"gpu-{g}",
                    "counters": {"sm": {"value": str(sm)}, "slices": {"value": str(slices)}},
                }
            ],
        }
        for g in range(2)
        for profile, memory, sm, slices, count in PROFILES
        for k in range(count)
    ]
    yield slice_(node, "a", 2, sharedCounters=[{"name": f"gpu-{g}", "counters": counters} for g in range(2)])
    yield slice_(node, "b", 2, devices=devices)


def requests(kind: str) -> list[dict[str, Any]]:
    """The shapes: what one request says."""
    amounts = (8, 16, 20, 24, 32, 36, 40, 48, 64, 80)
    versions = ("", "550.0.0", "560.0.0")
    count = 4 if kind == "4 of one model" else 1
    if kind == "all 8":
        return [{"allocationMode": "All"}]
    if kind == "MIG 3g":
        return [
            {
                "count": 1,
                "selectors": select(
                    f'device.attributes["{DRIVER}"].profile == "3g" && '
                    f'device.attributes["{DRIVER}"].parent >= {-k}'
                ),
            }
            for k in range(30)
        ]
    found = []
    for amount in amounts:
        for version in versions:
            by_version = f'device.attributes["{DRIVER}"].driverVersion.isGreaterThan(semver("{version}"))'
            by_memory = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{amount}Gi")) >= 0'
            more = [by_version] if version else []
            found.append({"count": count, "selectors": select(by_memory, *more)})
            asked = {"requests": {"memory": f"{amount}Gi"}}
            found.append({"count": count, "capacity": asked, "selectors": select(*more)})
    return found


def select(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": e}} for e in expressions]


def claim(number: int, kind: str, request: dict[str, Any]) -> dict[str, Any]:
    devices: dict[str, Any] = {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **request}}]
    }
    if kind == "4 of one model":
        devices["constraints"] = [{"matchAttribute": f"{DRIVER}/model"}]
    return {
        "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"c{number}"},
        "spec": {"devices": devices},
    }


def load(kind: str, nodes: int, *, full: bool) -> bytes:
    names = [f"node-{i:05d}" for i in range(nodes)]
    mig = kind == "MIG 3g"
    taken = [f"gpu-{g}-7g-0" for g in range(2)] if mig else [f"gpu-{k}" for k in range(8)]
    busy = [
        {"driver": DRIVER, "pool": name, "device": device}
        for i, name in enumerate(names)
        if full and i % 20 != 19
        for device in taken
    ]
    make = mig_slices if mig else gpu_slices
    slices = [s for i, name in enumerate(names) for s in make(i, name)]
    classes = [{"metadata": {"name": "gpu"}, "spec": {"selectors": select(f'device.driver == "{DRIVER}"')}}]
    whole = {
        "op": "load",
        "strategy": "best-fit",
        "nodes": [{"metadata": {"name": name}} for name in names],
        "slices": slices,
        "classes": classes,
        "allocated": busy,
    }
    return json.dumps(whole).encode()


def rate(kind: str, nodes: int, *, full: bool, claims: int, free: float = 0.5) -> tuple[float, float]:
    """Claims per second, and the seconds that loading takes."""
    rng = random.Random(1)
    shapes = requests(kind) if free else [{"count": 1}]
    lines: list[bytes] = []
    live: list[str] = []
    for i in range(claims):
        one = claim(i, kind, rng.choice(shapes))
        lines.append(json.dumps({"op": "allocate", "commit": True, "claim": one}).encode())
        live.append(one["metadata"]["uid"])
        if rng.random() < free:
            gone = live.pop(rng.randrange(len(live)))
            lines.append(json.dumps({"op": "free", "uid": gone}).encode())
    service = Service(Strategy.BEST_FIT)
    whole = load(kind, nodes, full=full)
    begin = time.perf_counter()
    assert service.answer(whole) == b'{"ok":true}'
    loaded = time.perf_counter() - begin
    begin = time.perf_counter()
    for line in lines:
        service.answer(line)
    return claims / (time.perf_counter() - begin), loaded


def group(members: int, nodes: int, levels: Sequence[Level] = (), least: int | None = None) -> float:
    """Seconds for a group whose members want 8 GPUs each; racks have 16 nodes."""
    names = [f"node-{i:05d}" for i in range(nodes)]
    selectors = select(f'device.driver == "{DRIVER}"')
    snapshot = Snapshot.build(
        slices=[codec.convert(ResourceSlice, s) for i, n in enumerate(names) for s in gpu_slices(i, n)],
        classes=[codec.convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}})],
        nodes=[
            codec.convert(Node, {"metadata": {"name": n, "labels": {"rack": f"rack-{i // 16:03d}"}}})
            for i, n in enumerate(names)
        ],
        allocated=AllocatedState(),
    )
    asked = {"count": 8, "capacity": {"requests": {"memory": "40Gi"}}}
    claims = [codec.convert(ResourceClaim, claim(i, "one GPU", asked)) for i in range(members)]
    begin = time.perf_counter()
    outcome = allocate_group(snapshot, [GroupMember((c,)) for c in claims], levels=levels, least=least)
    assert isinstance(outcome, GroupAllocated)
    return time.perf_counter() - begin


def run() -> list[Row]:
    """The rows of ``make bench``."""
    rows: list[Row] = []
    loading = 0.0
    for kind, baselines in BASELINES.items():
        freed = 0.9 if kind in ("all 8", "4 of one model") else 0.5
        for full, baseline in zip((False, True), baselines, strict=True):
            value, loaded = rate(kind, NODES, full=full, claims=1500, free=freed)
            loading = max(loading, loaded)
            fill = "95 % full" if full else "empty"
            more = {"baseline": baseline, "baseline_of": GO}
            rows.append(
                {"name": f"{kind}, {NODES} nodes, {fill}", "value": value, "unit": "claims/s", **more}
            )
    flat = {nodes: rate("one GPU", nodes, full=False, claims=1500)[0] for nodes in (100, 1000)}
    rows += [
        {"name": f"one GPU, {nodes} nodes, empty", "value": value, "unit": "claims/s"}
        for nodes, value in flat.items()
    ]
    flat[NODES] = next(r["value"] for r in rows if r["name"].startswith("one GPU"))
    spread = max(flat.values()) / flat[NODES]
    rows.append({"name": f"cost per claim, {NODES} nodes / the cheapest", "value": spread, "unit": "times"})
    filled, _ = rate("one GPU", NODES, full=False, claims=8 * NODES, free=0.0)
    rows.append({"name": f"fill {8 * NODES} GPUs, one claim each", "value": 8 * NODES / filled, "unit": "s"})
    parts = [Level(label="rack", count=4)]
    asked = {
        "a group of 1000": group(1000, NODES),
        "a group of 1000, four in a rack": group(1000, NODES, parts),
        "a group of 8 to 1000 in one rack": group(1000, NODES, [Level(label="rack")], 8),
    }
    rows += [
        {"name": f"{name}, 8 GPUs each, {NODES} nodes", "value": value, "unit": "s"}
        for name, value in asked.items()
    ]
    rows.append({"name": f"load {NODES} nodes from JSON (slowest)", "value": loading, "unit": "s"})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append({"name": "peak memory, inputs and earlier runs included", "value": peak, "unit": "MiB"})
    return rows
