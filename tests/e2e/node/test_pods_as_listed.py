"""The kubelet's list of pods and their claims, as the node agent reads it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import e2e_support
import grpc.aio
import pytest
from e2e_support import clear, eventually, make_namespace, running
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from dra_driver.api.core import PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.demo import examples
from dra_driver.wire.podresources_v1_pb2 import ListPodResourcesResponse
from kubelet_plugin.usage.pod_resources import PodResources

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-listed"
GPU = {"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME}}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


async def listed(socket: Path) -> ListPodResourcesResponse:
    """The kubelet's answer, of which every field must be one that we know."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List", request_serializer=_as_is, response_deserializer=_as_is
        )
        raw = await call(b"", timeout=10)
    answer = ListPodResourcesResponse.FromString(raw)
    assert list(_unknown(answer)) == []
    return answer


def _as_is(data: bytes) -> bytes:
    return data


def _unknown(message: Message) -> Iterator[str]:
    unknown = UnknownFieldSet(message)
    for i in range(len(unknown)):
        yield f"{message.DESCRIPTOR.full_name} has a field {unknown[i].field_number}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts: Any = value if field.is_repeated else [value]
            for part in parts:
                yield from _unknown(part)


def test_pods_are_listed_with_the_cdi_names_of_their_claims(background: Background, cluster: Cluster) -> None:
    actions = cluster.actions
    if actions is None:
        pytest.skip("needs the socket of a node's kubelet")

    async def scenario() -> None:
        pods = [pod(n, "shared", command="sleep 3600") for n in ("one", "two")]
        await examples.apply(cluster.api, [claim("shared", GPU), *pods])
        found = await running(cluster, NAMESPACE, "one", "two")
        uid = (await cluster.api.get(RESOURCE_CLAIMS, "shared", NAMESPACE)).metadata.uid
        socket = actions.pod_resources(found[0].spec.node_name)

        answer = await listed(socket)
        ours = [p for p in answer.pod_resources if p.namespace == NAMESPACE]
        assert {p.name for p in ours} == {"one", "two"}
        for one in ours:
            (resource,) = one.containers[0].dynamic_resources
            assert (resource.claim_namespace, resource.claim_name) == (NAMESPACE, "shared")
            assert resource.claim_resources
            # One that was prepared for both pods at once is listed twice.
            for device in resource.claim_resources:
                assert device.driver_name == DEFAULT_DRIVER_NAME
                assert uid in device.cdi_devices[0].name

        async def pods_of_claim() -> set[ObjectKey]:
            seen = await PodResources(socket, DEFAULT_DRIVER_NAME).list()
            assert seen is not None
            return {key for name, keys in seen.pods.items() if uid in name for key in keys}

        assert await pods_of_claim() == {ObjectKey(NAMESPACE, "one"), ObjectKey(NAMESPACE, "two")}
        await cluster.api.delete(PODS, "one", NAMESPACE)

        async def one_left() -> bool:
            return await pods_of_claim() == {ObjectKey(NAMESPACE, "two")}

        await eventually("the deleted pod to be listed no more", one_left)

    background.run(scenario())
