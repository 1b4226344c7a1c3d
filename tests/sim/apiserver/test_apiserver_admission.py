"""The scheduling gate: the one admission policy that the embedded API server stands in for."""

from __future__ import annotations

from typing import Any

from apiserver_client import MERGE, Client, pod, run
from manifest_files import documents

from dra_driver.sim.assets import deploy_directory

PATH = "/api/v1/namespaces/gated/pods"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
GATE = [{"name": "dra-driver.dev/allocation"}]
USES_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}


async def install(client: Client, label: str = "controller") -> None:
    everywhere = deploy_directory("manifests") / "gate-policy" / "gating.yaml"
    labelled = deploy_directory("optional") / "labelled-namespaces.yaml"
    await client.server.install(documents(everywhere, labelled))
    labels = {"dra-driver.dev/allocator": label}
    await client.create("/api/v1/namespaces", {"metadata": {"name": "gated", "labels": labels}})


def gates(raw: dict[str, Any]) -> object:
    return raw["spec"].get("schedulingGates")


def test_pods_with_claims_are_gated_and_say_so() -> None:
    async def scenario(client: Client) -> None:
        await install(client)
        made = await client.create(PATH, pod("p", **USES_CLAIM))
        assert gates(made) == GATE
        condition = made["status"]["conditions"][0]
        assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")
        # Whoever asks for the gate already does not get it twice.
        assert gates(await client.create(PATH, pod("q", schedulingGates=GATE, **USES_CLAIM))) == GATE
        code, ungated = await client.patch(f"{PATH}/p", {"spec": {"schedulingGates": None}}, MERGE)
        assert (code, gates(ungated)) == (200, None)

    run(scenario)


def test_pods_that_are_none_of_its_business_are_not_gated() -> None:
    async def scenario(client: Client) -> None:
        await install(client)
        assert gates(await client.create(PATH, pod("no-claims"))) is None
        assert gates(await client.create(PATH, pod("bound", nodeName="n1", **USES_CLAIM))) is None
        elsewhere = "/api/v1/namespaces/default/pods"
        assert gates(await client.create(elsewhere, pod("unlabelled", **USES_CLAIM))) is None

    run(scenario)


def test_the_policy_of_open_pools_gates_extended_resources_in_every_namespace() -> None:
    async def scenario(client: Client) -> None:
        await client.server.install(documents(deploy_directory("manifests") / "gate-policy" / "gating.yaml"))
        elsewhere = "/api/v1/namespaces/default/pods"
        container = {"name": "c", "image": "i"}
        for name, wanted in (("example.com/gpu", GATE), ("cpu", None)):
            resources = {"resources": {"requests": {name: "1"}, "limits": {name: "1"}}}
            body = pod(f"wants-{name.partition('/')[0]}", containers=[{**container, **resources}])
            assert gates(await client.create(elsewhere, body)) == wanted
        assert gates(await client.create(elsewhere, pod("claims", **USES_CLAIM))) == GATE
        system = "/api/v1/namespaces/kube-system/pods"
        assert gates(await client.create(system, pod("system", **USES_CLAIM))) is None

    run(scenario)


def test_server_side_apply_and_dry_run_see_the_gate() -> None:
    async def scenario(client: Client) -> None:
        await install(client)
        query = "?fieldManager=t&fieldValidation=Strict"
        code, made = await client.call(
            "PATCH", f"{PATH}/p{query}", pod("p", **USES_CLAIM), "application/apply-patch+yaml"
        )
        assert (code, gates(made)) == (201, GATE)
        code, dry = await client.call("POST", f"{PATH}?dryRun=All", pod("dry", **USES_CLAIM))
        assert (code, gates(dry)) == (201, GATE)
        # Applying the manifest again neither removes the gate nor complains about it.
        await client.patch(f"{PATH}/p", {"spec": {"schedulingGates": None}}, MERGE)
        code, again = await client.call(
            "PATCH", f"{PATH}/p{query}", pod("p", **USES_CLAIM), "application/apply-patch+yaml"
        )
        assert (code, gates(again)) == (200, None)

    run(scenario)


def test_without_policy_or_binding_there_is_no_gate() -> None:
    async def scenario(client: Client) -> None:
        await install(client)
        await client.delete(f"{POLICIES}/mutatingadmissionpolicybindings/dra-driver-allocation-gate")
        assert gates(await client.create(PATH, pod("p", **USES_CLAIM))) is None

    run(scenario)


def test_without_the_label_there_is_no_gate() -> None:
    async def scenario(client: Client) -> None:
        await install(client, "scheduler")
        assert gates(await client.create(PATH, pod("p", **USES_CLAIM))) is None

    run(scenario)
