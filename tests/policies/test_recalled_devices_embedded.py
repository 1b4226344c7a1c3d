"""Devices that are recalled: whose allocations the API server refuses, and what it lets through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml
from policy_cases import CLAIMS, MERGE, NODE, OTHER_NODE, SYSTEM, THEIRS, Write, allocation, result
from policy_world import COLLECTIONS, FENCE, Accounts, create, world

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, RECALLED_DEVICES
from dra_driver.kube import KubeApi
from dra_driver.ownership import MAX_RECALLED, PoolID, Recalls
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.assets import deploy_directory

CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
OURS = DriverName(DEFAULT_DRIVER_NAME)
HERE = PoolID(OURS, PoolName(NODE))


async def install(made: Accounts) -> None:
    """Add the rights, policies and objects of lending."""
    for path in sorted((deploy_directory("optional") / "lending").glob("*.yaml")):
        if path.name == "gating.yaml":
            continue  # about pods, which have no collection here
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            namespace, name = body["metadata"].get("namespace", ""), body["metadata"]["name"]
            known = {"ConfigMap": CONFIG_MAPS, **COLLECTIONS}[body["kind"]]
            collection = known.format(namespace=namespace)
            await create(made.admin, collection, body)
            if body["kind"] != "ServiceAccount":
                path_ = f"{collection}/{name}"
                await made.admin._call("PATCH", path_, body=body, content_type=MERGE)


async def recall(made: Accounts, recalls: Recalls) -> None:
    path = f"{CONFIG_MAPS}/{RECALLED_DEVICES}"
    await made.clients["controller"]._call("PATCH", path, body={"data": recalls.data()}, content_type=MERGE)


def allocate(by: str, *devices: dict[str, Any], claim: str = "free") -> Write:
    status = {"status": {"allocation": allocation(*devices)}}
    return Write("allocates", by, "PATCH", f"{CLAIMS}/{claim}/status", status, "", MERGE)


def run(tmp_path: Path, scenario: Callable[[Accounts], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ApiServer() as started:

            async def connect(token: str) -> KubeApi:
                config = started.kubeconfig()
                config["users"][0]["user"] = {"token": token} if token else {}
                path = tmp_path / f"kubeconfig-{abs(hash(token)):x}"
                path.write_text(yaml.safe_dump(config))
                return await KubeApi.connect(path)

            async with await connect("") as admin, world(connect, admin) as made:
                await install(made)
                await scenario(made)

    asyncio.run(main())


def test_a_recalled_device_is_refused_to_all_but_the_controller(tmp_path: Path) -> None:
    """``admin`` stands for kube-scheduler: an account that may write every claim."""

    async def scenario(made: Accounts) -> None:
        late = allocate("admin", result(OURS, NODE))
        assert await made.send(late) == ""
        recalls = Recalls().recall(HERE, ["gpu-0"])
        assert recalls is not None
        await recall(made, recalls)
        assert await made.send(late) == RECALLED_DEVICES
        assert (
            await made.send(allocate("admin", result(THEIRS, NODE), result(OURS, NODE))) == RECALLED_DEVICES
        )
        for device in (
            result(OURS, NODE, "gpu-1"),
            result(OURS, OTHER_NODE),
            result(THEIRS, NODE),
            {**result(OURS, NODE), "adminAccess": True},
        ):
            assert await made.send(allocate("admin", device)) == "", device
        assert await made.send(allocate("controller", result(OURS, NODE))) == ""
        await recall(made, recalls.admit(HERE, ["gpu-0"]))
        assert await made.send(late) == ""

    run(tmp_path, scenario)


def test_what_is_allocated_already_stays_writable(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        recalls = Recalls().recall(HERE, ["gpu-0"])
        assert recalls is not None
        await recall(made, recalls)
        claim = f"{CLAIMS}/ours/status"
        user = {"resource": "pods", "name": "user", "uid": "u-1"}
        for status in ({"reservedFor": [user]}, {"allocation": None, "devices": None}):
            body = {"status": status}
            assert await made.send(Write("", "admin", "PATCH", claim, body, "", MERGE)) == ""

    run(tmp_path, scenario)


def test_a_full_list_is_looked_through(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        pool = PoolID(OURS, PoolName("n" * 200))
        many_devices = (f"{'g' * 50}-{i}" for i in range(MAX_RECALLED - 1))
        recalls = Recalls(frozenset((pool, name) for name in many_devices)).recall(HERE, ["gpu-7"])
        assert recalls is not None
        await recall(made, recalls)
        many = [result(OURS, NODE, f"gpu-{i}") for i in range(32)]
        assert await made.send(allocate("admin", *many)) == RECALLED_DEVICES
        assert await made.send(allocate("admin", *(m for m in many if m["device"] != "gpu-7"))) == ""

    run(tmp_path, scenario)


def test_without_the_object_and_with_an_empty_one_nobody_is_refused(tmp_path: Path) -> None:
    """It is looked for before it is known what is written: to deny would stop every driver of the cluster."""

    async def scenario(made: Accounts) -> None:
        assert await made.send(allocate("admin", result(OURS, NODE))) == ""
        await made.admin._call("DELETE", f"{CONFIG_MAPS}/{RECALLED_DEVICES}")
        assert await made.send(allocate("admin", result(OURS, NODE))) == ""

    run(tmp_path, scenario)


def test_only_the_leader_writes_what_is_recalled(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        path, body = f"{CONFIG_MAPS}/{RECALLED_DEVICES}", {"data": Recalls().data()}
        verdicts = {
            by: await made.send(Write("", by, "PATCH", path, body, "", MERGE))
            for by in ("controller", "standby")
        }
        assert verdicts == {"controller": "", "standby": f"{FENCE}-lending"}

    run(tmp_path, scenario)
