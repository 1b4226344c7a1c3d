"""How long it takes to count how often request shapes fit on many nodes.

``--partitions`` has every GPU cut into MIG partitions of all kinds, some of which are in use at random. The
first count of a shape looks at all nodes; the second comes after one device more was allocated.
"""

from __future__ import annotations

import argparse
import json
import time
from random import Random

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.cli.described_fleet import FleetObjects, described_fleet
from dra_driver.fleet import count_shapes, parse_shapes
from dra_driver.structured import AllocatedState, Cluster, DeviceID, Snapshot

GPUS = ("1 gpu", "2 gpu same numaNode", "4 gpu same numaNode", "8 gpu same nvlinkGroup")
PARTITIONS = ("mig profile 1g.10gb", "mig profile 3g.40gb", "mig profile 7g.80gb")


def taken(fleet: FleetObjects, random: Random) -> list[tuple[DeviceID, str]]:
    """Devices in use: up to eight of each node, that exclude each other by no memory of a GPU."""
    found: list[tuple[DeviceID, str]] = []
    of_node: dict[str, list[tuple[DeviceID, frozenset[str]]]] = {}
    for slice_ in fleet.slices:
        for device in slice_.spec.devices:
            units = {
                f"{c.counter_set}/{n}" for c in device.consumes_counters for n in c.counters if "memory" in n
            }
            if len(units) <= 2:
                id_ = DeviceID(slice_.spec.driver, slice_.spec.pool.name, device.name)
                of_node.setdefault(slice_.spec.pool.name, []).append((id_, frozenset(units or {device.name})))
    for devices in of_node.values():
        used: set[str] = set()
        for id_, memory in random.sample(devices, random.randrange(min(9, len(devices) + 1))):
            if not memory & used:
                used |= memory
                found.append((id_, "default/other"))
    return found


def measure(snapshot: Snapshot, text: str) -> tuple[dict[str, object], float]:
    """Count one shape."""
    began = time.perf_counter()
    (count,) = count_shapes(snapshot, parse_shapes([text], DEFAULT_DRIVER_NAME))
    return count.data(), round(time.perf_counter() - began, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    fleet = described_fleet(f"dgx-h100:{args.nodes}", ["*"] if args.partitions else [])
    in_use = taken(fleet, Random(args.seed))
    allocated = AllocatedState().with_devices(in_use)
    cluster = Cluster(slices=fleet.slices, classes=fleet.classes, nodes=fleet.nodes, allocated=allocated)
    began = time.perf_counter()
    snapshot = cluster.prepare()
    prepared = round(time.perf_counter() - began, 3)
    shapes = []
    later = snapshot.with_allocated(allocated.with_devices([(in_use[0][0]._replace(device="more"), "d/c")]))
    for text in (*GPUS, *(PARTITIONS if args.partitions else ())):
        found, first = measure(snapshot, text)
        shapes.append({**found, "seconds": first, "seconds_again": measure(later, text)[1]})
    result = {"nodes": args.nodes, "in_use": len(in_use), "prepare_seconds": prepared, "shapes": shapes}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
