"""Reasons folded over devices and nodes: one row for what the same check excluded."""

from __future__ import annotations

from allocator_world import claim, device, exactly, pool, snapshot

from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.structured import DeviceID, DoesNotFit, Folded, NodeReasons, allocate, fold
from dra_driver.structured.model.types import Exclusion, ExclusionReason

SUBREQUESTS = [("large", 1, "1000Gi"), ("several", 2, "80Gi")]
BIG = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("1000Gi")) > 0'


def folded(
    slices: list[ResourceSlice], *requests: dict[str, object], all_drivers: bool = False, **spec: object
) -> Folded:
    outcome = allocate(snapshot(*slices), [claim("c", *requests, **spec)])
    assert isinstance(outcome, DoesNotFit), outcome
    devices: dict[DeviceID, Device] = {
        DeviceID(s.spec.driver, s.spec.pool.name, d.name): d for s in slices for d in s.spec.devices
    }
    return fold(outcome.reasons, devices, all_drivers=all_drivers)


def lines(found: Folded) -> list[tuple[int, int, str]]:
    return [(r.devices, r.of, r.text) for r in found.reasons]


def test_devices_of_all_nodes_are_one_row_with_the_largest() -> None:
    slices = [pool(f"n{i}", device("d0", "80Gi"), device("d1", f"{i}91Gi")) for i in range(1, 3)]
    found = folded(slices, exactly(memory="1000Gi"))
    assert lines(found) == [(4, 4, "memory of at most 291Gi")]
    assert found.reasons[0].nodes == {"n1": 2, "n2": 2}


def test_what_a_selector_saw_is_told() -> None:
    few = [pool("n1", device("d0", "80Gi"), device("d1", "80Gi"), device("d2", "24Gi"))]
    (row,) = folded(few, exactly(selectors=[{"cel": {"expression": BIG}}])).reasons
    assert row.text.endswith("; saw memory 80Gi (2), 24Gi (1)"), row.text
    many = [pool("n1", *(device(f"d{i}", f"{i}Gi") for i in range(1, 9)))]
    (row,) = folded(many, exactly(selectors=[{"cel": {"expression": BIG}}])).reasons
    assert row.text.endswith("; saw memory 1Gi to 8Gi"), row.text
    absent = f'has(device.attributes["gpu.example.com"].model) && {BIG}'
    (row,) = folded(few, exactly(selectors=[{"cel": {"expression": absent}}])).reasons
    assert row.text.endswith("; saw model absent; memory 80Gi (2), 24Gi (1)"), row.text


def test_devices_without_an_attribute_are_a_row_whether_they_are_free_or_not() -> None:
    slices = [pool("n1", device("d0", attributes={"model": "a"}), device("d1"))]
    found = folded(slices, exactly(2), constraints=[{"matchAttribute": "gpu.example.com/model"}])
    assert lines(found) == [
        (1, 2, "free, but not together: 2 devices, the same gpu.example.com/model"),
        (1, 2, "without the attribute gpu.example.com/model, which a constraint requires"),
    ]


def test_a_request_that_no_device_can_serve_is_named_whatever_is_free() -> None:
    slices = [pool("n1", device("d0", "80Gi"), device("d1", "40Gi")), pool("n2", device("d0", "40Gi"))]
    assert folded(slices, exactly(memory="1000Gi")).unservable == ("req-0",)
    assert folded(slices, exactly(2, "80Gi")).unservable == ()
    subrequests = [{"name": n, **exactly(c, m)} for n, c, m in SUBREQUESTS]
    assert folded(slices, {"firstAvailable": subrequests}).unservable == ()
    assert folded(slices, {"firstAvailable": subrequests[:1]}).unservable == ("req-0",)


def of(name: str, driver: str, reason: ExclusionReason, wanted: str = "", found: str = "") -> Exclusion:
    return Exclusion("ns/c", "gpu", DeviceID(driver, "n1", name), reason, wanted, found)  # type: ignore[arg-type]


def test_devices_that_the_class_is_not_about_are_hidden_unless_asked_for() -> None:
    reasons = [
        NodeReasons(
            "n1",
            (
                of("d0", "gpu", ExclusionReason.IN_USE, found="ns/a"),
                of("d1", "gpu", ExclusionReason.CLASS, "big"),
                of("x0", "nic", ExclusionReason.CLASS, "big"),
            ),
        )
    ]
    found = fold(reasons, {})
    assert lines(found) == [(1, 2, "held by ns/a"), (1, 2, "not of class big")]
    assert found.hidden == {"nic": 1}
    everything = fold(reasons, {}, all_drivers=True)
    assert lines(everything)[1] == (2, 3, "not of class big")
    assert not everything.hidden


def test_if_the_class_has_no_device_at_all_nothing_is_hidden() -> None:
    reasons = [NodeReasons("n1", (of("x0", "nic", ExclusionReason.CLASS, "big"),))]
    assert lines(fold(reasons, {})) == [(1, 1, "not of class big")]


def test_what_names_single_devices_is_listed_in_one_row() -> None:
    error = "c/gpu: selector fails on device {}: no such key: foo"
    failed = [
        of(name, "gpu", ExclusionReason.SELECTOR_ERROR, found=error.format(f"gpu/n1/{name}")) for name in "ab"
    ]
    used = [of(f"u{i}", "gpu", ExclusionReason.IN_USE, found=f"ns/{i}") for i in range(5)]
    assert lines(fold([NodeReasons("n1", (*failed, *used))], {})) == [
        (5, 7, "held by ns/0, ns/1, ns/2 and 2 more"),
        (2, 7, "a selector fails: no such key: foo"),
    ]


def test_the_nearest_to_being_served_come_first_and_nodes_as_a_whole_are_said() -> None:
    far = of("a", "gpu", ExclusionReason.CLASS, "big")
    near = of("b", "gpu", ExclusionReason.TAINT, found="k=v:NoSchedule")
    without = Exclusion("ns/c", "gpu", None, ExclusionReason.NO_DEVICES)
    reasons = [NodeReasons("n1", (far, near)), NodeReasons("n2", (without,))]
    assert lines(fold(reasons, {})) == [
        (1, 2, "tainted k=v:NoSchedule"),
        (1, 2, "not of class big"),
        (0, 2, "no devices"),
    ]
