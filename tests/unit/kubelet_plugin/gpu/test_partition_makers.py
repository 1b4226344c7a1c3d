"""Backends of third parties that cut devices into partitions, and do it wrongly."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cut_npu import CutNpu, dev, half, half_claim
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import IMPATIENT, SOON_GONE, Node, add_claim, claim, eventually, running

from dra_driver import sdk
from kubelet_plugin.config import Timings

Scenario = Callable[[Node, dict[str, Any]], Awaitable[None]]


LOOKING = dataclasses.replace(SOON_GONE, first_leftovers=0.01, leftovers=0.01, confirm_leftovers=0.01)


def play(
    root: Path, scenario: Scenario, *backends: CutNpu, timings: Timings = SOON_GONE, **more: Any
) -> None:
    """Plays a scenario with a running agent, and a claim of the first half of ``S0``."""

    async def life() -> None:
        kube = FakeClient()
        one = add_claim(kube, half_claim("one", "S0", 0))
        settings = {"dev_root": dev(root), **more}
        agent = running(
            root, kube, backends=list(backends), settings=settings, timing=IMPATIENT, timings=timings
        )
        async with agent as node:
            await scenario(node, one)

    asyncio.run(life())


async def prepared(node: Node, body: dict[str, Any]) -> str:
    """The error of a call to prepare; empty if it was prepared."""
    error: str = (await prepare(node, body))[body["metadata"]["uid"]].error
    return error


async def unprepared(node: Node, body: dict[str, Any]) -> str:
    error: str = (await unprepare(node, body))[body["metadata"]["uid"]].error
    return error


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class Refused(sdk.PrepareError):
    """Of a third party, which has not called our constructor."""

    def __init__(self) -> None:
        Exception.__init__(self, "no\nroom")


ERRORS = {
    "SystemExit: 3": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration: end": StopIteration("end"),
    "NoText: its text cannot be made (SystemExit)": NoText(),
    "OSError: [Errno 5] \\udcff": OSError(5, "\udcff"),
    "no room": Refused(),
    "ValueError: xxx": ValueError("x" * 100_000),
}


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: object) -> Any:
        raise error

    return raise_it


@pytest.mark.parametrize("text", ERRORS)
@pytest.mark.parametrize("where", ["in_partitions", "in_create", "in_destroy"])
def test_whatever_a_maker_raises_refuses_one_claim(tmp_path: Path, where: str, text: str) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        ending = where == "in_destroy"
        assert not ending or not await prepared(node, one)
        good = getattr(npu, where)
        setattr(npu, where, raising(ERRORS[text]))
        async with asyncio.timeout(10):
            error = await (unprepared if ending else prepared)(node, one)
        assert error.startswith(f"device S0: {text}")
        assert len(error) < 500
        setattr(npu, where, good)
        assert not await unprepared(node, one)
        assert npu.left == []

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3)])
def test_a_maker_that_raises_when_leftovers_are_looked_for_does_not_end_the_agent(
    tmp_path: Path, error: BaseException
) -> None:
    npu = CutNpu()
    asked = asyncio.Event()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()

        def fail(*_: object) -> Any:
            loop.call_soon_threadsafe(asked.set)
            raise error

        good, npu.in_partitions = npu.in_partitions, fail
        await asked.wait()
        npu.in_partitions = good
        assert not await prepared(node, one)

    play(tmp_path, scenario, npu, timings=LOOKING)


def other(**changes: Any) -> Callable[[str, sdk.Partition], Any]:
    return lambda _, made: dataclasses.replace(made, **changes)


RETURNED: dict[str, Callable[[str, sdk.Partition], Any]] = {
    "expected GpuInstance, got NoneType": lambda *_: None,
    "was to be made at 0:1; made was one of profile 1 at 1:1": other(start=1),
    "was to be made at 0:1; made was one of profile 1 at 0:2": other(size=2),
    "was to be made at 0:1; made was one of profile 7 at 0:1": other(profile_id=7),
    "with uuid '' was made at 0:1": other(uuid=""),
    "with uuid 'x' was made at 0:1, and then there is one with uuid 'S0-0'": other(uuid="x"),
    "Expected `str`, got `int` - at `$.uuid`": other(uuid=5),
    "Expected `str`, got `null` - at `$.uuid`": other(uuid=None),
    "uuid is 'a\\nb'; expected 253 printable characters at most": other(uuid="a\nb"),
    "expected 253 printable": other(uuid="x" * 1_000_000),
    "surrogates not allowed": other(uuid="\udcff"),
    "Expected `int`, got `bool` - at `$.instance_id`": other(instance_id=True),
    "Expected `array`, got `null` - at `$.device_nodes`": other(device_nodes=None),
    "Expected `object`, got `str` - at `$.device_nodes[0]`": other(device_nodes=("/dev/S0p0",)),
    "Expected `str`, got `int` - at `$.device_nodes[0].path`": other(device_nodes=[sdk.DeviceNode(5)]),  # type: ignore[arg-type]
    "'/etc/shadow' is not below /dev": other(device_nodes=[sdk.DeviceNode("/etc/shadow")]),
    "'/etc/passwd' is not below /dev": other(device_nodes=[sdk.DeviceNode("/dev/x", "/etc/passwd")]),
    "'/dev/../etc' is not below /dev": other(device_nodes=[sdk.DeviceNode("/dev/../etc")]),
    ".type: 'q', allowed are b, c, u, p": other(device_nodes=[sdk.DeviceNode("/dev/S0p0", type="q")]),
    "has 1000 device nodes; at most 64": other(
        device_nodes=[sdk.DeviceNode(f"/dev/{i}") for i in range(1000)]
    ),
}


@pytest.mark.parametrize("text", RETURNED)
def test_what_a_maker_returns_is_compared_with_what_there_is(tmp_path: Path, text: str) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        npu.in_create = RETURNED[text]
        error = await prepared(node, one)
        assert error.startswith("device S0: ")
        assert text in error
        assert npu.left == []
        assert not node.plugin._preparer.claims
        npu.in_create = other()
        assert not await prepared(node, one)
        assert npu.left == ["S0-0"]

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("uuid", [5, None])
def test_a_value_of_another_type_does_not_make_the_checkpoint_unreadable(tmp_path: Path, uuid: Any) -> None:
    npu = CutNpu()

    async def before(node: Node, one: dict[str, Any]) -> None:
        two = add_claim(node.kube, half_claim("two", "S0", 1))
        assert not await prepared(node, two)
        npu.in_create = other(uuid=uuid)
        await prepared(node, one)

    async def after(node: Node, one: dict[str, Any]) -> None:
        assert node.plugin._preparer.intact
        assert npu.left == ["S0-1"]

    play(tmp_path, before, npu)
    npu.in_create = other()
    play(tmp_path, after, npu)


def test_what_was_made_elsewhere_is_destroyed_and_what_was_there_is_not(tmp_path: Path) -> None:
    npu = CutNpu()

    def elsewhere(uuid: str, made: sdk.Partition) -> sdk.Partition:
        npu.made[uuid].pop(0)
        return npu.made[uuid].setdefault(1, dataclasses.replace(made, instance_id=1, start=1, uuid="S0-1"))

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        npu.in_create = elsewhere
        assert "made was one of profile 1 at 1:1" in await prepared(node, one)
        assert npu.left == []
        npu.made["S0"][1] = sdk.Partition(1, 1, 1, 1, uuid="an administrator's")
        assert "made was one of profile 1 at 1:1" in await prepared(node, one)
        assert npu.left == ["an administrator's"]

    play(tmp_path, scenario, npu)


def test_a_maker_that_makes_nothing_is_found_out(tmp_path: Path) -> None:
    npu = CutNpu()

    def nothing(uuid: str, made: sdk.Partition) -> sdk.Partition:
        return npu.made[uuid].pop(made.start)

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        npu.in_create = nothing
        error = await prepared(node, one)
        assert error.startswith(
            "device S0: a partition with uuid 'S0-0' was made at 0:1, and then there is none"
        )
        assert node.specs() == []

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (lambda *_: 5, "'int' object is not iterable"),
        (lambda *_: "half", "expected GpuInstance, got str"),
        (lambda *_: itertools.repeat(sdk.Partition(4, 1, 1, 1)), "it has more than 4096 partitions"),
        (lambda _, found: [*found, *found], "several of its partitions are number 0"),
        (lambda _, found: [*found, dataclasses.replace(found[0], start=1)], "several of its partitions"),
    ],
)
def test_a_list_that_cannot_be_right_keeps_the_partition_and_its_claim(
    tmp_path: Path, found: Callable[..., Any], text: str
) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        assert not await prepared(node, one)
        good, npu.in_partitions = npu.in_partitions, found
        error = await unprepared(node, one)
        assert error.startswith("device S0: ")
        assert text in error
        assert npu.left == ["S0-0"]
        npu.in_partitions = good
        assert not await unprepared(node, one)
        assert npu.left == []

    play(tmp_path, scenario, npu)


class SlowNpu(CutNpu):
    """Prepares partitions when it is told to; each that is made has another identity."""

    parameters = ()

    def __init__(self) -> None:
        super().__init__()
        self.finish = threading.Event()
        self.calls: list[str] = []
        self.in_create = self._numbered

    def plan_device(self, use: sdk.DeviceUse) -> sdk.DevicePlan:
        return sdk.DevicePlan(seconds=60)

    def prepare_device(self, work: sdk.DeviceWork) -> None:
        self.calls.append("prepare")
        assert self.finish.wait(30)

    def unprepare_device(self, work: sdk.DeviceWork) -> None:
        self.calls.append("unprepare")

    def _numbered(self, uuid: str, made: sdk.Partition) -> sdk.Partition:
        self.calls.append("create")
        made = dataclasses.replace(made, uuid=f"{uuid}-{self.calls.count('create')}")
        self.made[uuid][made.start] = made
        return made


def test_a_partition_that_vanishes_while_it_is_prepared_is_made_and_prepared_anew(tmp_path: Path) -> None:
    npu = SlowNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        node.plugin._effects._seconds = 0.1
        assert "still prepares it" in await prepared(node, one)
        npu.made["S0"].clear()
        npu.finish.set()
        # If the one that would be made in its place cannot be handed out either, nobody has it in a record.
        (tmp_path / "dev/S0p0").unlink()
        await prepared(node, one)
        assert npu.left == []
        (tmp_path / "dev/S0p0").touch()
        npu.calls.clear()
        assert not await prepared(node, one)
        assert npu.calls == ["create", "prepare"]
        assert not await unprepared(node, one)
        assert npu.left == []

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("slow", ["hangs", "slow"])
def test_a_maker_that_takes_long_keeps_no_other_backends_claims_waiting(tmp_path: Path, slow: str) -> None:
    crowd = [f"S{i}" for i in range(6)]
    npu, beside = CutNpu(serials=crowd), CutNpu("zeta", ["Z0"])
    dev(tmp_path, "Z0", "Z0p0", *crowd, *(f"{serial}p0" for serial in crowd))
    held = threading.Event()

    def wait(uuid: str, found: list[sdk.Partition] | None) -> Any:
        held.wait(60 if slow == "hangs" and uuid in crowd else 2)
        return found

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        other_one = add_claim(node.kube, claim("other", half("Z0", 0, "zeta")))
        npu.in_partitions = wait
        claims = [add_claim(node.kube, half_claim(serial, serial, 0)) for serial in crowd]
        async with asyncio.TaskGroup() as tasks:
            try:
                for body in claims:
                    tasks.create_task(prepared(node, body))
                await asyncio.sleep(0.1)
                async with asyncio.timeout(1.5):
                    assert not await prepared(node, other_one)
                    assert not await unprepared(node, other_one)
            finally:
                held.set()

    play(tmp_path, scenario, npu, beside)


def test_a_maker_that_says_it_has_every_device_gets_its_own_alone(tmp_path: Path) -> None:
    npu, beside = CutNpu(), CutNpu("zeta", ["Z0"])
    dev(tmp_path, "Z0", "Z0p0")
    npu.in_partitions = lambda uuid, found: found or []

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        other_one = add_claim(node.kube, claim("other", half("Z0", 0, "zeta")))
        assert not await prepared(node, other_one)
        assert (npu.left, beside.left) == ([], ["Z0-0"])
        assert not await unprepared(node, other_one)
        assert beside.left == []

    play(tmp_path, scenario, npu, beside)


def test_what_one_agent_makes_too_late_is_not_forgotten_by_the_other(tmp_path: Path) -> None:
    npu, held = CutNpu(), threading.Event()
    create = npu.create_partition

    def late(uuid: str, profile_id: int, start: int, size: int) -> sdk.Partition:
        assert held.wait(30)
        return create(uuid, profile_id, start, size)

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        node.plugin._setup.hardware.calls._seconds = 0.1
        npu.create_partition = late  # type: ignore[method-assign]
        assert "does not answer" in await prepared(node, one)
        settings = {"dev_root": tmp_path / "dev", "instance_id": "b"}
        async with running(
            tmp_path, node.kube, backend=npu, settings=settings, timing=IMPATIENT
        ) as other_node:
            assert "device S0: another instance of the plugin is working" in await unprepared(other_node, one)
            held.set()
            await eventually(lambda: npu.left == ["S0-0"])
            assert not await unprepared(other_node, one)
            assert npu.left == []

    play(tmp_path, scenario, npu, instance_id="a")


def test_a_device_that_is_away_for_a_moment_keeps_its_partition_and_its_claim(tmp_path: Path) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        assert not await prepared(node, one)
        good, npu.in_partitions = npu.in_partitions, lambda *_: None
        assert "has found acme-s0 and cannot find its partitions" in await unprepared(node, one)
        npu.in_partitions = good
        assert not await unprepared(node, one)
        assert npu.left == []

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("how", ["device", "driver"])
def test_a_device_that_is_gone_keeps_no_claim(tmp_path: Path, how: str) -> None:
    npu = CutNpu()

    def absent() -> Any:
        raise sdk.HardwareAbsent("the driver is not loaded")

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        assert not await prepared(node, one)
        if how == "driver":
            npu.discover = absent  # type: ignore[method-assign]
            npu.in_partitions = lambda *_: None
        npu.serials.remove("S0")
        # That it was asked for makes the agent look again.
        await unprepared(node, one)
        await eventually(lambda: not node.plugin._table.is_found("S0"))
        assert not await unprepared(node, one)
        assert not node.plugin._preparer.claims

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_maker_that_cannot_be_asked_hides_no_leftovers_of_others(tmp_path: Path, destroyed: bool) -> None:
    npu, beside = CutNpu(), CutNpu("zeta", ["Z0"])
    npu.in_partitions = raising(RuntimeError("boom"))
    beside.made["Z0"] = {1: sdk.Partition(1, 1, 1, 1, uuid="nobody's")}

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        if destroyed:
            assert beside.left == []
        else:
            await eventually(lambda: node.plugin._leftovers.unmanaged == 1, 10)

    play(tmp_path, scenario, npu, beside, timings=LOOKING, destroy_unowned_partitions=destroyed)


def test_a_vendor_that_is_code_is_asked_for_once(tmp_path: Path) -> None:
    class Coded(CutNpu):
        broken = False

        def __getattribute__(self, name: str) -> Any:
            if name == "vendor" and object.__getattribute__(self, "broken"):
                raise SystemExit(3)
            return super().__getattribute__(name)

    npu = Coded()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        npu.discover = CutNpu(serials=["S0"]).discover  # type: ignore[method-assign]
        npu.broken = True
        await node.plugin._table.scan()
        assert not await prepared(node, one)

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("node_of", ["another device", "another device, under another path", "a half"])
def test_a_partition_with_a_device_node_of_others_is_handed_to_nobody(tmp_path: Path, node_of: str) -> None:
    npu = CutNpu()
    wrong = {
        "another device": sdk.DeviceNode("/dev/S1"),
        "another device, under another path": sdk.DeviceNode("/dev/S0p0", "/dev/S1"),
        "a half": sdk.DeviceNode("/dev/S0p1"),
    }[node_of]

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        two = add_claim(node.kube, half_claim("two", "S0", 1))
        assert not await prepared(node, two)
        npu.in_create = other(device_nodes=(wrong,))
        error = await prepared(node, one)
        whose = half("S0", 1) if node_of == "a half" else "acme-s1"
        assert error.startswith(f"device {half('S0', 0)}: its partition comes with /dev/")
        assert error.endswith(f"which is a device node of {whose}")
        assert npu.left == ["S0-1"]
        # That of the device that is cut is one of all its partitions.
        npu.in_create = other(device_nodes=(sdk.DeviceNode("/dev/S0"), sdk.DeviceNode("/dev/S0p0")))
        assert not await prepared(node, one)

    play(tmp_path, scenario, npu)


def test_halves_of_devices_that_exchange_their_names_get_each_others_nodes(tmp_path: Path) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        two = add_claim(node.kube, half_claim("two", "S1", 0))
        assert not await prepared(node, one)
        assert not await prepared(node, two)
        npu.names = {"S0": "S1", "S1": "S0"}
        await node.plugin._table.scan()

        uids = {one["metadata"]["uid"]: "S1", two["metadata"]["uid"]: "S0"}

        def have_theirs() -> bool:
            texts = [path.read_text() for path in node.config.cdi_dir.glob("*claim*")]
            return all(any(uid in t and f"/dev/{name}p0" in t for t in texts) for uid, name in uids.items())

        await eventually(have_theirs, 10)
        assert not await prepared(node, one)
        assert not await prepared(node, two)

    play(tmp_path, scenario, npu)


def test_a_slow_maker_does_not_hold_up_the_start_without_end(tmp_path: Path) -> None:
    crowd = [f"S{i}" for i in range(6)]
    npu, beside = CutNpu(serials=crowd), CutNpu("zeta", ["Z0"])
    settings = {"dev_root": dev(tmp_path, "Z0", "Z0p0", *crowd, *(f"{serial}p0" for serial in crowd))}
    patience = threading.Event()

    def slow(_: str, found: list[sdk.Partition] | None) -> Any:
        patience.wait(0.5)
        return found

    async def life() -> None:
        kube = FakeClient()
        claims = [add_claim(kube, half_claim(serial.lower(), serial, 0)) for serial in crowd]
        more: dict[str, Any] = {"backends": [npu, beside], "settings": settings, "timing": IMPATIENT}
        async with running(tmp_path, kube, **more) as node:
            assert not any([await prepared(node, body) for body in claims])
        npu.made["S5"].clear()
        npu.in_partitions = slow
        times = Timings(withdrawal=0.3, restoring=1.0, first_scan=0.5, renew_again=0.1)
        asked = asyncio.get_running_loop().time()
        async with running(tmp_path, kube, timings=times, **more) as node:
            # Five calls for each claim would need 15 s.
            assert asyncio.get_running_loop().time() - asked < 5
            other_one = add_claim(kube, claim("other", half("Z0", 0, "zeta")))
            assert not await prepared(node, other_one)
            patience.set()
            await eventually(lambda: "S5-0" in npu.left)
            assert len(node.specs()) == 7

    asyncio.run(life())
