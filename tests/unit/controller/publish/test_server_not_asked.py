"""An API server that does not say which fields it keeps: shown on inventories, in an Event and in /readyz."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import builders
import virtual_time
from builders import DRIVER
from controller_harness import Clock, classes, inline
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import EVENTS, NODES
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_SLICES, Condition
from dra_driver.errors import Forbidden
from dra_driver.publishing import conditions

NAME = inventory_name("n1", DRIVER)


class RefusingServer(FakeClient):
    """Refuses dry runs of slices for as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = True
        self.tries = 0
        self.before = self._refuse
        classes(self)
        self.put(NODES, builders.node("n1", uid="uid-n1"))
        found = builders.inventory("n1", builders.device("gpu-0", "40Gi"), registered=True, epoch=1)
        self.put(DEVICE_INVENTORIES, found)

    def _refuse(self, verb: str, kind: str, name: str, subresource: str) -> None:
        if self.refuses and (verb, kind) == ("dry-run", "ResourceSlice"):
            self.tries += 1
            raise Forbidden(f'"dra-driver-probe-a{self.tries}" is forbidden: no right', code=403)

    @property
    def published(self) -> Condition | None:
        present = self.obj(DEVICE_INVENTORIES, NAME).status.conditions
        return next((c for c in present if c.type == conditions.PUBLISHED), None)

    def conditions_written(self) -> int:
        return sum(w.kind == "DeviceInventory" for w in self.writes)


def play(cluster: RefusingServer, scenario: Callable[[Controller], object]) -> None:
    async def main() -> None:
        config = ControllerConfig(drivers=(DRIVER,), leader_elect=False)
        controller = Controller(cluster, config, Clock(), answers_of=inline)
        task = asyncio.create_task(controller.run())
        try:
            await asyncio.sleep(120)
            assert not controller.ready.is_set()
            scenario(controller)
            cluster.refuses = False
            await asyncio.sleep(30)
            assert controller.ready.is_set()
        finally:
            task.cancel()
            await asyncio.wait({task})

    virtual_time.run(main())


def test_it_is_shown_once_on_inventories_that_nothing_can_be_published_and_why() -> None:
    cluster = RefusingServer()

    def refused(controller: Controller) -> None:
        found = cluster.published
        assert found is not None
        assert (found.status, found.reason) == ("False", "ServerNotAsked")
        assert found.message == (
            "cannot ask the API server by a dry run which fields of ResourceSlices it keeps, so nothing is "
            'published: "dra-driver-probe" is forbidden: no right'
        )
        # The name that the API server generates for each try is no reason to write again.
        assert cluster.tries > 5
        assert cluster.conditions_written() == 1
        (event,) = [e for e in cluster.all(EVENTS) if e.reason == "ServerNotAsked"]
        assert event.message == found.message
        assert controller._detail().startswith("cannot ask the API server which fields it keeps")
        answered.append(controller)

    answered: list[Controller] = []
    play(cluster, refused)
    assert answered[0]._detail() == ""
    found = cluster.published
    assert found is not None
    assert found.status == "True"
    assert len(cluster.all(RESOURCE_SLICES)) == 1


def test_what_is_published_already_stays_so() -> None:
    cluster = RefusingServer()
    status = {"type": conditions.PUBLISHED, "status": "True", "reason": "Published", "message": "1 device"}
    status["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    cluster.edit(DEVICE_INVENTORIES, NAME, {"status": {"conditions": [status]}})

    def refused(_: Controller) -> None:
        found = cluster.published
        assert found is not None
        assert (found.status, found.reason) == ("True", "ServerNotAsked")
        assert "slices that are published stay as they are" in found.message

    play(cluster, refused)


def test_of_a_pool_that_its_node_publishes_nothing_is_written() -> None:
    cluster = RefusingServer()
    cluster.edit(DEVICE_INVENTORIES, NAME, {"spec": {"publisher": "node"}})

    def refused(_: Controller) -> None:
        assert cluster.published is None

    play(cluster, refused)


def test_a_server_that_answers_within_seconds_writes_nothing_on_inventories() -> None:
    cluster = RefusingServer()
    cluster.before = lambda *_: None
    written: list[int] = []

    async def main() -> None:
        def refuse_twice(verb: str, kind: str, *_: str) -> None:
            if (verb, kind) == ("dry-run", "ResourceSlice") and cluster.tries < 2:
                cluster.tries += 1
                raise Forbidden("no right", code=403)

        cluster.before = refuse_twice
        config = ControllerConfig(drivers=(DRIVER,), leader_elect=False)
        controller = Controller(cluster, config, Clock(), answers_of=inline)
        task = asyncio.create_task(controller.run())
        await controller.ready.wait()
        written.append(cluster.conditions_written())
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(main())
    assert written == [0]
    assert cluster.tries == 2
