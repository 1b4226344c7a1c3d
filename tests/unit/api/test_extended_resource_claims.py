"""Extended resources: which class serves a name, and the claim that kube-scheduler writes for a pod."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver import resourceclaim
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim

GPU = "vendor.com/gpu"


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> Pod:
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": list(containers), "initContainers": list(init)},
    }
    return codec.convert(Pod, raw)


def container(name: str, restart: str | None = None, **requests: str) -> dict[str, Any]:
    names = {"gpu": GPU, "nic": "vendor.com/nic"}
    resources = {"requests": {names.get(k, k): v for k, v in requests.items()}}
    return {"name": name, "resources": resources, **({"restartPolicy": restart} if restart else {})}


def device_class(name: str, resource: str | None = None, day: int = 1) -> DeviceClass:
    metadata = {"name": name, "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}
    spec = {"extendedResourceName": resource} if resource else {}
    return codec.convert(DeviceClass, {"metadata": metadata, "spec": spec})


CLASSES = {GPU: device_class("gpus", GPU), "vendor.com/nic": device_class("nics", "vendor.com/nic")}


def shared(of: Pod) -> tuple[dict[str, int], list[tuple[str, str]]]:
    share = resourceclaim.shares(of, CLASSES)
    requests = {r.name: r.exactly.count for r in share.requests if r.exactly is not None}
    return requests, [(m.container_name, m.request_name) for m in share.mappings]


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        (GPU, True),
        ("deviceclass.resource.kubernetes.io/gpus", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("example.kubernetes.io/x", False),
        ("requests.vendor.com/gpu", False),
    ],
)
def test_names_that_classes_can_stand_for(name: str, extended: bool) -> None:
    assert resourceclaim.is_extended_resource(name) is extended


def test_the_newest_class_serves_a_name_and_every_class_its_own() -> None:
    classes = [
        device_class("b", GPU, day=2),
        device_class("c", GPU, day=2),
        device_class("a", GPU, day=1),
    ]
    found = {name: c.metadata.name for name, c in resourceclaim.classes_by_resource(classes).items()}
    own = {f"deviceclass.resource.kubernetes.io/{name}": name for name in "abc"}
    assert found == {GPU: "b", **own}


def test_only_resources_of_which_a_container_wants_some() -> None:
    asking = pod(container("a", gpu="0", cpu="1"), init=(container("i", nic="1"),))
    assert resourceclaim.extended_resources(asking) == {"vendor.com/nic"}


def test_containers_that_run_together_get_requests_of_their_own() -> None:
    # Its index counts all the names that the container requests, in order.
    requests, mappings = shared(pod(container("a", cpu="1", gpu="2", nic="1"), container("b", gpu="1")))
    assert requests == {"container-0-request-1": 2, "container-0-request-2": 1, "container-1-request-0": 1}
    assert mappings == [
        ("a", "container-0-request-1"),
        ("b", "container-1-request-0"),
        ("a", "container-0-request-2"),
    ]


def test_an_init_container_uses_the_devices_of_those_that_start_later() -> None:
    requests, mappings = shared(pod(container("a", gpu="1"), init=(container("i", gpu="1"),)))
    assert requests == {"container-1-request-0": 1}
    assert mappings == [("a", "container-1-request-0"), ("i", "container-1-request-0")]


def test_what_init_containers_need_beyond_is_asked_for_once() -> None:
    init = (container("i", gpu="2"), container("j", gpu="4"))
    requests, mappings = shared(pod(container("a", gpu="1"), init=init))
    assert requests == {"container-1-request-0": 3, "container-2-request-0": 1}
    assert mappings == [
        ("a", "container-2-request-0"),
        ("i", "container-2-request-0"),
        ("i", "container-1-request-0"),
        ("j", "container-2-request-0"),
        ("j", "container-1-request-0"),
    ]


def test_a_sidecar_keeps_its_devices() -> None:
    init = (container("side", restart="Always", gpu="1"), container("i", gpu="1"))
    requests, mappings = shared(pod(container("a", gpu="1"), init=init))
    assert requests == {"container-0-request-0": 1, "container-2-request-0": 1}
    assert ("i", "container-2-request-0") in mappings


def test_the_claim_belongs_to_the_pod_and_is_known_as_special() -> None:
    of = pod(container("a", gpu="1"))
    claim = resourceclaim.extended_claim(of, resourceclaim.shares(of, CLASSES).requests)
    assert resourceclaim.is_for_pod(of, claim)
    assert resourceclaim.is_extended_claim(claim, "u")
    assert not resourceclaim.is_extended_claim(claim, "another")
    assert not resourceclaim.is_extended_claim(ResourceClaim(), "u")


def test_the_claim_is_among_those_of_the_pod_once_the_status_names_it() -> None:
    raw = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"resourceClaims": [{"name": "own", "resourceClaimName": "c"}]},
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "p-extended-resources-x"}},
    }
    used = list(resourceclaim.pod_claims(codec.convert(Pod, raw)))
    assert [(u.entry, u.key.name if u.key else None) for u in used] == [
        ("own", "c"),
        ("", "p-extended-resources-x"),
    ]
