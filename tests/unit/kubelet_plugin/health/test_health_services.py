"""The health of devices as kubelets of every version ask for it: v1 from 1.37 on, v1alpha1 before."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest
from fake_client import FakeClient
from node_agent import NODE, Backend, Node, device, eventually, running

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.hardware import DiscoveredDevice
from dra_driver.sim.kubelet.plugins import choose_service
from dra_driver.wire import health_v1_pb2, health_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc
from kubelet_plugin.core.notices import DRIVER_HANGING
from kubelet_plugin.grpc.services import SUPPORTED_VERSIONS


class Service(NamedTuple):
    """One version of the service: its messages and its stub."""

    messages: ModuleType
    stubs: ModuleType

    def watch(self, channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall[Any, Any]:
        stream: grpc.aio.UnaryStreamCall[Any, Any] = self.stubs.DRAResourceHealthStub(
            channel
        ).NodeWatchResources(self.messages.NodeWatchResourcesRequest())
        return stream


V1 = Service(health_v1_pb2, health_v1_pb2_grpc)
V1ALPHA1 = Service(health_v1alpha1_pb2, health_v1alpha1_pb2_grpc)
both = pytest.mark.parametrize("service", [V1, V1ALPHA1], ids=["v1", "v1alpha1"])


def ill(index: int, *reasons: tuple[str, str]) -> DiscoveredDevice:
    found = device(index)
    health = tuple(DeviceHealth(reason=r, severity=s, message="a reason") for r, s in reasons)
    return dataclasses.replace(found, device=msgspec.structs.replace(found.device, health=health))


async def read(stream: grpc.aio.UnaryStreamCall[Any, Any]) -> Any:
    async with asyncio.timeout(60):
        return await stream.read()


def live(node: Node) -> bool:
    return node.plugin._state.live


@both
def test_each_version_has_every_field(tmp_path: Path, service: Service) -> None:
    backend = Backend([device(0), ill(1, ("Xid79", "failed")), ill(2, (DRIVER_HANGING, "degraded"))])

    async def main() -> Sequence[Any]:
        async with running(tmp_path, FakeClient(), backend=backend) as node, node.channel() as channel:
            stream = service.watch(channel)
            answer = await read(stream)
            assert isinstance(answer, service.messages.NodeWatchResourcesResponse)
            node.stop.set()
            # The agent ends the stream, the kubelet need not.
            while isinstance(await read(stream), service.messages.NodeWatchResourcesResponse):
                pass
            devices: Sequence[Any] = answer.devices
            return devices

    devices = asyncio.run(main())
    assert [(d.device.pool_name, d.device.device_name, d.health, d.message) for d in devices] == [
        (NODE, "gpu-0", service.messages.HEALTHY, ""),
        (NODE, "gpu-1", service.messages.UNHEALTHY, "Xid79: a reason"),
        (NODE, "gpu-2", service.messages.UNKNOWN, f"{DRIVER_HANGING}: a reason"),
    ]
    assert all(d.last_updated_time > 1_600_000_000 for d in devices)
    (timeout,) = {d.health_check_timeout_seconds for d in devices}
    assert timeout > 3600  # from one look to the next


def test_two_kubelets_of_different_versions_get_the_same(tmp_path: Path) -> None:
    """As during an upgrade of the node: the new kubelet is there before the old one's stream has ended."""

    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0), device(1)]) as node, node.channel() as channel:
            answers = [await read(s.watch(channel)) for s in (V1, V1ALPHA1)]
            assert answers[0].SerializeToString() == answers[1].SerializeToString() != b""

    asyncio.run(main())


@both
def test_a_stream_of_each_version_says_that_the_kubelet_is_there(tmp_path: Path, service: Service) -> None:
    async def main() -> None:
        async with running(tmp_path, FakeClient(), [device(0)]) as node:
            await node.register()
            async with node.channel() as channel:
                stream = service.watch(channel)
                await read(stream)
                assert live(node)
                stream.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stream.read()
                await eventually(lambda: not live(node))

    asyncio.run(main())


def test_every_advertised_service_is_served(tmp_path: Path) -> None:
    """A kubelet calls what the registration lists: an unknown service would cost it the health of all."""

    async def main() -> None:
        async with running(tmp_path, FakeClient(), [device(0)]) as node, node.channel() as channel:
            info = await node.register()
            assert tuple(info.supported_versions) == SUPPORTED_VERSIONS
            offered = [v for v in info.supported_versions if v.endswith(".DRAResourceHealth")]
            assert offered == ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
            for service in offered:
                method = f"/{service}/NodeWatchResources"
                stream = channel.unary_stream(method, lambda message: message, lambda answer: answer)
                assert await read(stream(b"")) != b""

    asyncio.run(main())


def test_a_kubelet_before_1_37_calls_what_it_called_before() -> None:
    assert choose_service("gpu", "/x", SUPPORTED_VERSIONS) == "v1.DRAPlugin"
    older = tuple(v for v in SUPPORTED_VERSIONS if v != "v1.DRAResourceHealth")
    assert older == ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
