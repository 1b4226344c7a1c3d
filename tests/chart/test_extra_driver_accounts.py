"""What the accounts of further drivers may write, by the rights and policies of the rendered chart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import yaml
from chart_support import Chart, Object, named
from policy_cases import (
    APPLY,
    CLAIMS,
    EVENTS,
    MERGE,
    NODE,
    OTHER_NODE,
    SLICES,
    TENANT,
    Body,
    Write,
    allocation,
    entry,
    event,
    result,
    slice_,
)
from policy_world import Accounts, by_itself, world
from real_apiserver import real_apiserver

from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import ApiServer

NPU, FPGA = "npu.acme.example", "fpga.example.com"
DRIVERS: list[Object] = [
    {"name": "acme", "driverName": NPU, "backends": ["acme"]},
    {"name": "fpga", "driverName": FPGA, "backends": ["fpga"], "privileged": True, "port": 9411},
]
ACCOUNTS = {"npus": "dra-driver-acme-plugin", "fpgas": "dra-driver-fpga-plugin"}
INVENTORIES = "/apis/dra-driver.dev/v1alpha1/deviceinventories"
OWN_INVENTORY, CLAIM_ENTRIES = "dra-driver-own-inventory", "dra-driver-plugin-claims"
DRIVER_OF = {"agent": DEFAULT_DRIVER_NAME, "npus": NPU, "fpgas": FPGA}


def inventory(driver: str, node: str = NODE) -> Body:
    """Return the inventory of a node without devices."""
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DeviceInventory",
        "metadata": {"name": f"{node}.{driver}"},
        "spec": {"nodeName": node, "driver": driver, "devices": []},
    }


def says(by: str, claim: str, driver: str) -> Write:
    """Write the entry of a driver's device in the status of a claim."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim, "namespace": TENANT},
        "status": {"devices": [entry(driver, NODE, "True")]},
    }
    query = {"fieldManager": by, "force": "true"}
    refused = "" if driver == DRIVER_OF[by] else CLAIM_ENTRIES
    return Write(
        f"of {driver}'s device", by, "PATCH", f"{CLAIMS}/{claim}/status", body, refused, APPLY, query
    )


def writes() -> Iterator[Write]:
    for by, own in DRIVER_OF.items():
        for driver in (*DRIVER_OF.values(), RDMA_DRIVER_NAME):
            # The GPUs' account is the NICs' as well: both run this project's image.
            allowed = driver == own or (by, driver) == ("agent", RDMA_DRIVER_NAME)
            refused = "" if allowed else OWN_INVENTORY
            yield Write(f"describes {driver}", by, "POST", INVENTORIES, inventory(driver), refused)
        there = f"{INVENTORIES}/{OTHER_NODE}.{own}"
        yield Write("describes another node", by, "PATCH", there, {"spec": {}}, OWN_INVENTORY, MERGE)
        for driver in DRIVER_OF.values():
            yield says(by, f"of-{driver.partition('.')[0]}", driver)
        yield Write("publishes", by, "POST", SLICES, slice_("new", own), "403")
        component = "dra-driver-kubelet-plugin"
        yield Write("speaks", by, "POST", EVENTS, event("new", component, "Pod", "gated"))
        as_controller = event("new", "dra-driver-controller", "Pod", "gated")
        yield Write("speaks as the controller", by, "POST", EVENTS, as_controller, "dra-driver-events")
        elsewhere = event("new", component, "Node", OTHER_NODE)
        yield Write("speaks of another node", by, "POST", EVENTS, elsewhere, "dra-driver-events")


async def add_claims_and_inventories(made: Accounts) -> None:
    for driver in DRIVER_OF.values():
        name = f"of-{driver.partition('.')[0]}"
        request = {"name": "one", "exactly": {"deviceClassName": "any"}}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": TENANT},
            "spec": {"devices": {"requests": [request]}},
        }
        await made.admin._call("POST", CLAIMS, body=claim)
        status = {"status": {"allocation": allocation(result(driver, NODE, request="one"))}}
        await made.admin._call("PATCH", f"{CLAIMS}/{name}/status", body=status, content_type=MERGE)
        await made.admin._call("POST", INVENTORIES, body=inventory(driver, OTHER_NODE))


async def wrong_verdicts(made: Accounts) -> list[tuple[str, str, str]]:
    """Return the writes whose verdict is not the expected one: what, expected, found."""
    await add_claims_and_inventories(made)
    table = list(writes())
    # The API server learns of policies after a moment.
    async with asyncio.timeout(60):
        for policy in {w.refused for w in table if w.refused.startswith("dra-")}:
            first = next(w for w in table if w.refused == policy)
            while (verdict := await made.send(first)) != policy and not by_itself(verdict):
                await asyncio.sleep(0.1)
    found = [(w, await made.send(w)) for w in table]
    return [
        (f"{w.by} {w.what}", w.refused, verdict)
        for w, verdict in found
        if verdict != w.refused
        and not (w.refused and by_itself(verdict))
        and not (w.refused == "403" and "403" in verdict)
    ]


def judged(
    connect: Callable[[str], Awaitable[KubeApi]], objects: list[Object]
) -> Awaitable[list[tuple[str, str, str]]]:
    async def judge() -> list[tuple[str, str, str]]:
        async with await connect("") as admin, world(connect, admin, objects, ACCOUNTS) as made:
            return await wrong_verdicts(made)

    return judge()


def test_each_account_speaks_for_its_own_driver(chart: Chart, tmp_path: Path) -> None:
    """The embedded API server knows no RBAC, so what RBAC refuses is left to the real one."""

    async def main() -> list[tuple[str, str, str]]:
        async with ApiServer() as server:

            async def connect(token: str) -> KubeApi:
                config = server.kubeconfig()
                config["users"][0]["user"] = {"token": token} if token else {}
                path = tmp_path / f"kubeconfig-{abs(hash(token)):x}"
                path.write_text(yaml.safe_dump(config))
                return await KubeApi.connect(path)

            return await judged(connect, chart.render({"extraDrivers": DRIVERS}))

    assert [v for v in asyncio.run(main()) if v[1] != "403"] == []


@pytest.mark.parametrize(
    "flags", [(), ("--feature-gates=DRAResourceClaimGranularStatusAuthorization=false",)]
)
def test_each_account_speaks_for_its_own_driver_on_a_real_server(
    chart: Chart, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    objects = chart.render({"extraDrivers": DRIVERS})
    with real_apiserver(tmp_path, *flags) as server:

        async def main() -> list[tuple[str, str, str]]:
            async def connect(token: str) -> KubeApi:
                return await server.client(token) if token else await server.client()

            return await judged(connect, objects)

        assert asyncio.run(main()) == []


def test_nothing_of_one_driver_is_in_the_role_of_another(chart: Chart) -> None:
    objects = chart.render({"extraDrivers": DRIVERS})
    for account, driver in (
        ("dra-driver-kubelet-plugin", DEFAULT_DRIVER_NAME),
        ("dra-driver-acme-plugin", NPU),
        ("dra-driver-fpga-plugin", FPGA),
    ):
        roles = {
            o["roleRef"]["name"]
            for o in objects
            if o["kind"] == "ClusterRoleBinding" and account in [s["name"] for s in o["subjects"]]
        }
        assert roles == {account}
        rules = named(objects, "ClusterRole", account)["rules"]
        assert [r["resourceNames"] for r in rules if "resourceNames" in r] == [[driver]]
        spec = named(objects, "DaemonSet", account)["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] == account
        assert named(objects, "ServiceAccount", account)


def test_a_drivers_privileges_on_openshift_are_its_own(chart: Chart) -> None:
    objects = chart.render({"extraDrivers": DRIVERS, "openshift": {"securityContextConstraints": True}})
    may = {
        o["metadata"]["name"]: o["allowPrivilegedContainer"]
        for o in objects
        if o["kind"] == "SecurityContextConstraints"
    }
    assert may == {
        "dra-driver-controller": False,
        "dra-driver-kubelet-plugin": False,
        "dra-driver-acme-plugin": False,
        "dra-driver-fpga-plugin": True,
    }


def test_each_account_may_publish_and_review_where_all_of_them_must(chart: Chart) -> None:
    values = {
        "extraDrivers": DRIVERS,
        "publish": "node",
        "allocator": "scheduler",
        "httpAuthorization": "rbac",
    }
    objects = chart.render(values)
    accounts = {"dra-driver-kubelet-plugin", *ACCOUNTS.values()}
    publishing = named(objects, "ClusterRoleBinding", "dra-driver-publish-node")
    assert {s["name"] for s in publishing["subjects"]} == accounts
    reviewing = {
        s["name"]
        for o in objects
        if o["kind"] == "ClusterRoleBinding" and o["roleRef"]["name"] == "system:auth-delegator"
        for s in o["subjects"]
    }
    assert accounts <= reviewing
    policy = named(objects, "ValidatingAdmissionPolicy", "dra-driver-own-slices")["spec"]
    (by,) = [c["expression"] for c in policy["matchConditions"]]
    (drivers,) = [v["expression"] for v in policy["variables"] if v["name"] == "drivers"]
    for account in ACCOUNTS.values():
        assert f":{account}'" in by
        assert f":{account}' ? [" in drivers
