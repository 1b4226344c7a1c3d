"""Pods on the stand-in kubelet: the order of calls, the texts of events, what is tried again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from kubelet_fakes import FakePlugin, short_directory

from dra_driver.api.core import EVENTS
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Conflict, NotFound
from dra_driver.kube import KubeApi
from dra_driver.kube.delegating import Call, DelegatingClient
from dra_driver.ports import KubeClient
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.kubelet import KubeletSettings, NodeLayout, SimKubelet
from dra_driver.sim.objects import RUN_PODS
from kubelet_plugin.usage.pod_resources import KubeletList, PodResources

R = TypeVar("R")

DRIVER = "a.example.com"
SETTINGS = dataclasses.replace(
    KubeletSettings.quick(),
    registry_tick=0.02,
    prepare_retry=0.2,
    unprepare_retry=0.1,
    unprepare_retry_later=0.2,
    create_retry=0.2,
    startup_wipe=0.0,
)


@dataclasses.dataclass
class Node:
    api: KubeApi
    kubelet: SimKubelet
    plugin: FakePlugin
    task: asyncio.Task[None]

    def calls(self) -> list[str]:
        return [name for name, _ in self.plugin.calls if name.startswith(("Prepare", "Unprepare"))]

    async def stop_kubelet(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def start_kubelet(self, api: KubeClient | None = None) -> None:
        old = self.kubelet
        self.kubelet = SimKubelet(api or self.api, "n1", old.layout, SETTINGS, runtime=old.runtime)
        self.task = asyncio.create_task(self.kubelet.run())
        await eventually(lambda: self.kubelet.plugins.plugin(DRIVER) is not None)

    async def pod(self, name: str = "p") -> dict[str, Any]:
        pod: dict[str, Any] = json.loads(
            await self.api._call("GET", f"/api/v1/namespaces/default/pods/{name}")
        )
        return pod

    async def phase(self, wanted: str, name: str = "p") -> dict[str, Any]:
        async def reached() -> bool:
            return bool((await self.pod(name))["status"].get("phase") == wanted)

        await eventually(reached)
        return await self.pod(name)

    async def gone(self, name: str = "p") -> bool:
        try:
            await self.pod(name)
        except NotFound:
            return True
        return False

    async def messages(self, reason: str) -> list[str]:
        found = await self.api.list(EVENTS, "default")
        return [e.message for e in found.items if e.reason == reason]

    async def create(self, name: str = "p", claim: str = "c", driver: str = DRIVER, **spec: Any) -> None:
        """A pod bound by hand, and its claim: allocated, reserved."""
        container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "g"}]}}
        body = {
            "metadata": {"name": name},
            "spec": {
                "nodeName": "n1",
                "restartPolicy": "Never",
                "containers": [container],
                "resourceClaims": [{"name": "g", "resourceClaimName": claim}],
                **spec,
            },
        }
        pod = await self.api.create(RUN_PODS, body, "default")
        await self.reserve(claim, name, pod.metadata.uid, driver)

    async def reserve(self, claim: str, pod: str, uid: str, driver: str = DRIVER) -> None:
        try:
            found = await self.api.get(RESOURCE_CLAIMS, claim, "default")
        except NotFound:
            exactly = {"deviceClassName": "x"}
            spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}
            found = await self.api.create(
                RESOURCE_CLAIMS, {"metadata": {"name": claim}, "spec": spec}, "default"
            )
        result = {"request": "g", "driver": driver, "pool": "pool", "device": "dev-0"}
        reserved = [{"resource": r.resource, "name": r.name, "uid": r.uid} for r in found.status.reserved_for]
        reserved.append({"resource": "pods", "name": pod, "uid": uid})
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        await self.api.merge_patch(
            RESOURCE_CLAIMS, claim, {"status": status}, "default", subresource="status"
        )

    def write_spec(self, uid: str) -> None:
        device = {"name": f"c-{uid}", "containerEdits": {"env": [f"GOT={uid}"]}}
        spec = {"cdiVersion": "0.5.0", "kind": "a.example.com/dev", "devices": [device]}
        (self.kubelet.layout.cdi / f"{uid}.json").write_text(json.dumps(spec))

    async def claim_uid(self, claim: str = "c") -> str:
        return (await self.api.get(RESOURCE_CLAIMS, claim, "default")).metadata.uid


async def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def node(**plugin: Any) -> AsyncIterator[Node]:
    with short_directory() as directory:
        async with ApiServer() as server:
            server.write_kubeconfig(directory / "kubeconfig")
            async with await KubeApi.connect(directory / "kubeconfig") as api:
                kubelet = SimKubelet(api, "n1", NodeLayout(directory / "n"), SETTINGS)
                fake = FakePlugin(directory, kubelet.layout.registry, driver=DRIVER, **plugin)
                made = Node(api, kubelet, fake, asyncio.create_task(kubelet.run()))
                await fake.start()
                await eventually(lambda: kubelet.plugins.plugin(DRIVER) is not None)
                try:
                    yield made
                finally:
                    await made.stop_kubelet()
                    await fake.stop()


def test_a_failed_prepare_is_an_event_and_tried_again() -> None:
    async def scenario() -> None:
        async with node(cdi=False, claim_error="no luck") as n:
            await n.create()

            async def said() -> bool:
                return bool(await n.messages("FailedPrepareDynamicResources"))

            await eventually(said)
            (message,) = await n.messages("FailedPrepareDynamicResources")
            assert message == (
                "Failed to prepare dynamic resources: prepare dynamic resources: "
                "NodePrepareResources failed for ResourceClaim c: no luck"
            )
            pod = await n.pod()
            assert pod["status"]["phase"] == "Pending"
            waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
            assert waiting["reason"] == "ContainerCreating"
            n.plugin.claim_error = ""
            await n.phase("Running")

    asyncio.run(scenario())


class Overtaken(DelegatingClient):
    """A client whose first write to a pod another one overtakes."""

    def __init__(self, client: KubeClient, before: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(client)
        self._before: Callable[[], Awaitable[Any]] | None = before

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        if call.verb == "patch" and call.resource is RUN_PODS and self._before is not None:
            before, self._before = self._before, None
            await before()
        return await send()


class OnceInTheWay(DelegatingClient):
    """A client whose first deletion of a pod ends with a conflict."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client)
        self.conflicts = 0

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        if call.verb == "delete" and call.resource is RUN_PODS and not self.conflicts:
            self.conflicts += 1
            raise Conflict("another writer was faster", code=409, reason="Conflict")
        return await send()


def test_a_pod_is_removed_after_a_conflict() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.stop_kubelet()
            await n.create()
            client = OnceInTheWay(n.api)
            await n.start_kubelet(client)
            await n.phase("Running")
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(n.gone)
            assert client.conflicts == 1

    asyncio.run(scenario())


def test_conditions_of_others_stay_as_they_were_written_last() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:

            async def write(status: str) -> None:
                patch = {"status": {"conditions": [{"type": "example.com/Theirs", "status": status}]}}
                await n.api.merge_patch(RUN_PODS, "p", patch, "default", subresource="status")

            await n.stop_kubelet()
            await n.create()
            await write("False")
            await n.start_kubelet(Overtaken(n.api, lambda: write("True")))
            pod = await n.phase("Running")
            theirs = [c["status"] for c in pod["status"]["conditions"] if c["type"] == "example.com/Theirs"]
            assert theirs == ["True"]

    asyncio.run(scenario())


def test_pods_are_listed_with_their_claims() -> None:
    async def scenario() -> None:
        async with node() as n:
            source = PodResources(n.kubelet.layout.pod_resources, DRIVER)

            async def listed() -> KubeletList:
                found = await source.list()
                assert found is not None
                return found

            assert await listed() == KubeletList()
            await n.create()
            await eventually(lambda: any(i.prepared for i in n.kubelet.claims.claims.values()))
            (info,) = n.kubelet.claims.claims.values()
            names = [name for device in info.devices[DRIVER] for name in device.cdi_ids]
            assert names
            assert (await listed()).pods == {name: {("default", "p")} for name in names}
            await n.stop_kubelet()
            assert await source.list() is None
            await n.start_kubelet()
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(n.gone)
            assert await listed() == KubeletList()

    asyncio.run(scenario())


def test_a_call_cut_by_a_deregistration_is_tried_again() -> None:
    async def scenario() -> None:
        async with node(cdi=False, prepare_seconds=0.5) as n:
            await n.create()
            await eventually(lambda: "Prepare v1" in n.calls())
            n.plugin.prepare_seconds = 0.0
            # Another inode is another plugin: the connection is closed under the call, then opened anew.
            hidden = n.plugin.reg_socket.with_name(".hidden")
            n.plugin.reg_socket.rename(hidden)
            await eventually(lambda: n.kubelet.plugins.plugin(DRIVER) is None)
            hidden.rename(n.plugin.reg_socket)
            await n.phase("Running")
            assert n.calls() == ["Prepare v1", "Prepare v1"]

    asyncio.run(scenario())


def test_a_pod_deleted_after_a_failed_prepare_is_unprepared() -> None:
    async def scenario() -> None:
        async with node(cdi=False, claim_error="no luck") as n:
            await n.create()
            await eventually(lambda: "Prepare v1" in n.calls())
            n.plugin.claim_error = ""
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(n.gone)
            assert n.calls()[-1] == "Unprepare v1"
            assert n.kubelet.claims.claims == {}

    asyncio.run(scenario())


def test_a_pod_whose_driver_was_never_there_can_be_deleted() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create(driver="fpga.example.com")

            async def said() -> bool:
                return bool(await n.messages("FailedPrepareDynamicResources"))

            await eventually(said)
            (message,) = await n.messages("FailedPrepareDynamicResources")
            assert message.endswith("DRA driver fpga.example.com is not registered")
            assert n.kubelet.claims.claims == {}
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(n.gone)
            assert n.calls() == []

    asyncio.run(scenario())


def test_a_claim_that_is_not_reserved_is_refused_with_the_kubelets_words() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create()
            await n.phase("Running")
            uid = await n.claim_uid()
            spec = {
                "nodeName": "n1",
                "containers": [{"name": "m", "image": "i"}],
                "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
            }
            other = await n.api.create(RUN_PODS, {"metadata": {"name": "q"}, "spec": spec}, "default")
            expected = (
                "Failed to prepare dynamic resources: prepare dynamic resources: pod q "
                f"({other.metadata.uid}) is not allowed to use ResourceClaim c ({uid})"
            )

            async def said() -> bool:
                return expected in await n.messages("FailedPrepareDynamicResources")

            await eventually(said)

    asyncio.run(scenario())


def test_an_unknown_cdi_device_holds_the_container_until_its_spec_is_there() -> None:
    async def scenario() -> None:
        async with node() as n:
            await n.create()

            async def failed() -> bool:
                statuses = (await n.pod())["status"].get("containerStatuses") or [{"state": {}}]
                reason = statuses[0]["state"].get("waiting", {}).get("reason")
                return bool(reason == "CreateContainerError")

            await eventually(failed)
            uid = await n.claim_uid()
            prepared = n.calls().count("Prepare v1")
            n.write_spec(uid)
            await n.phase("Running")
            assert n.calls().count("Prepare v1") == prepared, "no new prepare for a container"
            pod = await n.pod()
            sandbox = n.kubelet.runtime.sandboxes[pod["metadata"]["uid"]]
            assert sandbox.containers["main"].view.env == {"GOT": uid}

    asyncio.run(scenario())


def test_a_failed_unprepare_holds_the_pod() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create()
            await n.phase("Running")
            n.plugin.claim_error = "stuck"
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(lambda: n.calls().count("Unprepare v1") >= 2)
            assert not await n.gone()
            n.plugin.claim_error = ""
            await eventually(n.gone)

    asyncio.run(scenario())


def test_health_reaches_the_pod_status() -> None:
    async def scenario() -> None:
        async with node() as n:
            await n.create()
            await eventually(lambda: bool(n.kubelet.claims.claims))
            uid = await n.claim_uid()
            n.write_spec(uid)
            await n.phase("Running")

            async def health() -> str:
                status = (await n.pod())["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
                assert status[0]["name"] == "claim:g"
                assert status[0]["resources"][0]["resourceID"] == f"a.example.com/dev=c-{uid}"
                return str(status[0]["resources"][0]["health"])

            assert await health() == "Unknown"
            n.plugin.health.put_nowait(False)

            async def unhealthy() -> bool:
                return await health() == "Unhealthy"

            await eventually(unhealthy)

    asyncio.run(scenario())


def test_a_shared_claim_is_prepared_once_and_unprepared_with_the_last_pod() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create("p")
            await n.phase("Running", "p")
            await n.create("q")
            await n.phase("Running", "q")
            assert n.calls() == ["Prepare v1"]
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(lambda: n.gone("p"))
            assert n.calls() == ["Prepare v1"]
            await n.api.delete(RUN_PODS, "q", "default")
            await eventually(lambda: n.gone("q"))
            assert n.calls() == ["Prepare v1", "Unprepare v1"]

    asyncio.run(scenario())


def test_a_pod_gets_no_claim_that_is_being_unprepared_for_another() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create("p")
            await n.phase("Running", "p")
            n.plugin.unprepare_seconds = 3600.0
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(lambda: "Unprepare v1" in n.calls())
            await n.create("q")

            async def refused() -> bool:
                said = await n.messages("FailedPrepareDynamicResources")
                return any("ResourceClaim c is being unprepared" in text for text in said)

            await eventually(refused)
            assert n.calls() == ["Prepare v1", "Unprepare v1"]
            n.plugin.unprepare_seconds = 0.0
            await n.phase("Running", "q")
            assert n.calls() == ["Prepare v1", "Unprepare v1", "Prepare v1"]

    asyncio.run(scenario())


def test_a_pod_that_never_got_its_claim_takes_it_from_no_other_when_it_ends() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create("p")
            await n.phase("Running", "p")
            n.plugin.reg_socket.rename(n.plugin.reg_socket.with_name(".hidden"))
            await eventually(lambda: n.kubelet.plugins.plugin(DRIVER) is None)
            await n.create("q")

            async def refused() -> bool:
                return bool(await n.messages("FailedPrepareDynamicResources"))

            await eventually(refused)
            await n.api.delete(RUN_PODS, "q", "default")
            await eventually(lambda: n.gone("q"))
            assert n.calls() == ["Prepare v1"]
            assert [key.name for key in n.kubelet.claims.claims] == ["c"]

    asyncio.run(scenario())


def test_a_restarted_kubelet_knows_its_claims_and_leaves_containers_alone() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.create()
            await n.phase("Running")
            await n.stop_kubelet()
            await n.start_kubelet()
            assert [key.name for key in n.kubelet.claims.claims] == ["c"]
            await n.api.delete(RUN_PODS, "p", "default")
            await eventually(n.gone)
            assert n.calls() == ["Prepare v1", "Unprepare v1"]

    asyncio.run(scenario())


def test_a_starting_kubelet_wipes_the_nodes_slices_of_all_drivers() -> None:
    async def scenario() -> None:
        async with node(cdi=False) as n:
            await n.stop_kubelet()
            for name, where in (("mine", "n1"), ("foreign", "n2")):
                spec = {
                    "driver": "other.example.com",
                    "nodeName": where,
                    "pool": {"name": where, "generation": 1, "resourceSliceCount": 1},
                    "devices": [],
                }
                await n.api.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})
            await n.start_kubelet()

            async def wiped() -> bool:
                names = {s.metadata.name for s in (await n.api.list(RESOURCE_SLICES)).items}
                return names == {"foreign"}

            await eventually(wiped)

    asyncio.run(scenario())
