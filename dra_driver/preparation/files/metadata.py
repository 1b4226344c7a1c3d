"""Device metadata for containers (KEP-5304): what a workload can read about the devices that it was given.

One file for each request, mounted read-only where the Kubernetes library for Go mounts it too, so that one
reader understands all drivers. The content is made of the claim's record alone, so that it can be
written again at any time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.api import codec
from dra_driver.api.meta import Uid
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import Mount
from dra_driver.preparation.claim import PreparedClaim, PreparedDevice

__all__ = ["CONTAINER_DIRECTORY", "METADATA_FILE", "metadata_files", "metadata_mount", "pod_claim_name"]

CONTAINER_DIRECTORY: Final = "/var/run/kubernetes.io/dra-device-attributes"
METADATA_FILE: Final = "metadata.json"

_KIND: Final = "DeviceMetadata"
# One object after the other in a file, the newest first; a reader takes the first that it knows.
_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def pod_claim_name(annotation: str | None) -> str:
    """Return the pod's name for a claim that was made from a template; empty for any other claim.

    The writer of the claim writes the annotation too, and it becomes part of a path in the container.
    """
    return annotation if annotation and _LABEL.fullmatch(annotation) else ""


def metadata_mount(
    directory: str, driver: str, uid: Uid, claim_name: str, pod_claim: str, request: str
) -> Mount:
    """Return the mount of a request's file.

    Args:
        directory: on the host, where the files of all claims are.
        driver: ours.
        uid: of the claim, checked.
        claim_name: of the claim.
        pod_claim: see ``pod_claim_name``.
        request: without the subrequest, checked.
    """
    place = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim_name}"
    return Mount(
        host_path=f"{directory}/{uid}/{request}/{METADATA_FILE}",
        container_path=f"{CONTAINER_DIRECTORY}/{place}/{request}/{driver}-{METADATA_FILE}",
        options=_OPTIONS,
    )


def metadata_files(driver: str, record: PreparedClaim) -> Mapping[str, bytes]:
    """Return the content of the files of a claim, by request."""
    by_request: dict[str, list[dict[str, Any]]] = {}
    for device in record.devices:
        for request in device.requests:
            by_request.setdefault(request, []).append(_device(driver, device))
    return {request: _document(record, request, devices) for request, devices in by_request.items()}


def _document(record: PreparedClaim, request: str, devices: list[dict[str, Any]]) -> bytes:
    body: dict[str, Any] = {
        "metadata": {
            "name": record.name,
            "namespace": record.namespace,
            "uid": record.uid,
            "generation": 1,
        }
    }
    if record.pod_claim:
        body["podClaimName"] = record.pod_claim
    body["requests"] = [{"name": request, "devices": devices}]
    lines = [codec.encode({"kind": _KIND, "apiVersion": version, **body}) for version in _VERSIONS]
    return b"\n".join(lines) + b"\n"


def _device(driver: str, device: PreparedDevice) -> dict[str, Any]:
    attributes = dict(device.attributes)
    if device.partition is not None:
        # Of the partition, known once it is made; that of the GPU would mislead.
        attributes.pop("uuid", None)
        if device.partition.uuid:
            attributes["uuid"] = DeviceAttribute(string_value=device.partition.uuid)
    found: dict[str, Any] = {"driver": driver, "pool": device.pool, "name": device.device}
    if attributes:
        found["attributes"] = {name: codec.plain(value) for name, value in sorted(attributes.items())}
    return found
