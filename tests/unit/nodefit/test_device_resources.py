"""CPU and memory that devices of a pod count as, or cost, are taken of its node (KEP-5517)."""

from __future__ import annotations

from typing import Any

import builders

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.nodefit.requests import needs_of, shrinks

STATUS: list[dict[str, Any]] = [
    {
        "resourceClaimName": "cores",
        "containers": ["a", "b"],
        "mapping": [{"name": "cpu", "quantity": "8"}, {"name": "hugepages-1Gi", "quantity": "2Gi"}],
    },
    {
        "resourceClaimName": "gpu",
        "containers": ["a", "b", "c"],
        "overhead": [
            {"name": "memory", "perPod": "1Gi", "perContainer": "100Mi"},
            {"name": "cpu", "perContainer": "50m"},
        ],
    },
]


def pod(statuses: list[dict[str, Any]], **spec: Any) -> Pod:
    body = builders.pod("p", **spec)
    body["spec"]["containers"] = [builders.container("500m")]
    body["status"] = {"nodeAllocatableResourceClaimStatuses": statuses}
    return codec.convert(Pod, body)


def test_what_devices_count_as_and_cost_comes_on_top_of_requests() -> None:
    amounts = dict(needs_of(pod(STATUS)).amounts)
    assert amounts == {
        "cpu": 500 + 8000 + 3 * 50,
        "memory": (1024 + 3 * 100) << 20,
        "hugepages-1Gi": 2 << 30,
        "pods": 1,
    }
    assert dict(needs_of(pod([])).amounts) == {"cpu": 500, "pods": 1}


def test_requests_of_the_whole_pod_do_not_contain_it() -> None:
    body = codec.plain(pod(STATUS))
    body["spec"]["resources"] = {"requests": {"cpu": "2"}}
    assert dict(needs_of(codec.convert(Pod, body)).amounts)["cpu"] == 2000 + 8000 + 150


def test_a_bound_pod_whose_devices_count_less_makes_room() -> None:
    before, after = pod(STATUS, nodeName="n1"), pod(STATUS[1:], nodeName="n1")
    assert shrinks(before, after)
    assert not shrinks(after, before)


def test_a_list_without_end_costs_a_bounded_time() -> None:
    many = [{**STATUS[0], "mapping": STATUS[0]["mapping"] * 5_000}] * 100
    assert dict(needs_of(pod(many)).amounts)["cpu"] == 500 + 64 * 32 * 8000
