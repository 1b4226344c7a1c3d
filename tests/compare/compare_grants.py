"""Pods without claims beside grants, on thousands of nodes whose GPUs are cut into partitions.

Played with ``--only grants`` alone, and with the controller only: kube-scheduler alone would look at the
partitions of every node for every pod. A stream of pods without claims is bound, first with nothing beside;
then while devices are granted to pods with extended resources; then the same beside a pod
without a gate that fits nowhere, for which kube-scheduler tries every node again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any

import builders
from compare_plane import SCHEDULER
from compare_report import Figure
from compare_stage import Measured, Scenario, Stage
from controller_watch import Follower

from dra_driver.api.core import PODS
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import DEVICE_CLASSES
from dra_driver.errors import Forbidden

__all__ = ["GRANTS"]

RESOURCE, CLASS = "compared.example/partition", "compared-partition"
MORE_THAN_A_GPU_HAS = 8
# Fewer where there is less time.
NODES = int(os.environ.get("GRANT_NODES") or 5000)
PHASE_SECONDS, EVERY_SECONDS, GRANT_EVERY_SECONDS = 90.0, 0.5, 2.0
FIRST_SECONDS, BOUND_SECONDS = 240.0, 300.0


def _ordinary(stage: Stage, name: str) -> dict[str, Any]:
    body = stage.body(name)
    body["spec"] = {"containers": [{"name": "main", "image": "none"}]}
    return body


def _asking(stage: Stage, name: str, partitions: int = 1) -> dict[str, Any]:
    """Return a pod that asks for partitions as an extended resource."""
    body = stage.body(name)
    amount = {RESOURCE: str(partitions)}
    resources = {"limits": amount, "requests": amount}
    body["spec"] = {"containers": [{"name": "main", "image": "none", "resources": resources}]}
    # As the policy does, which the API server may not know yet.
    body["spec"]["schedulingGates"] = [{"name": ALLOCATION_GATE}]
    return body


async def _stream(stage: Stage, f: Follower, phase: str, *, grants: bool = False) -> dict[str, float]:
    """Make pods for a while, wait until they are bound, and return how long those without claims took."""
    loop = asyncio.get_running_loop()
    began, ordinary, granted = loop.time(), list[str](), list[str]()
    busy = stage.plane.cpu_seconds(SCHEDULER)
    stage.report(f"{phase}: begins")
    while (now := loop.time() - began) < PHASE_SECONDS:
        ordinary.append(f"{phase}-{len(ordinary):04}")
        await f.create(_ordinary(stage, ordinary[-1]))
        if grants and now >= len(granted) * GRANT_EVERY_SECONDS:
            granted.append(f"{phase}-granted-{len(granted):03}")
            await f.create(_asking(stage, granted[-1]))
        await asyncio.sleep(max(0.0, len(ordinary) * EVERY_SECONDS - (loop.time() - began)))
    took = loop.time() - began
    busy = stage.plane.cpu_seconds(SCHEDULER) - busy
    stage.report(f"{phase}: waits for {len(ordinary)} pods and {len(granted)} with grants")
    await f.until("bound", ordinary, BOUND_SECONDS)
    found = {f"{phase}-{name}": value for name, value in _spread(f, ordinary).items()} | {
        f"{phase}-cpu": busy / took
    }
    if granted:
        with contextlib.suppress(AssertionError):  # the number of those that were tells
            await f.until("bound", granted, BOUND_SECONDS)
        bound = [name for name in granted if f.pods[name].bound is not None]
        found |= {f"{phase}-served-{name}": value for name, value in _spread(f, bound).items()}
        found |= {f"{phase}-served": float(len(bound)), f"{phase}-asked": float(len(granted))}
        handed = [f.pods[name] for name in bound]
        found[f"{phase}-handed"] = max(
            (t.bound - t.ungated for t in handed if t.bound and t.ungated), default=0
        )
    stage.report(", ".join(f"{key} {value:.3f}" for key, value in found.items()))
    return found


def _spread(f: Follower, names: Sequence[str]) -> dict[str, float]:
    """Return median, 99th percentile and largest time from creation to binding."""
    times = sorted(t.bound - t.created for name in names if (t := f.pods[name]).bound is not None)
    if not times:
        return {}
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: times[math.ceil(part * len(times)) - 1] for name, part in at.items()}


async def _grants(stage: Stage) -> Measured:
    expression = (
        f'device.driver == "{DEFAULT_DRIVER_NAME}" && '
        f'device.attributes["{DEFAULT_DRIVER_NAME}"].type == "mig" && '
        f'device.attributes["{DEFAULT_DRIVER_NAME}"].profile == "1g.10gb"'
    )
    await stage.api.create(
        DEVICE_CLASSES, builders.device_class(CLASS, expression, extendedResourceName=RESOURCE)
    )
    values: dict[str, float] = {}
    async with stage.following() as f:
        values |= await _stream(stage, f, "without")
        await f.create(_asking(stage, "first"))
        await f.until("bound", ["first"], FIRST_SECONDS)
        stage.report(f"the first grant took {f.summary('bound')}")
        values |= await _stream(stage, f, "grants", grants=True)
        await f.create(_asking(stage, "nowhere", MORE_THAN_A_GPU_HAS))
        await _take_gate_off(stage, "nowhere")
        values |= await _stream(stage, f, "vain", grants=True)
    return Measured(values)


async def _take_gate_off(stage: Stage, name: str) -> None:
    """Do as an administrator who has deleted the binding of the policy that refuses it to all others."""
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    await stage.api._call("DELETE", f"{bindings}/dra-driver-gated-pods", body={})
    async with asyncio.timeout(FIRST_SECONDS):
        while True:  # the API server goes by the binding for another moment
            try:
                none = {"spec": {"schedulingGates": None}}
                await stage.api.merge_patch(PODS, name, none, stage.namespace)
                return
            except Forbidden:
                await asyncio.sleep(0.2)


def _figures(phase: str, words: str, most: float | None) -> dict[str, Figure]:
    parts = (("p50", "half", None), ("p99", "99 of 100", most), ("max", "all", most))
    return {
        f"{phase}-{key}": Figure(f"pods without claims, {words}: {part} bound within", "s", most=bar)
        for key, part, bar in parts
    } | {f"{phase}-cpu": Figure(f"kube-scheduler, {words}: cores busy", "")}


def _served(phase: str, words: str, most: float | None) -> dict[str, Figure]:
    return {
        f"{phase}-asked": Figure(f"pods with extended resources, {words}", ""),
        f"{phase}-served": Figure("of them bound", ""),
        f"{phase}-served-p50": Figure("the same: half bound within", "s"),
        f"{phase}-served-max": Figure("the same: all bound within", "s"),
        f"{phase}-handed": Figure("the same: bound after their gate was lifted, at most", "s", most=most),
    }


GRANTS = Scenario(
    "grants",
    f"pods without claims beside grants, {NODES} nodes of one GPU cut; played where it is named only",
    NODES,
    {
        **_figures("without", "nothing is granted", None),
        **_figures("grants", "devices are granted", 1.0),
        **_served("grants", "devices are granted", 1.0),
        **_figures("vain", "devices are granted beside a pod that fits nowhere", None),
        **_served("vain", "devices are granted beside a pod that fits nowhere", None),
    },
    _grants,
    1500,
    gpus=1,
    partitions=True,
    alone=False,
    open_pools=True,
)
"""Needs 24 GiB and a quarter of an hour."""
