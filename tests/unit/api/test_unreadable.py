"""What stands in for a claim that cannot be read: its devices, and nothing that could be acted on."""

from __future__ import annotations

import copy
from typing import Any

import builders
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.unreadable import lenient_metadata, stand_in, unreadable_claim
from dra_driver.errors import DecodeError

PROBLEM = "ResourceClaim: Expected `array`, got `int` - at `$.spec.devices.requests`"
RESULT = {"request": "gpu", "driver": "d", "pool": "p", "device": "gpu-0"}
SHARE = {**RESULT, "device": "gpu-1", "shareID": "s", "consumedCapacity": {"memory": "8Gi"}}
STATUS: dict[str, Any] = {
    "allocation": {
        "devices": {"results": [RESULT, SHARE, {**RESULT, "device": "gpu-2", "adminAccess": True}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": []}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    },
    "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
}


def raw(**status: Any) -> dict[str, Any]:
    body = builders.claim("c", builders.request())
    body["metadata"]["uid"] = "uid-c"
    return {**body, "status": {**copy.deepcopy(STATUS), **status}}


def held(claim: ResourceClaim | None) -> list[str]:
    assert claim is not None
    assert claim.status.allocation is not None
    return [r.device for r in claim.status.allocation.devices.results]


def test_all_of_a_readable_status_is_kept() -> None:
    body = raw()
    claim, whole = stand_in(body, PROBLEM), codec.convert(ResourceClaim, body)
    assert claim is not None
    assert unreadable_claim(claim) == PROBLEM
    assert unreadable_claim(whole) == ""
    assert (claim.key, claim.metadata.uid) == (whole.key, "uid-c")
    assert claim.status.allocation == whole.status.allocation
    assert claim.status.reserved_for[:-1] == whole.status.reserved_for
    # The process that decides gets it as JSON.
    assert codec.decode(ResourceClaim, codec.encode(claim)) == claim


def test_a_device_of_which_only_the_name_can_be_read_is_taken_altogether() -> None:
    body = raw()
    results = body["status"]["allocation"]["devices"]["results"]
    results[1]["consumedCapacity"] = "all of it"
    results[0]["tolerations"] = 5
    results[2]["adminAccess"] = "perhaps"
    body["status"]["allocation"]["nodeSelector"] = []
    body["status"]["reservedFor"] = {"resource": "pods"}
    claim = stand_in(body, PROBLEM)
    assert held(claim) == ["gpu-0", "gpu-1", "gpu-2"]
    assert claim is not None
    assert claim.status.allocation is not None
    _, share, admin = claim.status.allocation.devices.results
    assert (share.share_id, share.consumed_capacity, admin.admin_access) == (None, {}, False)
    assert unreadable_claim(claim) == PROBLEM


def test_admin_access_is_no_use_of_a_device_though_the_rest_cannot_be_read() -> None:
    body = raw()
    body["status"]["allocation"]["devices"]["results"][2]["tolerations"] = 5
    claim = stand_in(body, PROBLEM)
    assert claim is not None
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[2].admin_access is True


@pytest.mark.parametrize(
    "status",
    [
        {"allocation": "yes"},
        {"allocation": {"devices": "all"}},
        {"allocation": {"devices": {"results": {}}}},
        {"allocation": {"devices": {"results": [RESULT, 5]}}},
        {"allocation": {"devices": {"results": [{**RESULT, "device": 5}]}}},
        {"allocation": {"devices": {"results": [{**RESULT, "pool": ""}], "x": 1}}, "devices": 5},
    ],
)
def test_devices_that_are_not_known_are_not_guessed(status: dict[str, Any]) -> None:
    body = raw(**status)
    if status["allocation"] != "yes" and "devices" in status:
        body["status"]["allocation"]["devices"]["results"][0]["request"] = 5
    assert stand_in(body, PROBLEM) is None


def test_nothing_is_taken_where_there_is_no_allocation() -> None:
    for body in (raw(allocation=None), builders.claim("c"), {**builders.claim("c"), "status": None}):
        claim = stand_in(body, PROBLEM)
        assert claim is not None
        assert claim.status.allocation is None
        assert unreadable_claim(claim) == PROBLEM
    assert stand_in({**builders.claim("c"), "status": 5}, PROBLEM) is None
    assert stand_in([], PROBLEM) is not None  # nothing of a claim, which has no name either


def test_metadata_of_another_form_leave_the_names() -> None:
    metadata = {"name": "c", "namespace": 5, "uid": "u", "labels": [], "resourceVersion": "7"}
    found = lenient_metadata({"metadata": metadata})
    assert (found.name, found.namespace, found.uid, found.resource_version) == ("c", "", "u", "7")
    assert lenient_metadata(5).name == lenient_metadata({"metadata": []}).name == ""


VALUES = st.sampled_from([5, "text", [], {}, [5], {"x": 1}, True, None])


@given(st.data())
def test_no_claim_loses_a_device_whatever_is_changed_in_it(data: st.DataObject) -> None:
    """Change any value: either every device whose name is still there is held, or none is guessed."""
    body = raw()

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        keys = (
            list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        )
        return [p for key in keys for p in [(*path, key), *places(value[key], (*path, key))]]

    path = data.draw(st.sampled_from(places(body)))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(VALUES)
    try:
        codec.decode(ResourceClaim, msgspec.json.encode(body))
        return
    except DecodeError:
        pass
    claim = stand_in(body, PROBLEM)
    if path[:4] != ("status", "allocation", "devices", "results") and path != path[:1]:
        lost = path in [("status", "allocation"), ("status", "allocation", "devices")]
        assert claim is None if lost else held(claim) == ["gpu-0", "gpu-1", "gpu-2"]
    elif claim is not None and path[:1] == ("status",) and len(path) == 6 and path[5] != "device":
        assert held(claim) == ["gpu-0", "gpu-1", "gpu-2"]
