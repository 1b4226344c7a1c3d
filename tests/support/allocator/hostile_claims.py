"""Claims that are made to be hard, and that the API accepts: for searches, selectors, patterns and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_driver.api.names import (
    DEFAULT_DRIVER_NAME,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_SIZE_LABEL,
)

__all__ = ["attacks"]

Manifest = dict[str, Any]
NUMA = {"matchAttribute": "resource.kubernetes.io/numaNode"}
UUID = f'device.attributes["{DEFAULT_DRIVER_NAME}"].uuid'


def attacks(namespace: str = "default") -> Mapping[str, Sequence[Manifest]]:
    """Pods and their claims, by what is hard about them."""
    return {
        "alternatives": list(_pod("alternatives", namespace, _alternatives(9))),
        "alternatives on one NUMA node": list(
            _pod(
                "one-numa", namespace, _alternatives(7, {"matchAttribute": "resource.kubernetes.io/numaNode"})
            )
        ),
        "replace": list(_pod("replace", namespace, _selected(_replaced()))),
        "large pattern": list(_pod("pattern", namespace, _selected(_pattern()))),
        "nested folds": list(_pod("folds", namespace, _selected(_folds()))),
        "distinct selectors": [
            m
            for i in range(20)
            for m in _pod(f"distinct-{i}", namespace, _selected(f'{_replaced()} && "{i}" != ""'))
        ],
        "group on one host": [m for i in range(9) for m in _member(f"member-{i}", namespace, 9)],
    }


def _pod(name: str, namespace: str, devices: Mapping[str, Any], **metadata: Any) -> Iterator[Manifest]:
    meta = {"name": name, "namespace": namespace, **metadata}
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": devices},
    }
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "busybox", "command": ["sh", "-c", "sleep 3600"]}],
        },
    }


def _member(name: str, namespace: str, size: int) -> Iterator[Manifest]:
    """A member of a group that asks for one GPU more than any node has, on one node."""
    yield from _pod(
        name,
        namespace,
        {"requests": [{"name": "gpu", "exactly": _exactly()}]},
        labels={GROUP_LABEL: "hostile", GROUP_SIZE_LABEL: str(size)},
        annotations={GROUP_DOMAIN_ANNOTATION: "kubernetes.io/hostname"},
    )


def _exactly(*expressions: str) -> dict[str, Any]:
    selectors = [{"cel": {"expression": e}} for e in expressions]
    return {
        "deviceClassName": DEFAULT_DRIVER_NAME,
        "allocationMode": "ExactCount",
        "count": 1,
        **({"selectors": selectors} if selectors else {}),
    }


def _alternatives(requests: int, *constraints: Mapping[str, Any]) -> dict[str, Any]:
    """Requests with eight alternatives each, told apart by characters of the uuid."""
    subs = [{"name": f"s{i}", **_exactly(f'{UUID}.charAt({4 + i}) != "~"')} for i in range(8)]
    wanted = [{"name": f"r{i}", "firstAvailable": subs} for i in range(requests)]
    return {"requests": wanted, **({"constraints": list(constraints)} if constraints else {})}


def _selected(expression: str) -> dict[str, Any]:
    return {"requests": [{"name": "gpu", "exactly": _exactly(expression)}]}


def _replaced() -> str:
    """Text that grows ninefold with every call, as far as the API's estimate of costs lets it."""
    return UUID + '.replace("", "xxxxxxxx")' * 5 + ' == ""'


def _pattern() -> str:
    """A pattern whose program is nearly as large as we allow, on a text of three parts."""
    part = "(x+x+)+[a-z0-9]{1,40}(.?){30}"
    return f'({UUID} + {UUID} + {UUID}).matches("{part * 40}y")'


def _folds() -> str:
    """Five nested loops over lists that the expression brings along: 100,000 rounds."""
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    head = "".join(f"{ten}.all({v}, " for v in "abcde")
    return f"{head}{UUID} == ''{')' * 5}"
