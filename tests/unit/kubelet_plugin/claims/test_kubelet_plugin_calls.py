"""The plugin as the kubelet sees it: real gRPC over Unix sockets, both versions, an API server in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from kubelet_calls import VERSIONS, checkpointed, prepare, unprepare
from node_agent import (
    DRIVER,
    IMPATIENT,
    NODE,
    add_claim,
    claim,
    device,
    eventually,
    inventory,
    next_health,
    running,
)

from dra_driver import cdi
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.wire import (
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from kubelet_plugin.claims.planning import Timing


@pytest.mark.parametrize("version", VERSIONS)
def test_prepare_and_unprepare(tmp_path: Path, version: str) -> None:
    async def main() -> None:
        kube = FakeClient()
        one = add_claim(kube, claim("one", "gpu-0", "gpu-1"))
        uid = one["metadata"]["uid"]
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            answer = (await prepare(node, one, version=version))[uid]
            assert answer.error == ""
            assert [(d.pool_name, d.device_name, list(d.request_names)) for d in answer.devices] == [
                (NODE, "gpu-0", ["gpu"]),
                (NODE, "gpu-1", ["gpu"]),
            ]
            file = node.config.cdi_dir / f"k8s.{DRIVER}-claim_{uid}.json"
            spec = cdi.decode(file.read_bytes())
            assert file.stat().st_mode & 0o777 == 0o644
            assert cdi.validate(spec) == ()
            names = [f"{spec.kind}={d.name}" for d in spec.devices]
            assert [list(d.cdi_device_ids) for d in answer.devices] == [[n] for n in names]
            assert "DRA_ONE__GPU__1_MEMORY=40Gi" in spec.devices[1].container_edits.env
            assert [n.path for n in spec.container_edits.device_nodes] == ["/dev/ctl"]
            assert checkpointed(node)[uid]["state"] == "PrepareCompleted"
            kept = [p for p in node.config.state.glob("checkpoint.json*") if p.is_file()]
            assert kept
            assert {p.stat().st_mode & 0o777 for p in kept} == {0o600}
            assert node.config.state.stat().st_mode & 0o777 == 0o700
            for socket in (node.config.dra_socket, node.config.registrar_socket):
                assert socket.stat().st_mode & 0o777 == 0o600

            # A second call gives the same, and repairs the file.
            content = file.read_bytes()
            file.write_bytes(b"{}")
            assert (await prepare(node, one, version=version))[uid] == answer
            assert file.read_bytes() == content

            kube.down = True
            assert (await unprepare(node, one, version=version))[uid].error == ""
            assert node.specs() == []
            assert checkpointed(node) == {}

    asyncio.run(main())


def test_one_failing_claim_does_not_fail_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        good = add_claim(kube, claim("good", "gpu-0"))
        renewed = add_claim(kube, claim("renewed", "gpu-1"))
        old = {"metadata": {**renewed["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}}
        pending = add_claim(kube, {"metadata": {"name": "pending", "namespace": "ns"}})
        gone = claim("gone", "gpu-1")
        elsewhere = add_claim(kube, claim("elsewhere", "gpu-1", pool="node-b"))
        foreign = add_claim(kube, claim("foreign", "x", driver="other.example.com"))
        evil = claim("evil", uid="../../etc/passwd")
        badname = claim("a/b?c")
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            everything = (good, old, pending, gone, elsewhere, foreign, evil, badname)
            answers = await prepare(node, *everything)
            assert set(answers) == {c["metadata"]["uid"] for c in everything}
            errors = {c["metadata"]["name"]: answers[c["metadata"]["uid"]].error for c in everything}
            assert errors["good"] == ""
            assert "has UID" in errors["renewed"]
            assert "created anew" in errors["renewed"]
            assert errors["pending"] == "the claim is not allocated"
            assert errors["gone"] == "the API server has no such claim"
            assert "is of pool node-b, this node has pool node-a" in errors["elsewhere"]
            assert errors["foreign"] == ""
            assert "claim UID '../../etc/passwd'" in errors["evil"]
            assert "not a name that Kubernetes allows" in errors["a/b?c"]
            assert node.specs() == [f"k8s.{DRIVER}-claim_{good['metadata']['uid']}.json"]
            done = await unprepare(node, *everything)
            assert {a.error for a in done.values()} == {""}
            assert len(done) == len(everything)
            assert node.specs() == []

    asyncio.run(main())


def test_device_held_by_another_claim(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        first = add_claim(kube, claim("first", "gpu-0"))
        second = add_claim(kube, claim("second", "gpu-0"))
        admin = add_claim(kube, claim("admin", "gpu-0", adminAccess=True))
        async with running(tmp_path, kube, [device(0)], timing=IMPATIENT) as node:
            assert not (await prepare(node, first))[first["metadata"]["uid"]].error
            assert not (await prepare(node, admin))[admin["metadata"]["uid"]].error
            error = (await prepare(node, second))[second["metadata"]["uid"]].error
            assert "device gpu-0 is held by another claim (first)" in error

    asyncio.run(main())


def test_a_device_that_is_unprepared_meanwhile_is_waited_for_inside_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        first, second = (add_claim(kube, claim(name, "gpu-0")) for name in ("first", "second"))
        async with running(tmp_path, kube, [device(0)]) as node:
            assert not (await prepare(node, first))[first["metadata"]["uid"]].error
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, second))
                await asyncio.sleep(0.05)
                await unprepare(node, first)
            assert not waiting.result()[second["metadata"]["uid"]].error

    asyncio.run(main())


def test_shares_of_one_device_go_together(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        shares = [
            add_claim(
                kube, claim(f"s{i}", "gpu-0", shareID=f"share-{i}", consumedCapacity={"memory": "10Gi"})
            )
            for i in range(2)
        ]
        whole = add_claim(kube, claim("whole", "gpu-0"))
        async with running(tmp_path, kube, [device(0)], timing=IMPATIENT) as node:
            answers = await prepare(node, *shares)
            got = [answers[s["metadata"]["uid"]].devices[0] for s in shares]
            assert [d.share_id for d in got] == ["share-0", "share-1"]
            assert "is held by another claim" in (await prepare(node, whole))[whole["metadata"]["uid"]].error
            text = (
                node.config.cdi_dir / f"k8s.{DRIVER}-claim_{shares[0]['metadata']['uid']}.json"
            ).read_text()
            assert "DRA_S0__GPU__0_MEMORY=10Gi" in text
            assert "DRA_S0__GPU__0_SHARE=share-0" in text

    asyncio.run(main())


def test_transient_trouble_is_waited_for_inside_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one = add_claim(kube, claim("one", "gpu-0"))
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            kube.down = True
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, one))
                await eventually(lambda: _reads_claims(kube))
                kube.down = False
            assert not waiting.result()[one["metadata"]["uid"]].error

    asyncio.run(main())


def test_trouble_that_does_not_pass_is_reported_within_the_budget(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)], timing=Timing(budget=2.0)) as node:
            await eventually(lambda: inventory(kube))
            kube.down = True
            two = claim("two", "gpu-0")
            error = (await prepare(node, two))[two["metadata"]["uid"]].error
            assert error == "the claim cannot be read, tried for 2 s: the API server is down"

    asyncio.run(main())


def test_same_claim_twice_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one = add_claim(kube, claim("one", "gpu-0"))
        uid = one["metadata"]["uid"]
        async with running(tmp_path, kube, [device(0)]) as node:
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(prepare(node, one)) for _ in range(2)]
            assert both[0].result()[uid] == both[1].result()[uid]
            assert not both[0].result()[uid].error
            # The second is compared with the claim as it is allocated now.
            assert sum(c == ("get", "ResourceClaim", "one", "") for c in kube.calls) == 2

    asyncio.run(main())


def test_parameters_that_are_not_understood_are_refused_not_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = claim("one", "gpu-0")
        body["status"]["allocation"]["devices"]["config"] = [
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}}
        ]
        add_claim(kube, body)
        async with running(tmp_path, kube, [device(0)]) as node:
            error = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert error.startswith("parameters 0 (FromClaim, all requests): apiVersion None")
            assert "gpu.dra-driver.dev knows dra-driver.dev/v1alpha1 GpuConfig" in error

    asyncio.run(main())


def test_registration_raises_the_epoch_and_brings_back_wiped_slices(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            raw = await eventually(lambda: inventory(kube))
            assert raw["metadata"]["ownerReferences"][0]["uid"]
            assert [d["name"] for d in raw["spec"]["devices"]] == ["gpu-0"]
            assert "registration" not in raw.get("status", {})
            info = await node.register()
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(node.config.dra_socket))
            assert list(info.supported_versions) == [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth",
            ]
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 1})
            for name in ("s1", "s2"):
                kube.put(RESOURCE_SLICES, _slice(name))
            kube.edit(*_named(), {"status": {"publication": {"epoch": 1, "slices": ["s1", "s2"]}}})
            await asyncio.sleep(0.3)
            assert _registration(kube) == {"registered": True, "epoch": 1}
            kube.remove(RESOURCE_SLICES, "s2")
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 2})
            # Once: nothing is published for the new epoch yet.
            await asyncio.sleep(0.3)
            assert _registration(kube)["epoch"] == 2
            await node.register()
            await eventually(lambda: _registration(kube)["epoch"] == 3)
        assert _registration(kube) == {"registered": False, "epoch": 3}
        assert list(node.config.registry_dir.iterdir()) == []
        assert not node.config.dra_socket.exists()

        # A new process goes on counting.
        async with running(tmp_path, kube, [device(0)]) as node:
            await node.register()
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 4})

    asyncio.run(main())


def test_slices_that_are_gone_while_the_controller_replaces_them(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            await node.register()
            await eventually(lambda: _registration(kube).get("epoch") == 1)
            kube.put(RESOURCE_SLICES, _slice("old"))
            kube.edit(*_named(), {"status": {"publication": {"epoch": 1, "slices": ["old"]}}})
            kube.remove(RESOURCE_SLICES, "old")
            kube.put(RESOURCE_SLICES, _slice("new"))
            kube.edit(*_named(), {"status": {"publication": {"epoch": 1, "slices": ["new"]}}})
            await asyncio.sleep(0.3)
            assert _registration(kube)["epoch"] == 1

    asyncio.run(main())


def test_inventory_that_is_deleted_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            await node.register()
            await eventually(lambda: _registration(kube).get("epoch") == 1)
            kube.remove(*_named())
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 1})

    asyncio.run(main())


def test_removed_sockets_are_put_back(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            await node.register()
            await eventually(lambda: (inventory(kube) or {}).get("status"))
            node.config.registrar_socket.unlink()
            await eventually(node.config.registrar_socket.is_socket)
            await eventually(lambda: _registration(kube)["registered"] is False)
            await node.register()
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 2})

    asyncio.run(main())


def test_a_call_under_way_outlives_the_removal_of_its_socket(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one = add_claim(kube, claim("one", "gpu-0"))
        async with running(tmp_path, kube, [device(0)], timing=Timing(budget=30.0)) as node:
            await eventually(lambda: inventory(kube))
            kube.down = True
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, one))
                await eventually(lambda: _reads_claims(kube))
                node.config.dra_socket.unlink()
                await eventually(lambda: node.plugin._dra.present)
                kube.down = False
            assert not waiting.result()[one["metadata"]["uid"]].error
            assert node.config.dra_socket.is_socket()
            # On the new socket.
            assert not (await prepare(node, one))[one["metadata"]["uid"]].error

    asyncio.run(main())


def test_a_refused_registration_is_written_down(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            await node.register()
            await eventually(lambda: _registration(kube) == {"registered": True, "epoch": 1})
            async with node.channel(node.config.registrar_socket) as channel:
                refusal = pluginregistration_pb2.RegistrationStatus(plugin_registered=False, error="no")
                await pluginregistration_pb2_grpc.RegistrationStub(channel).NotifyRegistrationStatus(refusal)
            await eventually(lambda: _registration(kube) == {"registered": False, "epoch": 1})

    asyncio.run(main())


def test_no_slices_are_asked_for_while_the_kubelet_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            await node.register()
            async with node.channel() as channel:
                stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
                await stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest()).read()
            await eventually(lambda: _registration(kube).get("epoch") == 1)
            kube.edit(*_named(), {"status": {"publication": {"epoch": 1, "slices": ["wiped"]}}})
            await asyncio.sleep(0.4)
            assert _registration(kube)["epoch"] == 1
            # The kubelet is back, and the slices still are not.
            async with node.channel() as channel:
                stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
                stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
                await stream.read()
                await eventually(lambda: _registration(kube)["epoch"] == 2)
                stream.cancel()

    asyncio.run(main())


def test_health_stream_sends_the_complete_list(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0), device(1)]) as node, node.channel() as channel:
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            message = await next_health(stream)
            assert message is not None
            assert [(d.device.pool_name, d.device.device_name, d.health) for d in message.devices] == [
                (NODE, "gpu-0", health_v1alpha1_pb2.HEALTHY),
                (NODE, "gpu-1", health_v1alpha1_pb2.HEALTHY),
            ]
            node.stop.set()
            while await next_health(stream) is not None:
                pass

    asyncio.run(main())


def test_shutdown_waits_for_calls_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one = add_claim(kube, claim("one", "gpu-0"))
        async with running(tmp_path, kube, [device(0)]) as node:
            await eventually(lambda: inventory(kube))
            kube.down = True
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, one))
                await eventually(lambda: _reads_claims(kube))
                node.stop.set()
                await asyncio.sleep(0.2)
                assert not waiting.done()
                # Without the registrar the kubelet would close the connection of the call.
                assert node.config.registrar_socket.is_socket()
                assert node.config.dra_socket.is_socket()
                kube.down = False
            assert not waiting.result()[one["metadata"]["uid"]].error
            await eventually(lambda: not node.config.registrar_socket.exists())
            await eventually(lambda: not node.config.dra_socket.exists())

    asyncio.run(main())


def _reads_claims(kube: FakeClient) -> bool:
    """Whether a call of the kubelet has got as far as to ask for its claim."""
    return any((call.verb, call.kind) == ("get", "ResourceClaim") for call in kube.calls)


def _named() -> tuple[Any, str]:
    from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name

    return DEVICE_INVENTORIES, inventory_name(NODE, DRIVER)


def _registration(kube: FakeClient) -> dict[str, Any]:
    registration: dict[str, Any] = (inventory(kube) or {}).get("status", {}).get("registration", {})
    return {name: value for name, value in registration.items() if name != "goneClaimsEpoch"}


def _slice(name: str) -> dict[str, Any]:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool}}
