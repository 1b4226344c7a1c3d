"""``dra-driver bench``: one measurement of one part, as data."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName, Uid
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.cli import common
from dra_driver.errors import InvalidInput
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Cluster,
    DeviceID,
    Features,
    Strategy,
    allocate,
)

__all__ = ["add_arguments", "measure_allocator", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    text = "claims per second over an inventory"
    allocator = parts.add_parser(
        "allocator", help=text, description=text, formatter_class=parser.formatter_class
    )
    allocator.add_argument("--inventory", required=True, metavar="FILE", help="JSON: nodes, slices")
    allocator.add_argument(
        "--workload", required=True, metavar="FILE", help="JSON: classes, features, workloads"
    )
    allocator.add_argument("--name", required=True, metavar="W", help="name of one workload of the file")
    allocator.add_argument("--fill", metavar="FILE", help="JSON: devices that are allocated at the start")
    allocator.add_argument(
        "--claims", type=common.whole_number, default=1000, metavar="N", help="claims to allocate"
    )
    allocator.add_argument(
        "--strategy",
        choices=[s.value for s in Strategy],
        default=Strategy.BEST_FIT.value,
        help="how devices are chosen",
    )
    allocator.add_argument(
        "--commit",
        action="store_true",
        help="claims keep their devices until none are left, then all are freed; default: the state does "
        "not change",
    )
    allocator.add_argument(
        "-o", "--output", choices=("json", "yaml"), default="json", help="form of the output"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.claims < 1:
        raise InvalidInput(f"--claims {args.claims}: at least 1 is needed")
    workload = _read(args.workload)
    try:
        claim = workload["workloads"][args.name]["claim"]
    except (KeyError, TypeError) as e:
        known = ", ".join(sorted(workload.get("workloads") or {})) or "none"
        raise InvalidInput(f"{args.workload}: no workload {args.name!r}; there are: {known}") from e
    result = measure_allocator(
        _read(args.inventory),
        workload,
        claim,
        allocated=_read(args.fill) if args.fill else [],
        claims=args.claims,
        strategy=Strategy(args.strategy),
        commit=args.commit,
    )
    common.print_data({"name": args.name, **result}, args.output)
    return 0


def _read(name: str) -> Any:
    try:
        return json.loads(Path(name).read_bytes())
    except OSError as e:
        raise InvalidInput(f"{name}: {e.strerror or e}") from e
    except ValueError as e:
        raise InvalidInput(f"{name}: not JSON: {e}") from e


def measure_allocator(
    inventory: Mapping[str, Any],
    workload: Mapping[str, Any],
    claim: Mapping[str, Any],
    *,
    allocated: list[dict[str, str]],
    claims: int,
    strategy: Strategy = Strategy.BEST_FIT,
    commit: bool = False,
) -> dict[str, Any]:
    """Measure how fast copies of a claim are allocated, one after the other.

    Args:
        inventory: ``nodes`` and ``slices``.
        workload: ``classes`` and ``features``.
        claim: the claim.
        allocated: ``driver``, ``pool`` and ``device`` of allocated devices.
        claims: number of copies.
        strategy: how to choose.
        commit: whether each keeps its devices.

    Returns:
        ``nodes``, ``claims``, ``allocated``, ``load_seconds`` and ``claims_per_second``.
    """
    begin = time.perf_counter()
    cluster = _cluster(inventory, workload, allocated)
    if strategy is Strategy.BEST_FIT:
        cluster.prepare()
    loaded = time.perf_counter() - begin
    copies = [_copy(claim, i) for i in range(claims)]
    begin = time.perf_counter()
    fitted = _allocate(cluster, copies, strategy, commit=commit)
    took = time.perf_counter() - begin
    return {
        "strategy": strategy.value,
        "nodes": len(inventory["nodes"]),
        "claims": claims,
        "allocated": fitted,
        "load_seconds": round(loaded, 3),
        "claims_per_second": round(claims / took, 1),
    }


def _cluster(
    inventory: Mapping[str, Any], workload: Mapping[str, Any], allocated: list[dict[str, str]]
) -> Cluster:
    taken = (
        (DeviceID(DriverName(d["driver"]), PoolName(d["pool"]), d["device"]), "default/holder")
        for d in allocated
    )
    return Cluster(
        slices=[codec.convert(ResourceSlice, s) for s in inventory["slices"]],
        classes=[codec.convert(DeviceClass, c) for c in workload["classes"]],
        nodes=[codec.convert(Node, n) for n in inventory["nodes"]],
        allocated=AllocatedState().with_devices(taken),
        features=Features.from_names(workload.get("features") or {}),
    )


def _allocate(cluster: Cluster, claims: Sequence[ResourceClaim], strategy: Strategy, *, commit: bool) -> int:
    """Allocate the claims; return how many fit. With ``commit`` all are freed when one does not."""
    fitted, held = 0, list[ResourceClaim]()
    for one in claims:
        outcome = allocate(cluster.snapshot, [one], strategy=strategy)
        if isinstance(outcome, Allocated):
            fitted += 1
            if commit:
                cluster.commit([one], outcome)
                held.append(one)
        elif held:
            for other in held:
                cluster.free(other.metadata.uid)
            held.clear()
    return fitted


def _copy(claim: Mapping[str, Any], number: int) -> ResourceClaim:
    name = f"bench-{number}"
    metadata = {"namespace": "default", "name": name, "uid": Uid(name)}
    return codec.convert(ResourceClaim, {"metadata": metadata, "spec": claim["spec"]})
