"""Further backends of the demo: what they find, and a pod for each that asks for one of its devices."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver import discovery
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import ALLOCATOR_LABEL
from dra_driver.api.own.partitions import partition_devices
from dra_driver.errors import DraError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.sim.demo.examples import Example, Expectation

__all__ = ["THIS_COMPUTER", "FurtherBackend", "further_backend", "with_backends"]

# Taint of the node that has what this computer has, which no other example is to use up.
THIS_COMPUTER: Final[Mapping[str, str]] = {"key": "demo.dra-driver.dev/this-computer", "effect": "NoSchedule"}

_NAMESPACE: Final = "dra-examples"
# What distinguishes the devices of a backend from the others of the cluster.
_FACTS: Final = ("vendor", "type", "model")
_LOOK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class FurtherBackend:
    """A backend that is shown beside the examples.

    Attributes:
        spec: ``NAME[=ARG]`` as the node agents get it.
        text: what it finds on a node, for people.
        simulated: whether each node can have such devices; those of this computer are one node's.
        objects: manifests of a class of its devices and a pod that asks for one; none if it finds none.
        pods: those of the manifests that are checked.
        devices: names of what it finds, and of the partitions that can be made of it.
    """

    spec: str
    text: str
    simulated: bool = False
    objects: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Example] = ()
    devices: Set[str] = frozenset()


def further_backend(
    given: str, folder: Path, *, driver: str, node: str, hardware_node: str, number: int
) -> FurtherBackend:
    """Return what a backend of ``--backend NAME[=ARG]`` shows.

    Args:
        given: name and argument.
        folder: for the files of devices that do not exist.
        driver: name of the driver that publishes them.
        node: a simulated node of the cluster.
        hardware_node: the node that has the devices of this computer.
        number: of the backend, which makes names differ.

    Raises:
        ConfigurationError: the name is unknown, or the argument is wrong.
    """
    spec = discovery.demo_spec(given, folder)
    backend = discovery.open_backend(spec, sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name=node)
    found = _look(backend)
    simulated = discovery.is_simulated(backend)
    if isinstance(found, str):
        return FurtherBackend(spec, f"--backend {given}: no devices: {found}", simulated)
    if not found:
        return FurtherBackend(spec, f"--backend {given}: no devices", simulated)
    node = node if simulated else hardware_node
    facts = _facts(found[0])
    models = Counter(_text(d, "model") or _text(d, "productName") or "unknown model" for d in found)
    shown = ", ".join(f"{n} × {model}" for model, n in sorted(models.items()))
    name = f"backend-{re.sub(r'[^a-z0-9]+', '-', backend.name.lower()).strip('-')[:40]}"
    name = name if number == 0 else f"{name}-{number}"
    expect = {"devices": 1, "attributes": facts}
    example = Example(
        ObjectKey(_NAMESPACE, name), Expectation(devices=1, attributes=facts), f"--backend {given}"
    )
    return FurtherBackend(
        spec,
        f"--backend {given}: {len(found)} devices on {node} ({shown}); pod {name} asks for one",
        simulated,
        _manifests(name, driver, facts, json.dumps(expect), None if simulated else node),
        (example,),
        frozenset(d.device.name for d in found)
        | {part.name for d in found for part in partition_devices(d.device)},
    )


def with_backends(
    objects: Sequence[Mapping[str, Any]], backends: Sequence[FurtherBackend]
) -> list[Mapping[str, Any]]:
    """Return the manifests of the examples, and behind them those of further backends.

    Their pods are in the namespace of the driver's own examples, which other examples need not have.
    """
    further = [o for b in backends for o in b.objects]
    there = any(o["kind"] == "Namespace" and o["metadata"]["name"] == _NAMESPACE for o in objects)
    if not further or there:
        return [*objects, *further]
    labels = {ALLOCATOR_LABEL: "controller"}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": _NAMESPACE, "labels": labels},
    }
    return [namespace, *objects, *further]


def _look(backend: Any) -> Sequence[DiscoveredDevice] | str:
    """Return what a backend finds, or why that is not known. It may be anybody's, and hang."""
    result: list[Sequence[DiscoveredDevice] | str] = []

    def look() -> None:
        try:
            result.append(tuple(backend.discover()))
        except DraError as e:
            result.append(str(e))
        except Exception as e:
            result.append(f"{type(e).__name__}: {e}")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_LOOK_SECONDS)
    return result[0] if result else f"it has not answered after {_LOOK_SECONDS:g} s"


def _facts(device: DiscoveredDevice) -> dict[str, str | int | bool]:
    return {name: text for name in _FACTS if (text := _text(device, name))}


def _text(device: DiscoveredDevice, name: str) -> str:
    attribute = device.device.attributes.get(name)
    return (attribute.string_value or "") if attribute is not None else ""


def _manifests(
    name: str, driver: str, facts: Mapping[str, str | int | bool], expect: str, node: str | None
) -> tuple[dict[str, Any], ...]:
    own = " && ".join(
        f"device.attributes[{json.dumps(driver)}].{n} == {json.dumps(v)}" for n, v in facts.items()
    )
    known = " && ".join(f"{json.dumps(n)} in device.attributes[{json.dumps(driver)}]" for n in facts)
    selector = " && ".join(part for part in (f"device.driver == {json.dumps(driver)}", known, own) if part)
    request = {"name": "device", "exactly": {"deviceClassName": name}}
    metadata = {"name": name, "namespace": _NAMESPACE}
    container = {
        "name": "main",
        "image": "busybox:1.37",
        "command": ["sh", "-c", "env | grep ^DRA_ | sort; sleep 3600"],
        "resources": {"claims": [{"name": "device"}]},
    }
    place: dict[str, Any] = {}
    if node is not None:
        place = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{**THIS_COMPUTER, "operator": "Exists"}],
        }
    return (
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": selector}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "annotations": {"demo.dra-driver.dev/expect": expect}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "resourceClaims": [{"name": "device", "resourceClaimTemplateName": name}],
                "containers": [container],
                **place,
            },
        },
    )
