"""Extended resources that DeviceClasses serve: what a pod requests of them, and the claim for it.

A container may ask for ``vendor.com/gpu: 1`` in ``resources.requests``; a DeviceClass says in
``spec.extendedResourceName`` that its devices serve that name, and serves
``deviceclass.resource.kubernetes.io/<its name>`` in any case. kube-scheduler then writes one claim for the
pod (KEP-5004). Pure functions; they return what kube-scheduler 1.36 writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.core import Container, ContainerExtendedResourceRequest, Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta, OwnerReference, Uid
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION, IMPLICIT_RESOURCE_PREFIX
from dra_driver.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

__all__ = [
    "IN_MEMORY_NAME",
    "Share",
    "classes_by_resource",
    "extended_claim",
    "extended_resources",
    "is_extended_claim",
    "is_extended_resource",
    "lacks_extended_claim",
    "shares",
]

# Name of a claim that is not in the API yet; no real claim can have it.
IN_MEMORY_NAME = "<extended-resources>"


def is_extended_resource(name: str) -> bool:
    """Return whether a DeviceClass can serve a resource of this name: any but Kubernetes' own."""
    if name.startswith(IMPLICIT_RESOURCE_PREFIX):
        return True
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def classes_by_resource(classes: Iterable[DeviceClass]) -> Mapping[str, DeviceClass]:
    """Return resource name → the DeviceClass that serves it.

    If several classes have one name it is the newest, and of equally old ones that whose name sorts first.
    """
    found: dict[str, DeviceClass] = {}
    ordered = sorted(classes, key=lambda c: c.metadata.name, reverse=True)
    for item in sorted(ordered, key=lambda c: c.metadata.creation_timestamp or ""):
        if item.spec.extended_resource_name is not None:
            found[item.spec.extended_resource_name] = item
        found[IMPLICIT_RESOURCE_PREFIX + item.metadata.name] = item
    return found


def extended_resources(pod: Pod) -> frozenset[str]:
    """Return the extended resources that any container of the pod requests with an amount above zero."""
    return frozenset(
        name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name, amount in container.resources.requests.items()
        if amount and is_extended_resource(name)
    )


def lacks_extended_claim(pod: Pod, claim_of: Callable[[ObjectKey], ResourceClaim | None]) -> bool:
    """Return whether kube-scheduler has no claim for the extended resources of a pod, which asks for some.

    kube-scheduler deletes the claim when a binding fails. The status of the pod names it still then, and
    kube-scheduler does not read it.
    """
    known = pod.status.extended_resource_claim_status
    if known is None:
        return True
    return claim_of(ObjectKey(pod.metadata.namespace, known.resource_claim_name)) is None


def is_extended_claim(claim: ResourceClaim, pod_uid: str) -> bool:
    """Return whether a scheduler made this claim for the extended resources of that pod."""
    if (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_ANNOTATION) != "true":
        return False
    return any(o.controller and o.uid == pod_uid for o in claim.metadata.owner_references or ())


@dataclass(frozen=True, slots=True)
class Share:
    """How the containers of a pod share one claim.

    Attributes:
        requests: the claim's requests, sorted by name.
        mappings: which container gets which request, for ``status.extendedResourceClaimStatus``.
    """

    requests: tuple[DeviceRequest, ...]
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def shares(pod: Pod, classes: Mapping[str, DeviceClass]) -> Share:
    """Return one request per container and resource, named ``container-<index>-request-<index>``.

    Containers that run at the same time, sidecars among the init containers included, get devices of their
    own. An init container that ends before they start uses their devices first. What init containers need
    beyond that is requested once, in the largest amount that any of them needs.

    Args:
        pod: the pod; indices count its init containers, then its containers. A resource's index is its place
            among all sorted names that the container requests.
        classes: resource name → DeviceClass, for the names that this node serves through a class.
    """
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for name in sorted(classes):
        more, mapped = _of_one_resource(pod, name, classes[name].metadata.name)
        requests.extend(more)
        mappings.extend(mapped)
    return Share(tuple(sorted(requests, key=lambda r: r.name)), tuple(mappings))


def _of_one_resource(
    pod: Pod, name: str, class_name: str
) -> tuple[list[DeviceRequest], list[ContainerExtendedResourceRequest]]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    passing = [
        i for i, c in enumerate(pod.spec.init_containers) if c.restart_policy != "Always"
    ]  # end before the others start
    staying: list[DeviceRequest | None] = [None] * len(containers)
    mapped: list[ContainerExtendedResourceRequest] = []
    for i, container in enumerate(containers):
        if i not in passing:
            staying[i], maps = _of_container(i, container, name, class_name, ())
            mapped.extend(maps)
    greediest: DeviceRequest | None = None
    own: set[str] = set()
    mapped_passing: list[ContainerExtendedResourceRequest] = []
    for i in passing:
        request, maps = _of_container(i, containers[i], name, class_name, staying[i:])
        mapped_passing.extend(maps)
        if request is not None:
            own.add(request.name)
            if greediest is None or _count(greediest) < _count(request):
                greediest = request
    if greediest is not None:
        mapped_passing = [
            ContainerExtendedResourceRequest(
                container_name=m.container_name, resource_name=name, request_name=greediest.name
            )
            if m.request_name in own
            else m
            for m in mapped_passing
        ]
    return [r for r in (greediest, *staying) if r is not None], mapped + mapped_passing


def _of_container(
    index: int, container: Container, name: str, class_name: str, reusable: Sequence[DeviceRequest | None]
) -> tuple[DeviceRequest | None, list[ContainerExtendedResourceRequest]]:
    amount = container.resources.requests.get(name)
    wanted = (amount.as_int64() if amount is not None else None) or 0
    if not wanted:
        return None, []
    covered = 0
    uses: list[str] = []
    for request in reusable:
        if covered < wanted and request is not None:
            covered += _count(request)
            uses.append(request.name)
    made = None
    if covered < wanted:
        place = sorted(container.resources.requests).index(name)
        exactly = ExactDeviceRequest(
            device_class_name=class_name, allocation_mode="ExactCount", count=wanted - covered
        )
        made = DeviceRequest(name=f"container-{index}-request-{place}", exactly=exactly)
        uses.append(made.name)
    return made, [
        ContainerExtendedResourceRequest(container_name=container.name, resource_name=name, request_name=use)
        for use in uses
    ]


def _count(request: DeviceRequest) -> int:
    return request.exactly.count if request.exactly is not None else 0


def extended_claim(pod: Pod, requests: tuple[DeviceRequest, ...]) -> ResourceClaim:
    """Return the claim for a pod's extended resources. It is not in the API yet and has no real name."""
    owner = OwnerReference(
        api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True
    )
    return ResourceClaim(
        metadata=ObjectMeta(
            name=IN_MEMORY_NAME,
            namespace=pod.metadata.namespace,
            uid=Uid(f"{pod.metadata.uid}{IN_MEMORY_NAME}"),
            annotations={EXTENDED_RESOURCE_ANNOTATION: "true"},
            owner_references=(owner,),
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )
