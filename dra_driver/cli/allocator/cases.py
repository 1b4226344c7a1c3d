"""The allocator on recorded cases: a JSON file of clusters, pods and allocated devices."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import InvalidInput
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DeviceID,
    DoesNotFit,
    Failed,
    Features,
    Outcome,
    Snapshot,
    Strategy,
    allocate,
)

__all__ = ["run_case", "run_file"]


def run_file(name: str, strategy: Strategy) -> dict[str, Any]:
    """Run every case of a file.

    Raises:
        InvalidInput: the file cannot be read, or a case does not have the form of a case.
    """
    path = Path(name)
    try:
        data = path.read_bytes()
        raw = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as e:
        raise InvalidInput(f"{name}: {e.strerror or e}") from e
    except ValueError as e:
        raise InvalidInput(f"{name}: not JSON: {e}") from e
    cases = raw.get("cases") if isinstance(raw, dict) else None
    if not isinstance(cases, list):
        raise InvalidInput(f'{name}: an object with a list "cases" is expected')
    outcomes = []
    for i, case in enumerate(cases):
        try:
            outcomes.append(run_case(case, strategy))
        except (KeyError, TypeError, AttributeError) as e:
            raise InvalidInput(
                f"{name}: cases[{i}] has not the form of a case: {type(e).__name__}: {e}"
            ) from e
    return {"cases": outcomes}


def run_case(case: Mapping[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Run one case: every pod on every node from the same state, then the pods one after the other."""
    claims = [codec.convert(ResourceClaim, c) for c in case["claims"] or []]
    snapshot = Snapshot.build(
        slices=[codec.convert(ResourceSlice, s) for s in case["slices"] or []],
        classes=[codec.convert(DeviceClass, c) for c in case["classes"] or []],
        nodes=[codec.convert(Node, n) for n in case["nodes"] or []],
        allocated=_state(case),
        # What was recorded is what Kubernetes does.
        features=replace(Features.from_names(case.get("features") or {}), admin_access_in_use=False),
    )
    pods: list[list[ResourceClaim]] = [[claims[i] for i in pod] for pod in case["pods"]]
    per_node = [
        {node: _outcome(allocate(snapshot, pod, strategy=strategy, nodes=[node])) for node in snapshot.nodes}
        for pod in pods
    ]
    return {"name": case["name"], "per_node": per_node, "sequence": _sequence(snapshot, pods, strategy)}


def _state(case: Mapping[str, Any]) -> AllocatedState:
    def ids(name: str) -> list[tuple[DeviceID, str]]:
        return [(_device_id(d), d.get("claim", "")) for d in case.get(name) or []]

    state = AllocatedState().with_devices(
        ids("already_allocated_devices"), ids("allocated_shared_device_ids")
    )
    return state.with_capacity(
        {
            _device_id(entry): {n: Quantity.parse(q) for n, q in entry["capacity"].items()}
            for entry in case.get("allocated_capacity") or []
        }
    )


def _device_id(raw: Mapping[str, str]) -> DeviceID:
    return DeviceID(DriverName(raw["driver"]), PoolName(raw["pool"]), raw["device"])


def _sequence(
    snapshot: Snapshot, pods: Sequence[Sequence[ResourceClaim]], strategy: Strategy
) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for i, pod in enumerate(pods):
        outcome = allocate(snapshot, pod, strategy=strategy)
        step: dict[str, Any] = {"pod": i, "outcome": "unschedulable", "node": None, **_outcome(outcome)}
        if isinstance(outcome, Allocated):
            step |= {"outcome": "allocated", "node": outcome.node}
            made = zip((str(c.key) for c in pod), outcome.results, strict=True)
            snapshot = snapshot.with_allocated(snapshot.allocated.with_allocations(made))
        elif isinstance(outcome, Failed):
            if outcome.only_this_node:
                step["error"] = None
            else:
                step |= {"outcome": "error", "node": outcome.node or next(iter(snapshot.nodes), None)}
        steps.append(step)
    return steps


def _outcome(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Allocated(_, results):
            return {"results": [_result(r) for r in results], "error": None}
        case DoesNotFit():
            return {"results": None, "error": None}
        case Failed(message, only_this_node):
            return {"results": None, "error": message, "errorOnlyThisNode": only_this_node}


def _result(result: AllocationResult) -> dict[str, Any]:
    raw = json.loads(codec.encode(result))
    devices = raw.get("devices", {})
    return {
        "results": devices.get("results", []),
        "config": devices.get("config"),
        "nodeSelector": raw.get("nodeSelector"),
    }
