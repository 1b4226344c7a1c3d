"""What identifies a device, in whatever form a driver writes it."""

from __future__ import annotations

import builders
import pytest

from dra_driver.api import codec
from dra_driver.api.resource import Device
from dra_driver.resourceslice import identities, is_of_one_node

UUID = "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301"


def named(name: str, value: object) -> frozenset[str]:
    return identities(codec.convert(Device, builders.device("d", attributes={name: value})).attributes)


OURS = named("resource.kubernetes.io/pciBusID", "0000:3b:00.0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resource.kubernetes.io/pciBusID", "0000:3B:00.0"),
        ("resource.kubernetes.io/pciBusID", "00000000:3B:00.0"),
        ("pciBusID", "3b:00.0"),
        ("gpu.example.com/pciBusId", " 0000:3b:00.0 "),
        ("dra.example.com/pciAddress", "0000:3b:00.0"),
        ("gpu.example.com/pciAddr", "0000:3b:00.0"),
        ("resource.kubernetes.io/pciBusID", ["0000:5e:00.0", "0000:3b:00.0"]),
    ],
)
def test_a_pci_address_is_the_same_in_every_form_and_domain(name: str, value: object) -> None:
    assert OURS
    assert named(name, value) >= OURS
    assert all(is_of_one_node(i) for i in OURS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resource.kubernetes.io/pciBusID", "0001:3b:00.0"),
        ("resource.kubernetes.io/pciBusID", "00010000:3b:00.0"),
        ("resource.kubernetes.io/pciBusID", "0000:3b:00.1"),
        ("resource.kubernetes.io/pciBusID", "0000:3b:00.0.1"),
        ("resource.kubernetes.io/pciBusID", ""),
        # Which devices are near to each other, of which kind it is, where its physical function is.
        ("resource.kubernetes.io/pcieRoot", "0000:3b:00.0"),
        ("pciID", "0000:3b:00.0"),
        ("physicalFunction", "0000:3b:00.0"),
        ("resource.kubernetes.io/pciBusID", True),
    ],
)
def test_another_address_or_attribute_is_not_the_same_device(name: str, value: object) -> None:
    assert not named(name, value) & OURS


def test_a_uuid_is_the_same_in_every_form_and_domain() -> None:
    (ours,) = named("uuid", UUID)
    assert not is_of_one_node(ours)
    for name in ("uuid", "gpu.example.com/uuid", "UUID", "gpu.example.com/parentUUID"):
        assert named(name, UUID) == {ours}
    assert named("uuid", UUID.upper()) == named("uuid", UUID.removeprefix("GPU-")) == {ours}
    assert named("uuid", UUID[:-1] + "2") != {ours}
    partition = builders.device("d", attributes={"uuid": "MIG-" + UUID[4:], "parentUUID": UUID})
    assert identities(codec.convert(Device, partition).attributes) > {ours}


@pytest.mark.parametrize("nothing", ["", " ", "0", "GPU-", "00000000-0000-0000-0000-000000000000"])
def test_what_has_no_uuid_is_not_the_same_as_what_has_none(nothing: str) -> None:
    assert named("uuid", nothing) == frozenset()
