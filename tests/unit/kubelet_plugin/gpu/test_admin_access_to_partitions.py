"""Admin access to a partition: it attaches to one that is there, and never makes, keeps or destroys one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import IMPATIENT, add_claim, claim, eventually, running
from test_sharing_end_to_end import GPU, Machine, container

from kubelet_plugin.claims.leftovers import Leftovers

PARTITION = f"{GPU}-mig-3g-20gb-4"


class SharedPartition:
    """A tenant's claim of a partition, and a claim with admin access to the same one."""

    def __init__(self) -> None:
        self.kube, self.machine = FakeClient(), Machine()
        self.tenant = add_claim(self.kube, claim("tenant", PARTITION))
        self.admin = add_claim(self.kube, claim("admin", PARTITION, adminAccess=True))

    def instances(self) -> list[str]:
        return [i.uuid for i in self.machine.made.instances(self.machine.uuid(GPU))]


async def errors(node: Any, *claims: dict[str, Any]) -> list[str]:
    answers = await prepare(node, *claims)
    return [answers[c["metadata"]["uid"]].error for c in claims]


async def unprepared(node: Any, body: dict[str, Any]) -> None:
    assert not (await unprepare(node, body))[body["metadata"]["uid"]].error


def test_it_attaches_to_the_partition_of_a_tenant_and_leaves_it_there(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert await errors(node, world.tenant) == [""]
            assert await errors(node, world.admin) == [""]
            (instance,) = world.instances()
            got = container(node, world.admin)
            assert got["env"]["DRA_ADMIN__GPU__0_UUID"] == instance
            assert got["nodes"] == container(node, world.tenant)["nodes"]
            await unprepared(node, world.admin)
            assert world.instances() == [instance]

    asyncio.run(main())


def test_where_there_is_no_partition_it_says_so_and_makes_none(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        async with running(tmp_path, world.kube, backend=world.machine, timing=IMPATIENT) as node:
            (error,) = await errors(node, world.admin)
            assert f"device {PARTITION}: there is no such partition of {GPU} now" in error
            assert "held by another claim" not in error
            assert world.instances() == []
            assert not node.plugin._preparer.claims
            # The GPU is not even put into the mode in which it can be cut.
            assert not world.machine.made.partitioning(world.machine.uuid(GPU))
            assert await errors(node, world.tenant) == [""]

    asyncio.run(main())


def test_it_waits_for_a_tenant_that_is_being_prepared(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            async with asyncio.TaskGroup() as tasks:
                admin = tasks.create_task(errors(node, world.admin))
                await asyncio.sleep(0.1)
                tasks.create_task(errors(node, world.tenant))
            assert admin.result() == [""]
            (instance,) = world.instances()
            assert container(node, world.admin)["env"]["DRA_ADMIN__GPU__0_UUID"] == instance

    asyncio.run(main())


def test_a_tenant_takes_its_partition_away_and_the_document_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        uid = world.admin["metadata"]["uid"]

        def documented() -> bool:
            # Not a file that is just being written.
            return any(name.endswith(f"{uid}.json") for name in node.specs())

        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert await errors(node, world.tenant, world.admin) == ["", ""]
            await unprepared(node, world.tenant)
            assert world.instances() == []
            # A container that is started anew must not get the nodes of whatever comes next.
            await eventually(lambda: not documented())
            assert await errors(node, world.tenant) == [""]
            await eventually(documented)
            assert [container(node, world.admin)["env"]["DRA_ADMIN__GPU__0_UUID"]] == world.instances()
            await unprepared(node, world.tenant)
            await unprepared(node, world.admin)
            assert node.specs() == []

    asyncio.run(main())


def test_a_restart_of_the_agent_makes_no_partition_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert await errors(node, world.tenant, world.admin) == ["", ""]
        gpu = world.machine.uuid(GPU)
        # A reset of the GPU: the tenant's comes back with it, whatever the order of the records.
        world.machine.made.destroy_instance(gpu, world.machine.made.instances(gpu)[0].instance_id)
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert len(world.instances()) == 1
            await unprepared(node, world.tenant)
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert world.instances() == []
            assert node.specs() == []

    asyncio.run(main())


def test_a_reboot_leaves_the_partition_to_its_tenant(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        boot = tmp_path / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        settings = {"procfs_root": tmp_path / "proc"}
        boot.write_text("one")
        async with running(tmp_path, world.kube, backend=world.machine, settings=settings) as node:
            assert await errors(node, world.tenant, world.admin) == ["", ""]
        boot.write_text("two")
        gpu = world.machine.uuid(GPU)
        for instance in world.machine.made.instances(gpu):  # none outlives a boot
            world.machine.made.destroy_instance(gpu, instance.instance_id)
        more: dict[str, Any] = {"backend": world.machine, "settings": settings}
        async with running(tmp_path, world.kube, timing=IMPATIENT, **more) as node:
            (error,) = await errors(node, world.admin)
            assert "there is no such partition" in error
        async with running(tmp_path, world.kube, **more) as node:
            assert await errors(node, world.tenant) == [""]
            assert await errors(node, world.admin) == [""]
            assert len(world.instances()) == 1

    asyncio.run(main())


def test_a_claim_may_hold_a_partition_and_look_at_it(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        both = claim("both", PARTITION, PARTITION)
        results = both["status"]["allocation"]["devices"]["results"]
        # What looks on comes first in the allocation.
        results[0] |= {"request": "watch", "adminAccess": True}
        add_claim(world.kube, both)
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            assert await errors(node, both) == [""]
            (instance,) = world.instances()
            env = container(node, both)["env"]
            assert {env["DRA_BOTH__GPU__0_UUID"], env["DRA_BOTH__WATCH__0_UUID"]} == {instance}
            await unprepared(node, both)
            assert world.instances() == []

    asyncio.run(main())


def test_it_makes_no_partition_this_drivers(tmp_path: Path) -> None:
    async def main() -> None:
        world = SharedPartition()
        async with running(tmp_path, world.kube, backend=world.machine) as node:
            gpu = world.machine.uuid(GPU)
            world.machine.made.set_partitioning(gpu, True)
            partition = next(
                d.partition for d in node.plugin._table.for_prepare.values() if d.name == PARTITION
            )
            assert partition is not None
            world.machine.made.create_instance(gpu, partition.profile_id, partition.start, partition.size)
            assert await errors(node, world.admin) == [""]
            leftovers = Leftovers(
                preparer=node.plugin._preparer,
                hardware=node.plugin._setup.hardware,
                table=node.plugin._table,
            )
            await leftovers.look()
            await leftovers.look()
            assert leftovers.unmanaged == 1
            await unprepared(node, world.admin)
            assert len(world.instances()) == 1

    asyncio.run(main())
