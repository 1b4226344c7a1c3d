"""What ``explain`` answers while the controller that would allocate does not answer."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER
from fake_client import FakeClient

from dra_driver.api.core import PODS
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import explain
from dra_driver.cli.allocator.manifests import Manifests

SILENT = "the controller has not answered for 40 s"
PROTECTED = {"key": "dra-driver.dev/controller", "value": "allocates", "effect": "NoSchedule"}


def cluster(*taints: dict[str, str], status: dict[str, Any] | None = None, gated: bool = False) -> Manifests:
    fake = FakeClient()
    fake.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    device = builders.device("gpu-0", "40Gi", **({"taints": list(taints)} if taints else {}))
    fake.put(RESOURCE_SLICES, builders.resource_slice("n1", device))
    fake.put(RESOURCE_CLAIMS, builders.claim("c", status=status))
    fake.put(PODS, builders.pod("p", "c", gated=gated))
    return Manifests(
        slices=fake.all(RESOURCE_SLICES),
        classes=fake.all(DEVICE_CLASSES),
        claims=fake.all(RESOURCE_CLAIMS),
        pods=fake.all(PODS),
        source="the cluster has",
    )


@pytest.mark.parametrize("gated", [True, False])
def test_what_only_the_controller_can_allocate_does_not_fit(gated: bool) -> None:
    found = explain.explained(cluster(PROTECTED, gated=gated), silent=SILENT)
    assert not found.fits
    assert f"default/c would fit on node n1, but {SILENT}:" in str(found)
    assert " fits on node" not in str(found)
    answering = explain.explained(cluster(PROTECTED, gated=gated))
    assert answering.fits
    assert "default/c fits on node n1:" in str(answering)


def test_what_kube_scheduler_allocates_fits() -> None:
    found = explain.explained(cluster(), silent=SILENT)
    assert found.fits
    assert SILENT not in str(found)


def test_what_is_allocated_stays_so() -> None:
    status = builders.allocation(builders.result("n1", "gpu-0"))
    found = explain.explained(cluster(PROTECTED, status=status), silent=SILENT)
    assert found.fits
    assert "default/c is allocated on node" in str(found)


def test_the_data_say_so_too() -> None:
    found = str(explain.explained(cluster(PROTECTED), silent=SILENT, output="json"))
    assert '"fits": false' in found
    assert f'"controller": "{SILENT}"' in found
