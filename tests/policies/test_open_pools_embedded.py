"""The policy of open pools as the chart installs it: whom it refuses what, and who writes its object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from manifest_files import documents
from policy_cases import MERGE, NODE, THEIRS, Write, allocation, result
from policy_world import COLLECTIONS, Accounts, create, world

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, SYSTEM_NAMESPACE, TRIAL_CLAIM
from dra_driver.kube import KubeApi
from dra_driver.ownership import Grants, PoolAllocator, PoolID
from dra_driver.resourceclaim import trial_status
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.assets import deploy_directory

OURS = DriverName(DEFAULT_DRIVER_NAME)
HERE = PoolID(OURS, PoolName(NODE))
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
FENCE = "dra-driver-leader-only"


async def install(made: Accounts) -> None:
    """Add the objects of open pools, of which the world has the policy."""
    for body in documents(deploy_directory("manifests") / "60-grants.yaml"):
        known = {"ConfigMap": CONFIG_MAPS, "ResourceClaim": CLAIMS, **COLLECTIONS}[body["kind"]]
        await create(made.admin, known.format(namespace=body["metadata"].get("namespace", "")), body)


def allocate(by: str, *devices: dict[str, str], claim: str = "free") -> Write:
    status = {"status": {"allocation": allocation(*devices)}}
    path = f"{CLAIMS.format(namespace='tenant')}/{claim}/status"
    return Write("allocates", by, "PATCH", path, status, "", MERGE)


def patch(by: str, grants: Grants) -> Write:
    return Write("grants", by, "PATCH", f"{CONFIG_MAPS}/{GRANTS}", {"data": grants.data()}, "", MERGE)


async def write(made: Accounts, grants: Grants) -> None:
    """Have the controller write the object; ``send`` stores nothing."""
    path, body = f"{CONFIG_MAPS}/{GRANTS}", {"data": grants.data()}
    await made.clients["controller"]._call("PATCH", path, body=body, content_type=MERGE)


def trial(by: str) -> Write:
    path = f"{CLAIMS.format(namespace=SYSTEM_NAMESPACE)}/{TRIAL_CLAIM}/status"
    return Write("tries", by, "PATCH", path, {"status": trial_status(OURS)}, "", MERGE)


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


def test_once_the_leader_has_written_the_object_the_devices_are_the_controllers(tmp_path: Path) -> None:
    """``admin`` stands for kube-scheduler: an account that may write every claim."""

    async def scenario(made: Accounts) -> None:
        theirs = allocate("admin", result(OURS, NODE))
        assert await made.send(theirs) == ""  # the object of the installation says nothing yet
        await write(made, Grants(turn=1))
        assert await made.send(theirs) == GRANTS
        assert await made.send(allocate("admin", result(THEIRS, NODE))) == ""
        assert await made.send(allocate("controller", result(OURS, NODE))) == ""
        await write(made, Grants(exceptions=frozenset({HERE})))
        assert await made.send(theirs) == ""

    run(tmp_path, scenario)


@pytest.mark.parametrize("default", list(PoolAllocator))
def test_the_trial_is_refused_whoever_allocates_by_default(tmp_path: Path, default: PoolAllocator) -> None:
    """By the controller itself: all that it sends in these tests is a dry run."""

    async def scenario(made: Accounts) -> None:
        assert await made.send(trial("controller")) == ""
        pool = PoolID(OURS, PoolName("trial.dra-driver.dev"))
        await write(made, Grants(default=default, kept=frozenset({(pool, "trial")})))
        for by in ("controller", "admin"):
            assert await made.send(trial(by)) == GRANTS

    run(tmp_path, scenario)


def test_only_the_leader_writes_what_is_granted(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        verdicts = {by: await made.send(patch(by, Grants(turn=7))) for by in ("controller", "standby")}
        assert verdicts == {"controller": "", "standby": f"{FENCE}-grants"}

    run(tmp_path, scenario)
