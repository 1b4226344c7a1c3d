"""What API servers make of lists in attributes, with the gate and without: the embedded one and the real one.

The answers were taken from the real one (``DRA_K8S_BIN``), which is asked again where it is at hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_apiserver import RealApiServer, gate_flag, real_apiserver

from dra_driver.api.meta import DriverName
from dra_driver.api.names import LISTS_GATE
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES
from dra_driver.errors import Invalid
from dra_driver.kube import KubeApi
from dra_driver.kube.features import probe_features
from dra_driver.sim.apiserver import ApiServer


def device(name: str = "d", **attributes: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "attributes": attributes}


def many(number: int, **attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [device(f"d-{i}", **attributes) for i in range(number)]


# Name → devices, and the fields of the causes with the gate and without it.
CASES: dict[str, tuple[list[dict[str, Any]], list[str], list[str]]] = {
    "each kind": (
        [
            device(
                a={"strings": ["x", "y"]}, b={"ints": [1, -2]}, c={"bools": [True]}, d={"versions": ["1.0.0"]}
            )
        ],
        [],
        [f"attributes[{name}]" for name in "abcd"],
    ),
    "the same value twice": ([device(a={"strings": ["x", "x"]})], [], ["attributes[a]"]),
    "empty": ([device(a={"strings": []})], ["attributes[a].strings"], ["attributes[a]"]),
    "empty beside a value": (
        [device(a={"string": "x", "ints": []})],
        ["attributes[a]", "attributes[a].ints"],
        [],
    ),
    "two lists": ([device(a={"strings": ["x"], "ints": [1]})], ["attributes[a]"], ["attributes[a]"]),
    "a list and a value": ([device(a={"strings": ["x"], "string": "x"})], ["attributes[a]"], []),
    "a long text": (
        [device(a={"strings": ["x", "y" * 65]})],
        ["attributes[a].strings[1]"],
        ["attributes[a]"],
    ),
    "no version": (
        [device(a={"versions": ["1.0.0", "1.0"]})],
        ["attributes[a].versions[1]"],
        ["attributes[a]"],
    ),
    "48 values": (
        [device(a={"ints": list(range(46))}, b={"int": 1}, c={"bool": True})],
        [],
        ["attributes[a]"],
    ),
    "49 values": (
        [device(a={"ints": list(range(47))}, b={"int": 1}, c={"bool": True})],
        [""],
        ["attributes[a]"],
    ),
    "64 devices": ([*many(63, b={"int": 1}), device(a={"ints": [1]})], [], ["attributes[a]"]),
    "65 devices": ([*many(64, b={"int": 1}), device(a={"ints": [1]})], ["devices"], ["attributes[a]"]),
}
SELECTORS = {
    '"a" in device.attributes["d"].x': (True, True),
    'device.attributes["d"].x.includes("a")': (True, False),
    'device.attributes["d"].x.exists(v, v == "a")': (True, False),
    'device.attributes["d"].x.all(v, v.startsWith("pci"))': (True, False),
    'device.attributes["d"].x.size() == 2': (True, True),
    'device.attributes["d"].x': (True, True),
    "[1].includes(1)": (True, False),
}


@contextlib.asynccontextmanager
async def connected(started: RealApiServer | None, folder: Path, gate: bool) -> AsyncIterator[KubeApi]:
    """A client of the real server, or of an embedded one."""
    if started is not None:
        async with await started.client() as client:
            yield client
        return
    async with ApiServer(gates=[LISTS_GATE] if gate else []) as server:
        server.write_kubeconfig(folder / "kubeconfig")
        async with await KubeApi.connect(folder / "kubeconfig") as client:
            yield client


TAINTS_GATE = "DRADeviceTaints"
Server = tuple[RealApiServer | None, bool]


@pytest.fixture(
    scope="module",
    params=[("embedded", True), ("embedded", False), ("real", True), ("real", False)],
    ids=["embedded, gate on", "embedded, gate off", "real, gate on", "real, gate off"],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server, or None for an embedded one, and whether the gate is on."""
    which, gate = request.param
    if which == "embedded":
        yield None, gate
        return
    flag = gate_flag(TAINTS_GATE, *([LISTS_GATE] if gate else []))
    with real_apiserver(tmp_path_factory.mktemp("real"), flag) as started:
        yield started, gate


def slice_of(devices: list[dict[str, Any]]) -> dict[str, Any]:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "nodeName": "n", "pool": pool, "devices": devices}
    metadata = {"generateName": "lists-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


async def causes(client: KubeApi, devices: list[dict[str, Any]]) -> list[str]:
    """Fields that are refused, below the last device."""
    try:
        await client.create(RESOURCE_SLICES, slice_of(devices), dry_run=True)
    except Invalid as e:
        fields = {field for field, _, _ in e.causes}
        return sorted(f.removeprefix(f"spec.devices[{len(devices) - 1}]").lstrip(".") for f in fields)
    return []


def test_lists_are_kept_by_the_gate_and_validated(server: Server, tmp_path: Path) -> None:
    started, gate = server

    async def main() -> None:
        async with connected(started, tmp_path, gate) as client:
            features = await probe_features(client, DriverName("d.example.com"))
            assert features.lists is gate
            assert features.taints
            for name, (devices, on, off) in CASES.items():
                expected = [f"spec.{f}" if f == "devices" else f for f in (on if gate else off)]
                assert await causes(client, devices) == expected, name

    asyncio.run(main())


def test_selectors_over_lists_are_accepted_by_the_gate(server: Server, tmp_path: Path) -> None:
    started, gate = server

    async def main() -> None:
        async with connected(started, tmp_path, gate) as client:
            for expression, accepted in SELECTORS.items():
                metadata = {"generateName": "lists-"}
                spec = {"selectors": [{"cel": {"expression": expression}}]}
                body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata}
                try:
                    await client.create(DEVICE_CLASSES, {**body, "spec": spec}, dry_run=True)
                    found = True
                except Invalid:
                    found = False
                assert found is accepted[not gate], expression

    asyncio.run(main())


def test_lists_that_a_slice_has_stay_where_the_gate_is_turned_off(tmp_path: Path) -> None:
    async def main() -> None:
        data = tmp_path / "data"
        async with ApiServer(gates=[LISTS_GATE], data=data) as server:
            server.write_kubeconfig(tmp_path / "kubeconfig")
            async with await KubeApi.connect(tmp_path / "kubeconfig") as client:
                made = await client.create(RESOURCE_SLICES, slice_of([device(a={"strings": ["x", "y"]})]))
        async with ApiServer(data=data) as server:
            server.write_kubeconfig(tmp_path / "kubeconfig")
            async with await KubeApi.connect(tmp_path / "kubeconfig") as client:
                kept = await client.get(RESOURCE_SLICES, made.metadata.name)
                assert kept.spec.devices[0].attributes["a"].strings == ("x", "y")
                body = slice_of([device(a={"strings": ["z"]})])
                body["metadata"] = {
                    "name": made.metadata.name,
                    "resourceVersion": kept.metadata.resource_version,
                }
                changed = await client.replace(RESOURCE_SLICES, body)
                assert changed.spec.devices[0].attributes["a"].strings == ("z",)
                with pytest.raises(Invalid):
                    await client.create(RESOURCE_SLICES, slice_of([device(a={"strings": ["x"]})]))

    asyncio.run(main())
