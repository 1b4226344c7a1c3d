"""A request in flags: ``--gpus 8 --memory 32Gi --model H100 --same nvlinkGroup``."""

from __future__ import annotations

import argparse
import json
import re
from typing import Final

from controller.allocate.plans import ClusterBuilder
from dra_driver import cel
from dra_driver.api import names
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    CapacityRequirements,
    CelSelector,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_driver.errors import InvalidQuantity
from dra_driver.planning import Workload
from dra_driver.structured import GroupMember, levels_of
from dra_driver.suggestions import did_you_mean

__all__ = ["add_request_arguments", "request_given", "workload_of", "wrong_numbers"]

_STANDARD: Final = {"pcieRoot": names.PCIE_ROOT, "numaNode": names.NUMA_NODE, "pciBusID": names.PCI_BUS_ID}
_ATTRIBUTE: Final = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DRIVER: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_FLAGS: Final = ("gpus", "memory", "model", "same", "mig", "device_class", "select", "pods", "domain")
# What the API admits for one claim.
_MOST_DEVICES: Final = 32
_MOST_PODS: Final = 1024


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a request."""
    group = parser.add_argument_group("request in flags, instead of -f")
    group.add_argument("--gpus", metavar="N", help="number of devices for each pod (1 to 32); default: 1")
    group.add_argument("--memory", metavar="AMOUNT", help="minimum memory of each device, for example 32Gi")
    group.add_argument("--model", metavar="TEXT", help="what the model's name contains, for example H100")
    group.add_argument(
        "--same",
        metavar="ATTRIBUTE",
        action="append",
        default=[],
        help="an attribute that all devices of a pod share: nvlinkGroup, numaNode, pcieRoot, model or "
        "any other (repeatable)",
    )
    group.add_argument("--mig", metavar="PROFILE", help="MIG partitions of this profile, for example 3g.40gb")
    group.add_argument(
        "--device-class", metavar="NAME", help="DeviceClass; default: that of the driver's GPUs"
    )
    group.add_argument("--select", metavar="CEL", action="append", default=[], help="a selector (repeatable)")
    group.add_argument("--pods", metavar="N", help="number of pods that must fit together; default: 1")
    group.add_argument(
        "--domain",
        metavar="LEVELS",
        help="what the nodes of all pods share, as in the annotation dra-driver.dev/group-domain: a node "
        "label, or attribute:NAME",
    )
    group.add_argument(
        "--driver-name",
        metavar="NAME",
        default=DEFAULT_DRIVER_NAME,
        help="driver of the devices that the flags request",
    )


def request_given(args: argparse.Namespace) -> list[str]:
    """Return the flags of a request that were given."""
    return [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(args, name) not in (None, [])]


def wrong_numbers(args: argparse.Namespace) -> list[str]:
    """Return what is wrong with numbers, which needs no cluster."""
    findings: list[str] = []
    _number("--gpus", args.gpus, _MOST_DEVICES, findings)
    _number("--pods", args.pods, _MOST_PODS, findings)
    _memory(args.memory, findings)
    return findings


def workload_of(args: argparse.Namespace, builder: ClusterBuilder, findings: list[str]) -> Workload | None:
    """Return the workload that the flags describe; None, with findings, where they are wrong."""
    before = len(findings)
    classes = builder.objects.classes
    driver = args.driver_name
    count = _number("--gpus", args.gpus, _MOST_DEVICES, findings)
    pods = _number("--pods", args.pods, _MOST_PODS, findings)
    capacity = _memory(args.memory, findings)
    name: str = f"mig.{driver}" if args.mig else driver
    if args.device_class is not None:
        name = args.device_class
    if not _DRIVER.fullmatch(driver):
        findings.append(
            f"--driver-name {driver!r}: not a DNS name in lower case, for example {DEFAULT_DRIVER_NAME}"
        )
    if classes and name not in {c.metadata.name for c in classes}:
        flag = "--driver-name" if args.device_class is None else "--device-class"
        known = sorted(c.metadata.name for c in classes)
        findings.append(
            f"{flag}: there is no DeviceClass {name or repr(name)}; there are {', '.join(known) or 'none'}"
            f"{did_you_mean(name, known)}"
        )
    constraints: list[DeviceConstraint] = []
    for attribute in args.same:
        if not _ATTRIBUTE.fullmatch(attribute):
            findings.append(f"--same {attribute!r}: not the name of an attribute, for example nvlinkGroup")
            continue
        full = attribute if "/" in attribute else _STANDARD.get(attribute, f"{driver}/{attribute}")
        constraints.append(DeviceConstraint(match_attribute=full))
    levels = levels_of(args.domain or "")
    if isinstance(levels, str):
        findings.append(f"--domain: {levels}")
        levels = ()
    elif any(level.count for level in levels):
        findings.append("--domain: counts of members for each domain are not planned")
    selectors = _selectors(args, driver, findings)
    if len(findings) > before:
        return None
    request = ExactDeviceRequest(
        device_class_name=name,
        selectors=tuple(DeviceSelector(cel=CelSelector(expression=e)) for e in selectors),
        allocation_mode="ExactCount",
        count=count,
        capacity=capacity,
    )
    devices = DeviceClaim(
        requests=(DeviceRequest(name="gpus", exactly=request),), constraints=tuple(constraints)
    )
    members = tuple(
        GroupMember(
            (
                ResourceClaim(
                    metadata=ObjectMeta(name=f"pod-{i}", namespace="plan"),
                    spec=ResourceClaimSpec(devices=devices),
                ),
            ),
            None,
            builder.vectors.nothing,
        )
        for i in range(pods)
    )
    return Workload("the request", members, levels)


def _number(flag: str, text: str | None, most: int, findings: list[str]) -> int:
    if text is None:
        return 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        findings.append(f"{flag} {text}: expected a number from 1 to {most}")
        return 1
    return int(text)


def _memory(text: str | None, findings: list[str]) -> CapacityRequirements | None:
    if text is None:
        return None
    try:
        amount = Quantity.parse(text)
    except InvalidQuantity as e:
        findings.append(f"--memory: {e}; an amount like 32Gi is expected")
        return None
    if amount.nano <= 0:
        findings.append(f"--memory {text}: more than nothing is expected")
    return CapacityRequirements(requests={"memory": amount})


def _selectors(args: argparse.Namespace, driver: str, findings: list[str]) -> list[str]:
    found: list[str] = []
    attributes = f"device.attributes[{json.dumps(driver)}]"
    if args.model:
        text = json.dumps(args.model.lower())
        found.append(f'{attributes}.?model.orValue("").lowerAscii().contains({text})')
    if args.mig:
        found.append(f'{attributes}.?profile.orValue("") == {json.dumps(args.mig)}')
    for expression in args.select:
        try:
            cel.compile_selector(expression)
        except cel.CelCompileError as e:
            findings.append(f"--select {expression!r}: {e}")
        found.append(expression)
    return found
