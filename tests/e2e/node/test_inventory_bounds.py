"""What the API server takes of a DeviceInventory, whoever writes it. Nothing is stored: all are dry runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.errors import Invalid

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

TAKEN: tuple[str | int, ...] = (
    *("0", "1", "80Gi", "81559Mi", "1Pi", "1P", "1.5Gi", "1500m", "1e3", "1E9", "999Ti", "4096Ki"),
    *(0, 132, 85899345920),
)
REFUSED: tuple[str | int, ...] = (
    *("8Ei", "1E", "9223372036854775807", "99999999999999999", "11Pi", "-1", "-80Gi", "1e16", "1e999"),
    *("", "Gi", "abc", "80GiB", " 1Gi", "0x10", "10000000Gi0", "1" * 40),
    *(-1, 10**16 + 1),
)


def inventory(device: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DeviceInventory",
        "metadata": {"name": f"bounds.{DEFAULT_DRIVER_NAME}"},
        "spec": {
            "nodeName": "bounds",
            "driver": DEFAULT_DRIVER_NAME,
            "devices": [{"name": "gpu-0", **device}],
        },
    }


def of_device(value: str | int) -> dict[str, Any]:
    return {"capacity": {"memory": {"value": value}}}


def of_partition(value: str | int) -> dict[str, Any]:
    return {"partitions": [{"name": "1g.5gb", "capacity": {"memory": {"value": value}}}]}


@pytest.mark.parametrize("where", [of_device, of_partition])
def test_amounts_are_bounded(background: Background, cluster: Cluster, where: Any) -> None:
    async def taken(value: str | int) -> bool:
        try:
            await cluster.api.create(DEVICE_INVENTORIES, inventory(where(value)), dry_run=True)
        except Invalid:
            return False
        return True

    async def scenario() -> dict[str | int, bool]:
        return {value: await taken(value) for value in (*TAKEN, *REFUSED)}

    found = background.run(scenario())
    assert [v for v in TAKEN if not found[v]] == []
    assert [v for v in REFUSED if found[v]] == []


@pytest.mark.parametrize(
    "device",
    [
        {"attributes": {"a": {"int": 2**63}}},
        {"attributes": {"a": {"string": "x" * 65}}},
        {"attributes": {f"a{i}": {"bool": True} for i in range(33)}},
        {"partitions": [{"name": "p", "placements": [{"start": 0, "size": 2**40}]}]},
        {"partitions": [{"name": "p", "placements": [{"start": i, "size": 1} for i in range(65)]}]},
        {"links": [{"peer": "gpu-1", "type": "nvlink", "count": 10**6}]},
    ],
)
def test_other_facts_are_bounded(background: Background, cluster: Cluster, device: dict[str, Any]) -> None:
    async def scenario() -> None:
        with pytest.raises(Invalid):
            await cluster.api.create(DEVICE_INVENTORIES, inventory(device), dry_run=True)

    background.run(scenario())
