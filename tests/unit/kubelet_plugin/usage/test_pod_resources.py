"""What the kubelet lists of our claims, and what becomes of it when it cannot be asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

from listing_kubelet import listing
from node_agent import DRIVER

from kubelet_plugin.usage.pod_resources import PodResources

OURS = f"k8s.{DRIVER}/claim=c1-gpu"


def test_pods_are_listed_by_the_cdi_names_of_this_driver(tmp_path: Path) -> None:
    async def main() -> None:
        source = PodResources(tmp_path / "kubelet.sock", DRIVER)
        async with listing(tmp_path / "kubelet.sock") as kubelet:
            kubelet.pods = {
                ("ns", "one"): ("shared", DRIVER, [OURS]),
                ("ns", "two"): ("shared", DRIVER, [OURS]),
                ("ns", "three"): ("nic", "other.example.com", ["other.example.com/nic=0"]),
                # A kubelet before 1.34.
                ("ns", "four"): ("old", "", [f"{OURS}-old"]),
            }
            found = await source.list()
        assert found is not None
        assert found.pods == {
            OURS: {("ns", "one"), ("ns", "two")},
            f"{OURS}-old": {("ns", "four")},
        }
        # What pods have of other drivers is known by pool and device.
        assert {(str(pool), device) for pool, device in found.others} == {("other.example.com/p", "d")}

    asyncio.run(main())


def test_a_kubelet_that_cannot_be_asked_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        source = PodResources(tmp_path / "kubelet.sock", DRIVER)
        assert await source.list() is None
        async with listing(tmp_path / "kubelet.sock"):
            assert await source.list() is not None
        (tmp_path / "kubelet.sock").touch()  # left by a kubelet that was killed
        assert await source.list() is None

    asyncio.run(main())
