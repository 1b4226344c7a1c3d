"""What backends of third parties do to devices: in the state machine, at the cost of their own claims."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from crashing_stores import Disk
from fake_client import FakeClient
from nonempty import nonempty
from npu_backend import Npu, given, node, run

from dra_driver import sdk
from dra_driver.errors import ConfigurationError, PrepareError
from dra_driver.preparation import TRANSITIONS, Checkpoint, ClaimState, Effect, Event
from kubelet_plugin.extensions.effects import BackendEffects


def test_prepare_is_planned_recorded_done_and_undone() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        states: list[str] = []
        npu.in_prepare = lambda: states.extend(disk.claims().values())
        preparer = node(disk, kube, npu)
        reference = given(kube, "one", "acme-0", parameters={"watts": 250})
        await preparer.prepare(reference)
        assert states == ["PrepareStarted"], "the plan is durable before anything is done"
        assert npu.set == {"acme-0": 250}
        (record,) = Checkpoint.decode(disk.checkpoint)
        ((_, effect),) = record.effects
        assert json.loads(effect.settings) == {"watts": 250}
        assert effect.parameters == ""
        assert b"WATTS=250" in next(iter(disk.specs.values()))
        # The kubelet asks again: nothing is planned anew.
        npu.calls.clear()
        await preparer.prepare(reference)
        assert npu.calls == ["prepare acme-0"]
        await preparer.unprepare(reference)
        assert not npu.set
        assert not disk.claims()
        await preparer.unprepare(reference)

    run(scenario)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"watts": 500}, "NpuConfig: watts: expected int <= 400"),
        (
            {"watts": 60, "wats": 1, "mode": 2},
            "NpuConfig: wats: unknown field; NpuConfig: mode: expected str",
        ),
        ({}, "NpuConfig: watts: is missing"),
    ],
)
def test_wrong_parameters_are_refused_with_all_findings(parameters: dict[str, Any], message: str) -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        with pytest.raises(PrepareError) as caught:
            await preparer.prepare(given(kube, "one", "acme-0", parameters=parameters))
        assert message in str(caught.value)
        assert npu.calls == []
        assert not disk.claims()

    run(scenario)


def test_parameters_of_one_backend_are_none_of_another_device() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        with pytest.raises(PrepareError, match="NpuConfig is for a device of backend acme, but request gpu"):
            await preparer.prepare(given(kube, "one", "gpu-0", parameters={"watts": 100}))

    run(scenario)


def test_what_nobody_plans_is_not_prepared() -> None:
    """Admin access changes nothing, and a backend may have nothing to do."""
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        await preparer.prepare(given(kube, "looks", "acme-0", adminAccess=True))
        assert npu.calls == []
        npu.plan = lambda use: None
        await preparer.prepare(given(kube, "plain", "acme-1"))
        assert npu.calls == ["plan acme-1"]

    run(scenario)


def test_a_failure_is_undone_and_told_in_one_line() -> None:
    npu = Npu()

    def fails() -> None:
        raise RuntimeError("firmware\nsays " + "no " * 500)

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        npu.in_prepare = fails
        reference = given(kube, "one", "acme-0", "acme-1")
        with pytest.raises(PrepareError) as caught:
            await preparer.prepare(reference)
        assert str(caught.value).startswith("device acme-0: backend acme: RuntimeError: firmware says no")
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)
        assert not npu.set
        assert not disk.claims()
        assert not disk.specs
        assert preparer.failures["backend"] == 1

    run(scenario)


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


def test_an_error_without_a_text_is_reported_and_keeps_nothing_else_from_being_undone() -> None:
    npu = Npu()

    def fails() -> None:
        raise NoText

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        reference = given(kube, "one", "acme-0", "acme-1")
        npu.in_prepare = fails
        with pytest.raises(PrepareError, match=r"NoText: its text cannot be made \(SystemExit\)"):
            await preparer.prepare(reference)
        npu.in_prepare = lambda: None
        await preparer.prepare(reference)
        npu.in_unprepare = fails
        npu.calls.clear()
        with pytest.raises(PrepareError, match="NoText"):
            await preparer.unprepare(reference)
        assert npu.calls == ["unprepare acme-1", "unprepare acme-0"]
        npu.in_unprepare = lambda: None
        await preparer.unprepare(reference)
        assert not npu.set

    run(scenario)


def test_an_undoing_that_fails_keeps_the_device_and_is_tried_again() -> None:
    npu = Npu()

    def fails() -> None:
        raise SystemExit("of a third party")  # what no contract allows

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        reference = given(kube, "one", "acme-0")
        await preparer.prepare(reference)
        npu.in_unprepare = fails
        with pytest.raises(PrepareError, match="SystemExit: of a third party"):
            await preparer.unprepare(reference)
        assert disk.claims()
        npu.in_unprepare = lambda: None
        await preparer.unprepare(reference)
        assert not disk.claims()

    run(scenario)


def test_a_failure_that_cannot_be_undone_either_is_told_and_undone_by_the_next_call() -> None:
    npu = Npu()

    def fails() -> None:
        raise sdk.PrepareError("the bitstream does not fit")

    def is_away() -> None:
        raise sdk.PrepareError("the network is away")

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        reference = given(kube, "one", "acme-0")
        npu.in_prepare, npu.in_unprepare = fails, is_away
        with pytest.raises(PrepareError, match="the bitstream does not fit"):
            await preparer.prepare(reference)
        assert preparer.failures == {"backend": 2}
        assert set(disk.claims().values()) == {"PrepareStarted"}
        with pytest.raises(PrepareError, match="device acme-0 is held by another claim"):
            await preparer.prepare(given(kube, "other", "acme-0"))
        npu.in_prepare = npu.in_unprepare = lambda: None
        npu.calls.clear()
        await preparer.prepare(reference)
        assert npu.calls == ["unprepare acme-0", "plan acme-0", "prepare acme-0"]

    run(scenario)


def test_a_kill_in_the_middle_is_undone_by_the_plan_at_the_next_start() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        killed: list[Disk] = []
        npu.in_prepare = lambda: killed.append(copy.copy(disk))
        await node(disk, kube, npu).prepare(given(kube, "one", "acme-0", parameters={"watts": 300}))
        found = killed[0]  # what a process that was killed there leaves
        assert set(found.claims().values()) == {"PrepareStarted"}
        other = Npu()
        other.set = {"acme-0": 300}
        await node(found, kube, other).restore()
        assert other.calls == ["unprepare acme-0"]
        assert not other.set
        assert not found.claims()

    run(scenario)


def test_a_start_asks_nothing_for_what_is_prepared_and_a_reboot_undoes_it() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first = node(disk, kube, npu, boot_id="one")
        await first.restore()
        await first.prepare(given(kube, "one", "acme-0"))
        npu.calls.clear()
        looked = False
        again = node(disk, kube, npu, boot_id="one", looked=lambda: looked)
        await again.restore()
        assert npu.calls == [], "a backend that hangs must not hold up the start"
        looked = True
        await again.renew()
        assert npu.calls == ["prepare acme-0"]
        await node(disk, kube, npu, boot_id="two").restore()
        assert npu.calls[-1] == "unprepare acme-0"
        (record,) = Checkpoint.decode(disk.checkpoint)
        assert record.standing is ClaimState.ENDED
        assert record.effects == ()

    run(scenario)


def test_a_backend_that_hangs_costs_its_own_device_alone() -> None:
    npu, other, hold = Npu(), Npu("other", ()), threading.Event()

    def hangs() -> None:
        hold.wait(30)

    npu.in_prepare = hangs

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, other, seconds=0.2)
        hanging = given(kube, "hangs", "acme-0")
        try:
            with pytest.raises(PrepareError, match=r"device acme-0: backend acme: no answer after 0\.2 s"):
                await preparer.prepare(hanging)
            with pytest.raises(PrepareError, match="an earlier call has not returned yet"):
                await preparer.prepare(hanging)
            npu.in_prepare = lambda: None
            await preparer.prepare(given(kube, "own", "acme-1"))
            await preparer.prepare(given(kube, "others", "other-0"))
            await preparer.prepare(given(kube, "nobody", "gpu-0"))
            assert sorted(disk.claims().values()).count("PrepareCompleted") == 3
        finally:
            hold.set()
        async with asyncio.timeout(30):
            while True:
                try:
                    await preparer.prepare(hanging)
                    break
                except PrepareError:
                    await asyncio.sleep(0.02)
        # It was undone before it was prepared anew.
        assert npu.calls[-3:] == ["unprepare acme-0", "plan acme-0", "prepare acme-0"]

    run(scenario)


def test_a_backend_that_is_gone_leaves_its_claims_as_they_are() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        reference = given(kube, "one", "acme-0")
        await node(disk, kube, npu).prepare(reference)
        without = node(disk, kube)
        await without.restore()
        with pytest.raises(PrepareError, match="backend acme has prepared devices of this"):
            await without.unprepare(reference)
        assert disk.claims()
        back = node(disk, kube, npu)
        await back.restore()
        await back.unprepare(reference)
        assert not npu.set

    run(scenario)


class Lazy(Mapping[str, Any]):
    """Fails when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise SystemExit(3)

    def __iter__(self) -> Iterator[str]:
        raise SystemExit(3)

    def __len__(self) -> int:
        return 1


edits: Any = sdk.ContainerEdits
octal = sdk.DeviceNode("/dev/x", file_mode="0666")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda use: sdk.DevicePlan({"x": "y" * 9000}), "at most 8192 are written down"),
        (lambda use: sdk.DevicePlan({"x": object()}), "cannot be written down"),
        (lambda use: {"watts": 1}, "plan_device did not return a DevicePlan"),
        (lambda use: sdk.DevicePlan(edits=sdk.ContainerEdits(env=("no equals sign",))), "invalid"),
        (lambda use: sdk.DevicePlan(edits=edits(env=("A=1", 5))), r"got `int` - at `\$.env\[1\]`"),
        (lambda use: sdk.DevicePlan(edits=edits(env=("A=\udcff",))), "surrogates not allowed"),
        (
            lambda use: sdk.DevicePlan(edits=edits(additional_gids=("5",))),
            r"got `str` - at `.*additionalGids",
        ),
        (
            lambda use: sdk.DevicePlan(edits=edits(device_nodes=(octal,))),
            r"got `str` - at `.*fileMode",
        ),
        (lambda use: sdk.DevicePlan(Lazy()), "SystemExit: 3"),
    ],
)
def test_a_plan_that_is_none_is_refused_before_anything_is_done(plan: Any, message: str) -> None:
    npu = Npu()
    npu.plan = plan

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        with pytest.raises(PrepareError, match=message):
            await node(disk, kube, npu).prepare(given(kube, "one", "acme-0"))
        assert npu.calls == ["plan acme-0"]
        assert not disk.claims()

    run(scenario)


def test_released_hardware_is_not_touched() -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        effects = BackendEffects([npu])
        preparer = node(disk, kube, npu, effects=effects)
        effects.released = "an administrator has them"
        with pytest.raises(PrepareError, match="cannot be prepared now: an administrator has them"):
            await preparer.prepare(given(kube, "one", "acme-0"))

    run(scenario)


class Ours(sdk.Parameters, frozen=True):
    API_VERSION: ClassVar[str] = "dra-driver.dev/v1alpha1"


class Nameless(sdk.Parameters, frozen=True):
    pass


def test_backends_that_could_not_be_told_apart_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError) as caught:
        BackendEffects([Npu(), Npu(), Npu("b"), Npu("c", (Ours,)), Npu("d", (Nameless,)), Npu("e", (int,))])
    assert [f.partition(":")[0] for f in caught.value.findings] == [
        f"--backend {n}" for n in ("acme", "b", "c", "d", "e")
    ]
    assert "named twice" in caught.value.findings[0]
    assert "backend acme brings acme.example/v1 NpuConfig as well" in caught.value.findings[1]
    assert "of a group of your own" in caught.value.findings[2]


def test_the_table_undoes_first_what_it_does_last() -> None:
    """Backends see devices that are whole: partitions made, drivers bound, no document that names them."""
    steps = [(event, step.effects) for (_, event), step in TRANSITIONS.items()]
    for effects in nonempty(effects for _, effects in steps if Effect.UNPREPARE_DEVICES in effects):
        before = effects[: effects.index(Effect.UNPREPARE_DEVICES)]
        assert set(before) == {Effect.REMOVE_SPEC, Effect.REMOVE_METADATA}
    for event, effects in nonempty((event, e) for event, e in steps if Effect.PREPARE_DEVICES in e):
        after = effects[effects.index(Effect.PREPARE_DEVICES) + 1 :]
        assert set(after) <= {Effect.WRITE_METADATA, Effect.WRITE_SPEC, Effect.VERIFY_SPEC}
        assert event is not Event.RESTART
