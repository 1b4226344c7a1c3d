"""Whose claims may have a device as a bare PCI function."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from node_agent import DRIVER, add_claim, claim, configuration
from passthrough_node import CONFIG, ONE, Machine, agent, call

from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.discovery.core.bus.pci_binding import VFIO

VM_CLASS = {"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": CONFIG}}
VM_CLAIM = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": CONFIG}}
PLAIN = {**CONFIG, "driver": "Default"}
PLAIN_CLAIM = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": PLAIN}}
PLAIN_CLASS = {**VM_CLASS, "opaque": {"driver": DRIVER, "parameters": PLAIN}}
OTHER_CLASS = {**VM_CLASS, "requests": ["elsewhere"]}


@pytest.mark.parametrize(
    ("configs", "allowed", "outcome"),
    [
        ((VM_CLASS,), {}, VFIO),
        ((VM_CLAIM,), {}, "own parameters ask for passthrough"),
        ((VM_CLAIM, {**VM_CLAIM, "source": ""}), {}, "own parameters ask for passthrough"),
        ((OTHER_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        ((PLAIN_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        # Of several parameters of a class the last one holds.
        ((VM_CLASS, PLAIN_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        # A claim may say how it wants to have what its class gives, and may not want it.
        ((VM_CLASS, VM_CLAIM), {}, VFIO),
        ((VM_CLASS, PLAIN_CLAIM), {}, "nvidia"),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("ns",)}, VFIO),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("*",)}, VFIO),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("other",)}, "own parameters ask for passthrough"),
        ((VM_CLASS,), {"passthrough_class_namespaces": ("ns", "vms")}, VFIO),
        ((VM_CLASS,), {"passthrough_class_namespaces": ("vms",)}, "namespace ns is none of those"),
        (
            (VM_CLASS,),
            {"passthrough_class_namespaces": ("vms",), "passthrough_claim_namespaces": ("ns",)},
            VFIO,
        ),
    ],
)
def test_whose_claims_may_have_it(
    tmp_path: Path, configs: Sequence[dict[str, Any]], allowed: dict[str, Any], outcome: str
) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = claim("vm", "gpu-0")
        body["status"]["allocation"]["devices"]["config"] = list(configs)
        kube.put(RESOURCE_CLAIMS, body)
        async with agent(tmp_path, kube, machine, **allowed) as node:
            error = await call(node, "prepare", body)
            if outcome in (VFIO, "nvidia"):
                assert (error, machine.pci.driver(ONE)) == ("", outcome)
            else:
                assert outcome in error
                assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")

    asyncio.run(scenario())


def test_who_only_looks_on_needs_no_permission(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = claim("look", "gpu-0", adminAccess=True)
        body["status"]["allocation"]["devices"]["config"] = [VM_CLAIM]
        add_claim(kube, body)
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            assert machine.pci.driver(ONE) == "nvidia"

    asyncio.run(scenario())


def test_namespaces_are_checked_at_the_start(tmp_path: Path) -> None:
    wrong = configuration(
        tmp_path,
        passthrough=True,
        passthrough_class_namespaces=("Vms",),
        passthrough_claim_namespaces=("*", "vms", ""),
    )
    assert [f.partition(":")[0] for f in wrong.findings()] == [
        "--passthrough-class-namespace 'Vms'",
        "--passthrough-claim-namespace ''",
    ]
    (finding,) = configuration(tmp_path, passthrough_claim_namespaces=("vms",)).findings()
    assert finding == "--passthrough-claim-namespace: has no effect without --passthrough"
