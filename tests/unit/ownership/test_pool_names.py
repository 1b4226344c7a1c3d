"""The pool that an object belongs to, and devices that are named as one text."""

from __future__ import annotations

import builders
import pytest
from builders import DRIVER

from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolID, pool_of_inventory, pool_of_slice
from dra_driver.ownership.pools import parse_device

N1 = PoolID(DRIVER, PoolName("n1"))


def test_an_inventory_is_published_as_the_pool_of_its_driver_with_the_name_of_its_node() -> None:
    assert pool_of_inventory(codec.convert(DeviceInventory, builders.inventory("n1"))) == N1


def test_a_slice_belongs_to_the_pool_that_it_names_whatever_its_node_is() -> None:
    raw = builders.resource_slice("n1")
    raw["spec"]["nodeName"] = "n2"
    assert pool_of_slice(codec.convert(ResourceSlice, raw)) == N1


def test_a_pool_is_shown_with_its_driver() -> None:
    assert str(N1) == f"{DRIVER}/n1"


@pytest.mark.parametrize("pool", ["n1", "rack/n1", "zone/rack/n1"])
def test_the_name_of_a_pool_may_have_slashes_those_of_drivers_and_devices_not(pool: str) -> None:
    assert parse_device(f"{DRIVER}/{pool}/gpu-0") == (PoolID(DRIVER, PoolName(pool)), "gpu-0")


@pytest.mark.parametrize("line", ["", "gpu-0", "n1/gpu-0", "/n1/gpu-0", "d//gpu-0", "d/n1/", "d/a//gpu-0"])
def test_a_text_without_driver_pool_or_device_names_none(line: str) -> None:
    assert parse_device(line) is None
