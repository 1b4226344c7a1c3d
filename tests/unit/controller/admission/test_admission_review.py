"""What the webhooks answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.admission.installed_kinds import installed_kinds
from controller.admission.review import (
    Judgement,
    gate,
    judge,
    read_review,
    refuse_capacity,
    write_review,
)
from dra_driver.api.names import (
    ALLOCATION_GATE,
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
)
from dra_driver.api.own.kinds import BackendParameters, kinds_by_name
from dra_driver.api.server.admission import AdmissionRequest
from dra_driver.cel import compile_selector
from dra_driver.errors import DecodeError

OURS, OTHER = "gpu.dra-driver.dev", "gpu.example.com"
GOOD = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}},
}
BAD = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "Never", "mps": {"activeThreadPercentage": 101}},
    "surprise": 1,
}
REQUESTS = {
    "v1": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}],
    "v1beta2": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}],
    "v1beta1": [{"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}],
}


def entry(driver: str, parameters: object) -> dict[str, Any]:
    return {"requests": ["r"], "opaque": {"driver": driver, "parameters": parameters}}


def wrap(kind: str, version: str, config: object) -> dict[str, Any]:
    devices = {"requests": REQUESTS[version], "config": config}
    spec = {
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": devices}},
        "DeviceClass": {"selectors": [{"cel": {"expression": "true"}}], "config": config},
    }[kind]
    api = f"resource.k8s.io/{version}"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "namespace": "ns"}, "spec": spec}


def review(
    kind: str,
    version: str,
    object_: object,
    old: object = None,
    operation: str = "CREATE",
    group: str = "resource.k8s.io",
) -> bytes:
    request = {
        "uid": "705ab4f5",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": "whatever"},
        "operation": operation,
        "userInfo": {"username": "someone"},
        "object": object_,
        "oldObject": old,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


def answer(
    body: bytes, decide: Callable[[AdmissionRequest], Judgement] = lambda request: judge(request, {OURS})
) -> dict[str, Any]:
    judgement = decide(read_review(body))
    document = json.loads(write_review(judgement.response))
    assert document["apiVersion"] == "admission.k8s.io/v1"
    assert document["kind"] == "AdmissionReview"
    assert document["response"]["uid"] == "705ab4f5"
    response: dict[str, Any] = document["response"]
    return response


EVERY = [(k, v) for k in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass") for v in REQUESTS]
PATHS = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}


@pytest.mark.parametrize(("kind", "version"), EVERY)
def test_a_claim_that_asks_for_passthrough_itself_is_warned(kind: str, version: str) -> None:
    bare = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "driver": "vfio-pci"}
    config = [entry(OTHER, bare), entry(OURS, GOOD), entry(OURS, bare), entry(OURS, bare)]
    response = answer(review(kind, version, wrap(kind, version, config)))
    assert response["allowed"] is True
    warnings = response.get("warnings", [])
    if kind == "DeviceClass":
        assert warnings == []
        return
    (warning,) = warnings
    assert warning.startswith(
        f"{PATHS[kind]}[2].opaque.parameters: passthrough needs a DeviceClass that requests it"
    )
    # The API server cuts off what is longer.
    assert len(warning) <= 256


@pytest.mark.parametrize(("kind", "version"), EVERY)
def test_every_finding_comes_at_once_with_its_path(kind: str, version: str) -> None:
    config = [entry(OTHER, BAD), entry(OURS, GOOD), entry(OURS, BAD), entry(OURS, {"kind": "What"})]
    response = answer(review(kind, version, wrap(kind, version, config)))
    assert response["allowed"] is False
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    causes = response["status"]["details"]["causes"]
    at = PATHS[kind]
    assert [c["field"] for c in causes] == [f"{at}[2].opaque.parameters"] * 4 + [f"{at}[3].opaque.parameters"]
    text = response["status"]["message"]
    for part in ("sharing.strategy", "'Never'", "activeThreadPercentage", "101", "surprise", "'What'"):
        assert part in text


@pytest.mark.parametrize(("kind", "version"), EVERY)
def test_good_parameters_and_those_of_others_pass(kind: str, version: str) -> None:
    for config in ([], None, [entry(OURS, GOOD), entry(OTHER, BAD)], [{"requests": ["r"]}]):
        assert answer(review(kind, version, wrap(kind, version, config))) == {
            "uid": "705ab4f5",
            "allowed": True,
        }


def test_an_update_answers_for_what_it_changes_only() -> None:
    old = wrap("DeviceClass", "v1", [entry(OURS, BAD)])
    same = {**old, "metadata": {"name": "x", "labels": {"new": "label"}}}
    assert answer(review("DeviceClass", "v1", same, old, "UPDATE"))["allowed"] is True
    more = wrap("DeviceClass", "v1", [entry(OURS, BAD), entry(OURS, {"kind": "Other"})])
    causes = answer(review("DeviceClass", "v1", more, old, "UPDATE"))["status"]["details"]["causes"]
    assert [c["field"] for c in causes] == ["spec.config[1].opaque.parameters"]


def test_unknown_forms_pass_with_a_warning() -> None:
    odd = {"spec": {"devices": {"config": "not a list"}}}
    for kind, version, object_ in (
        ("ResourceClaim", "v2", wrap("ResourceClaim", "v1", [entry(OURS, BAD)])),
        ("ResourceClaim", "v1", odd),
        ("Pod", "v1", {}),
    ):
        response = answer(review(kind, version, object_))
        assert response["allowed"] is True
        assert "was not checked" in response["warnings"][0]


def test_a_deletion_has_no_object() -> None:
    assert answer(review("ResourceClaim", "v1", None, wrap("ResourceClaim", "v1", []), "DELETE"))["allowed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 1}}',
    ],
)
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        read_review(body)


def test_hostile_objects_are_bounded() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    big = wrap("ResourceClaim", "v1", [entry(OURS, {"x": "y" * 20_000})])
    many = wrap("ResourceClaim", "v1", [entry(OURS, BAD)] * 65)
    assert "10240" in answer(review("ResourceClaim", "v1", big))["status"]["message"]
    assert "was not checked" in answer(review("ResourceClaim", "v1", many))["warnings"][0]
    nested = answer(review("ResourceClaim", "v1", wrap("ResourceClaim", "v1", [entry(OURS, deep)])))
    assert nested["allowed"] is False
    lots = wrap("ResourceClaim", "v1", [entry(OURS, {**GOOD, **{f"f{i}": 1 for i in range(500)}})])
    response = answer(review("ResourceClaim", "v1", lots))
    assert len(response["status"]["details"]["causes"]) == 64
    assert response["status"]["message"].endswith("and 436 more")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(("spec", "devices", "config", "opaque", "driver", "parameters")),
                        inner, max_size=4), max_leaves=20))  # fmt: skip
def test_no_object_makes_it_fail(object_: object) -> None:
    for kind in PATHS:
        assert isinstance(answer(review(kind, "v1", object_))["allowed"], bool)
    assert answer(review("Pod", "v1", object_, group=""), gate)["allowed"] is True


def pod(**spec: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


CLAIMS = [{"name": "gpu", "resourceClaimName": "c"}]


def patched(object_: object, operation: str = "CREATE") -> object:
    response = answer(review("Pod", "v1", object_, operation=operation, group=""), gate)
    assert response["allowed"] is True
    if "patch" not in response:
        return None
    assert response["patchType"] == "JSONPatch"
    return json.loads(base64.b64decode(response["patch"]))


def test_pods_with_claims_get_the_gate() -> None:
    gate_ = {"name": ALLOCATION_GATE}
    whole = [{"op": "add", "path": "/spec/schedulingGates", "value": [gate_]}]
    assert patched(pod(resourceClaims=CLAIMS)) == whole
    assert patched(pod(resourceClaims=CLAIMS, schedulingGates=[])) == whole
    assert patched(pod(resourceClaims=CLAIMS, schedulingGates=[{"name": "a.b/c"}])) == [
        {"op": "add", "path": "/spec/schedulingGates/-", "value": gate_}
    ]


def test_other_pods_are_left_alone() -> None:
    objects: tuple[object, ...] = (
        pod(),
        pod(resourceClaims=[]),
        pod(resourceClaims=CLAIMS, nodeName="n"),
        pod(resourceClaims=CLAIMS, schedulingGates=[{"name": ALLOCATION_GATE}]),
        None,
        {"spec": []},
    )
    for object_ in objects:
        assert patched(object_) is None
    assert patched(pod(resourceClaims=CLAIMS), "UPDATE") is None


def refused_capacity(kind: str, requests: object) -> dict[str, Any]:
    devices = {"devices": {"requests": requests}}
    spec = {"spec": devices} if kind == "ResourceClaimTemplate" else devices
    body = review(kind, "v1", {"metadata": {"name": "x"}, "spec": spec})
    response = answer(body, lambda request: refuse_capacity(request, OURS, kept=False))
    assert not response["allowed"]
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    return {c["field"]: c["message"] for c in response["status"]["details"]["causes"]}


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (32, "32 means 32 bytes, which every device with memory has; did you mean 32Gi?"),
        ("80", "80 means 80 bytes, which every device with memory has; did you mean 80Gi?"),
        ("32k", "32k is less than 1Mi, which every device with memory has; check the suffix, such as Gi"),
        ("32Gi", ""),
        ("1Mi", ""),
        ("much", ""),
    ],
)
@pytest.mark.parametrize("name", ["memory", "gpu.dra-driver.dev/memory"])
def test_memory_without_a_unit_is_warned_about(name: str, amount: object, said: str) -> None:
    asked = {"deviceClassName": "gpu", "capacity": {"requests": {"cores": 5, name: amount}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}
    body = review("ResourceClaim", "v1", {"metadata": {"name": "x"}, "spec": spec})
    response = answer(body, lambda request: refuse_capacity(request, OURS, kept=True))
    assert response["allowed"]
    path = f"spec.devices.requests[0].exactly.capacity.requests[{name}]"
    assert response.get("warnings", []) == [f"{path}: {said}"] * bool(said)


def at_least(domain: str, name: str, amount: str) -> str:
    capacity = f'device.capacity["{domain}"].{name}'
    return f'has({capacity}) && {capacity}.compareTo(quantity("{amount}")) >= 0'


@pytest.mark.parametrize(
    ("kind", "path"), [("ResourceClaim", "spec"), ("ResourceClaimTemplate", "spec.spec")]
)
def test_capacity_that_would_be_dropped_is_refused_with_the_selector_to_write(kind: str, path: str) -> None:
    capacity = {"requests": {"memory": "32Gi", "rdma.dra-driver.dev/bandwidth": 5}}
    big = {"name": "big", "deviceClassName": "gpu", "capacity": capacity}
    found = refused_capacity(
        kind,
        [
            {"name": "any", "exactly": {"deviceClassName": "gpu", "capacity": None}},
            {
                "name": "gpu",
                "exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "8Gi"}}},
            },
            {"name": "either", "firstAvailable": [{"name": "small"}, big]},
        ],
    )
    assert list(found) == [
        f"{path}.devices.requests[1].exactly.capacity",
        f"{path}.devices.requests[2].firstAvailable[1].capacity",
    ]
    one, several = found.values()
    assert one.startswith("capacity is dropped by this API server")
    assert one.endswith(f"instead: {at_least(OURS, 'memory', '8Gi')}")
    both = f"{at_least(OURS, 'memory', '32Gi')} && {at_least('rdma.dra-driver.dev', 'bandwidth', '5')}"
    assert several.endswith(f"instead: {both}")
    for text in found.values():
        compile_selector(text.split("instead: ")[1])


@pytest.mark.parametrize(
    "capacity",
    [
        {},
        {"requests": {}},
        {"requests": None},
        {"requests": {"memory": []}},
        {"requests": {"memory": "much"}},
        {"requests": {'x"] || true || device.capacity["y': "1"}},
        {"requests": {f"c{i}": "1" for i in range(5000)}},
        {"requests": 5},
    ],
)
def test_what_a_stranger_asks_for_is_refused_all_the_same(capacity: object) -> None:
    found = refused_capacity("ResourceClaim", [{"name": "r", "exactly": {"capacity": capacity}}] * 200)
    assert 1 <= len(found) <= 64
    assert all(len(text) <= 512 and "true" not in text for text in found.values())


@pytest.mark.parametrize("kind", ["Pod", "ResourceClaim", "ResourceClaimTemplate"])
def test_labels_that_make_no_group_are_refused(kind: str) -> None:
    metadata = {
        "labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "8", GROUP_MIN_LABEL: "9"},
        "annotations": {GROUP_DOMAIN_ANNOTATION: "rack*", GROUP_BY_ANNOTATION: "a=b"},
    }
    body: dict[str, Any] = {"metadata": metadata, "spec": {}}
    path, group = "metadata", "resource.k8s.io"
    if kind == "ResourceClaimTemplate":
        body, path = {"metadata": {}, "spec": {"metadata": metadata}}, "spec.metadata"
    if kind == "Pod":
        group = ""
    response = answer(review(kind, "v1", body, group=group))
    assert not response["allowed"]
    message = response["status"]["message"]
    assert f"{path}.labels[{GROUP_MIN_LABEL}]: {GROUP_MIN_LABEL} is '9', expected 1 to 8" in message
    assert f"{path}.annotations[{GROUP_DOMAIN_ANNOTATION}]: " in message
    assert f"{path}.annotations[{GROUP_BY_ANNOTATION}]: " in message
    assert answer(review(kind, "v1", body, operation="UPDATE", group=group))["allowed"]


def test_pods_of_groups_that_make_sense_are_allowed() -> None:
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "8", GROUP_MIN_LABEL: "4"}
    response = answer(review("Pod", "v1", {"metadata": {"labels": labels}}, group=""))
    assert response["allowed"]
    assert not response.get("warnings")


# --- kinds of third parties ---

NPU = {"apiVersion": "acme.example/v1", "kind": "NpuConfig"}


class NpuConfig(BackendParameters, frozen=True):
    API_VERSION: ClassVar[str] = "acme.example/v1"

    watts: Annotated[int, msgspec.Meta(ge=50)]


def judged(parameters: dict[str, Any], *, known: bool = True) -> Judgement:
    body = review("ResourceClaim", "v1", wrap("ResourceClaim", "v1", [entry(OTHER, parameters)]))
    kinds = kinds_by_name([NpuConfig]) if known else {}
    return judge(read_review(body), {OURS, OTHER}, kinds=kinds, others={OTHER})


def test_a_kind_of_a_third_party_is_checked_where_its_package_is_installed() -> None:
    assert judged({**NPU, "watts": 60}).outcome == "allowed"
    refused = judged({**NPU, "watts": 6, "volts": 1})
    assert refused.outcome == "refused"
    assert refused.response.status is not None
    assert "NpuConfig: volts: unknown field" in refused.response.status.message
    assert "NpuConfig: watts: expected int >= 50" in refused.response.status.message


def test_a_kind_that_is_not_installed_here_is_left_to_the_node() -> None:
    unknown = judged({**NPU, "watts": 6}, known=False)
    assert unknown.outcome == "allowed"
    assert "this controller does not know the kind" in unknown.response.warnings[0]
    # But not what claims to be of ours, and not for the drivers whose kinds are all known.
    assert judged({**BAD}, known=False).outcome == "refused"
    body = review("ResourceClaim", "v1", wrap("ResourceClaim", "v1", [entry(OURS, NPU)]))
    assert judge(read_review(body), {OURS, OTHER}, others={OTHER}).outcome == "refused"


def test_what_installed_drivers_bring_is_found_and_what_is_broken_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_kinds.py").write_text(
        "from typing import ClassVar\nfrom dra_driver import sdk\n"
        "class Good(sdk.Parameters, frozen=True):\n    API_VERSION: ClassVar[str] = 'acme.example/v1'\n"
        "GOOD = (Good,)\nBAD = (int,)\n"
    )
    info = tmp_path / "acme_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_kinds\nVersion: 1.0\n")
    text = "good = acme_kinds:GOOD\nbad = acme_kinds:BAD\ngone = acme_kinds:GONE\n"
    (info / "entry_points.txt").write_text(f"[dra_driver.parameters]\n{text}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(installed_kinds()) == [("acme.example/v1", "Good")]
