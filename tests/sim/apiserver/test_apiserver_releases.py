"""The API of Kubernetes 1.37: its fields behind their gates, and its kinds.

No server of 1.37 was asked: the fields are those of the client's models, the rules those of the API's
descriptions.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_client import CLAIMS, MERGE, SLICES, Client, Raw, causes, resource_slice, run
from kubernetes.client import models

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver import RELEASES, ApiServer
from dra_driver.sim.apiserver.objects import gates
from dra_driver.sim.apiserver.objects.fields import ListType, MapType, Struct, Type, struct_type
from dra_driver.sim.apiserver.objects.kinds import Kinds
from dra_driver.sim.apiserver.objects.releases import served

NEW = "1.37"
GOLDEN = Path(__file__).parents[2] / "golden" / "apiserver" / "fields-1.37.yaml"
CASES = yaml.safe_load(GOLDEN.read_text())
NAMES = [f"{c['resource']}: {c['path'][-1]} {i}" for i, c in enumerate(CASES)]
SCHEDULING = "/apis/scheduling.k8s.io/v1beta1/namespaces/default"
PATHS = {
    "pods": "/api/v1/namespaces/default/pods",
    "jobs": "/apis/batch/v1/namespaces/default/jobs",
    "resourceclaims": CLAIMS,
    "resourceclaimtemplates": CLAIMS.replace("claims", "claimtemplates"),
    "resourceslices": SLICES,
    "podgroups": f"{SCHEDULING}/podgroups",
    "workloads": f"{SCHEDULING}/workloads",
}
RULES = "/apis/resource.k8s.io/{}/devicetaintrules"


def set_in(raw: Raw, path: list[Any], value: Any) -> Raw:
    changed = copy.deepcopy(raw)
    holder: Any = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return changed


def get_in(raw: Raw, path: list[Any]) -> Any:
    found: Any = raw
    for step in path:
        if isinstance(found, dict) and step not in found:
            return None
        found = found[step]
    return found


async def write(client: Client, case: Raw, value: Any, *, strict: bool = False) -> tuple[int, Any]:
    """Create the object of a case with a value; of a status, write the status of the created object."""
    path, body = PATHS[case["resource"]], copy.deepcopy(case["object"])
    query = "?fieldValidation=Strict" if strict else ""
    if "status" not in case:
        return await client.call("POST", path + query, set_in(body, case["path"], value))
    made = await client.create(path, body)
    changed = set_in({**made, "status": {**made.get("status", {}), **case["status"]}}, case["path"], value)
    return await client.call("PUT", f"{path}/{made['metadata']['name']}/status{query}", changed)


def on(case: Raw) -> list[str]:
    return sorted({case["gate"], "GenericWorkload"})


@pytest.mark.parametrize("case", [c for c in CASES if "value" in c], ids=lambda c: f"{c['path'][-1]}")
def test_a_field_is_kept_with_its_gate_dropped_without_and_unknown_before(case: Raw) -> None:
    async def kept(client: Client) -> None:
        code, answer = await write(client, case, case["value"], strict=True)
        assert code in (200, 201), answer
        found = get_in(answer, case["path"])
        assert found == case["value"] or case["resource"] == "workloads", found
        _, stored = await client.get(f"{PATHS[case['resource']]}/{answer['metadata']['name']}")
        assert get_in(stored, case["path"]) == found

    async def dropped(client: Client) -> None:
        code, answer = await write(client, case, case["value"], strict=True)
        if wrong := case.get("refused_without_gate"):
            assert sorted(f"{f} {r}" for f, r in causes(answer)) == wrong
            return
        assert code in (200, 201), answer
        assert get_in(answer, case["path"]) is None

    async def unknown(client: Client) -> None:
        code, answer = await write(client, case, case["value"])
        assert code in (200, 201), answer
        assert get_in(answer, case["path"]) is None
        assert [w for w in client.warnings if case["path"][-1] in w and "unknown field" in w], client.warnings

    run(kept, kubernetes=NEW, gates=on(case))
    run(dropped, kubernetes=NEW, gates=[g for g in RELEASES[NEW] if g != case["gate"]])
    if case["resource"] not in ("podgroups", "workloads", "pods"):
        run(unknown)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_field_is_validated(case: Raw) -> None:
    async def refused(client: Client) -> None:
        for i, wrong in enumerate(case.get("refused", ())):
            renamed = set_in(case["object"], ["metadata", "name"], f"n{i}")
            code, answer = await write(client, {**case, "object": renamed}, wrong["value"])
            assert code == 422, wrong
            assert sorted(f"{f} {r}" for f, r in causes(answer)) == wrong["causes"]

    run(refused, kubernetes=NEW, gates=on(case))


def test_every_gate_has_a_case_or_a_kind() -> None:
    assert {c["gate"] for c in CASES} | {"DRAListTypeAttributes", "GenericWorkload"} == set(RELEASES[NEW])


MODELS = {"resource": "V1", "schedulingv1beta1": "V1beta1", "schedulingv1alpha3": "V1alpha3"}
# Structs that stand for several models, or for an empty one.
OTHER_NAMES = {"SchedulingConstraints": "PodGroupSchedulingConstraints", "Nothing": "", "ResourceClaim": ""}


def structs(type_: Type, found: dict[str, Struct]) -> dict[str, Struct]:
    while isinstance(type_, ListType | MapType):
        type_ = type_.item
    if isinstance(type_, Struct) and type_.name not in found:
        found[type_.name] = type_
        for field in type_.fields.values():
            structs(field.type, found)
    return found


def test_the_fields_are_those_of_the_client() -> None:
    found: dict[str, Struct] = {}
    for kind in Kinds(served(NEW, RELEASES[NEW])):
        structs(kind.type, found)
    compared = 0
    for name, struct in found.items():
        package, _, short = name.partition(".")
        wanted = OTHER_NAMES.get(short, short)
        if package in MODELS and wanted:
            model = getattr(models, MODELS[package] + wanted)
            ours, theirs = set(struct.fields), set(model.attribute_map.values())
            assert ours - {"kind"} == theirs - {"apiVersion", "kind"}, name
            compared += 1
    assert compared > 60


def test_a_list_of_derived_attributes_has_an_end() -> None:
    case = CASES[0]

    async def scenario(client: Client) -> None:
        many = [{"name": "derived/numa", "expression": "1"}] * 33
        code, answer = await write(client, case, many)
        path = "spec.devices.requests[0].exactly.derivedAttributes"
        assert (code, causes(answer)) == (422, {(path, "TooMany")})

    run(scenario, kubernetes=NEW, gates=on(case))


def test_what_a_stored_object_has_stays_where_the_gate_is_turned_off(tmp_path: Path) -> None:
    skipped = {"skipNodeOperations": ["*"]}

    def body(name: str) -> Raw:
        made = resource_slice(name)
        return {**made, "spec": {**made["spec"], **skipped}}

    async def store(client: Client) -> None:
        await client.create(SLICES, body("old"))

    async def change(client: Client) -> None:
        wanted = {"spec": {"skipNodeOperations": ["NodeUnprepareResources"]}}
        code, changed = await client.patch(f"{SLICES}/old", wanted)
        assert (code, changed["spec"]["skipNodeOperations"]) == (200, ["NodeUnprepareResources"])
        groups = {"spec": {"partitionTypeAttribute": "gpu.example.com/a"}}
        code, changed = await client.patch(f"{SLICES}/old", groups)
        assert (code, "partitionTypeAttribute" in changed["spec"]) == (200, False), "of another gate"
        assert "skipNodeOperations" not in (await client.create(SLICES, body("new")))["spec"]
        code, changed = await client.patch(f"{SLICES}/old", {"spec": {"skipNodeOperations": None}}, MERGE)
        assert (code, "skipNodeOperations" in changed["spec"]) == (200, False)
        code, changed = await client.patch(f"{SLICES}/old", {"spec": skipped}, MERGE)
        assert (code, "skipNodeOperations" in changed["spec"]) == (200, False), "no longer stored"

    run(store, kubernetes=NEW, gates=["DRAOptionalNodeOperations"], data=tmp_path / "data")
    run(change, kubernetes=NEW, data=tmp_path / "data")


def test_types_that_refer_to_themselves_are_searched_for_gates() -> None:
    inner = {"name": "b", "preemptionPolicy": "Never"}
    templates = [{"name": "a", "compositePodGroupTemplates": [{"name": "c", "podGroupTemplates": [inner]}]}]
    raw = {"spec": {"compositePodGroupTemplates": templates}}
    gates.drop_disabled(struct_type("schedulingv1beta1.Workload", NEW), raw, None, {"CompositePodGroup"})
    assert inner == {"name": "b"}


def test_the_server_says_which_release_it_is() -> None:
    async def new(client: Client) -> None:
        _, version = await client.get("/version")
        assert (version["major"], version["minor"], version["gitVersion"][:7]) == ("1", "37", "v1.37.0")
        _, document = await client.get("/openapi/v3/apis/resource.k8s.io/v1")
        schemas = document["components"]["schemas"]
        assert "derivedAttributes" in schemas["io.k8s.api.resource.ExactDeviceRequest"]["properties"]
        assert "nodeAllocatableResourceMappings" not in schemas["io.k8s.api.resource.Device"]["properties"]

    async def old(client: Client) -> None:
        _, version = await client.get("/version")
        assert version["minor"] == "36"
        _, document = await client.get("/openapi/v3/apis/resource.k8s.io/v1")
        schemas = document["components"]["schemas"]
        assert "derivedAttributes" not in schemas["io.k8s.api.resource.ExactDeviceRequest"]["properties"]

    run(new, kubernetes=NEW)
    run(old)


def test_taint_rules_are_one_object_in_v1_and_v1beta2() -> None:
    async def scenario(client: Client) -> None:
        taint = {"key": "example.com/sick", "effect": "NoSchedule"}
        rule = {"metadata": {"name": "r"}, "spec": {"taint": taint}}
        made = await client.create(RULES.format("v1"), rule)
        assert made["apiVersion"] == "resource.k8s.io/v1"
        assert made["spec"]["taint"]["timeAdded"]
        assert not client.warnings
        _, old = await client.get(f"{RULES.format('v1beta2')}/r")
        assert (old["apiVersion"], old["spec"]) == ("resource.k8s.io/v1beta2", made["spec"])
        assert old["metadata"]["uid"] == made["metadata"]["uid"]
        _, listed = await client.get(RULES.format("v1"))
        assert (listed["kind"], len(listed["items"])) == ("DeviceTaintRuleList", 1)
        code, changed = await client.patch(
            f"{RULES.format('v1')}/r", {"spec": {"taint": {"effect": "NoExecute"}}}
        )
        assert (code, changed["metadata"]["generation"]) == (200, 2)
        code, _ = await client.delete(f"{RULES.format('v1')}/r")
        assert code == 200

    async def before(client: Client) -> None:
        code, _ = await client.get(RULES.format("v1"))
        assert code == 404

    run(scenario, kubernetes=NEW)
    run(before)


def test_a_rule_that_1_36_stored_is_served_in_both_versions(tmp_path: Path) -> None:
    async def store(client: Client) -> None:
        taint = {"key": "example.com/sick", "effect": "NoSchedule"}
        await client.create(RULES.format("v1beta2"), {"metadata": {"name": "r"}, "spec": {"taint": taint}})

    async def read(client: Client) -> None:
        _, found = await client.get(f"{RULES.format('v1')}/r")
        assert found["apiVersion"] == "resource.k8s.io/v1"
        code, _ = await client.patch(f"{RULES.format('v1')}/r", {"metadata": {"labels": {"a": "b"}}})
        assert code == 200

    async def again(client: Client) -> None:
        _, found = await client.get(f"{RULES.format('v1beta2')}/r")
        assert (found["apiVersion"], found["metadata"]["labels"]) == ("resource.k8s.io/v1beta2", {"a": "b"})

    run(store, data=tmp_path / "data")
    run(read, kubernetes=NEW, data=tmp_path / "data")
    run(again, data=tmp_path / "data")


async def served_kinds(client: Client, group: str, version: str) -> set[str]:
    code, found = await client.get(f"/apis/{group}/{version}")
    return {r["name"] for r in found["resources"] if "/" not in r["name"]} if code == 200 else set()


def test_the_kinds_of_groups_follow_their_gates() -> None:
    async def plain(client: Client) -> None:
        for version in ("v1alpha2", "v1alpha3", "v1beta1"):
            assert await served_kinds(client, "scheduling.k8s.io", version) == set()

    async def workloads(client: Client) -> None:
        assert await served_kinds(client, "scheduling.k8s.io", "v1alpha2") == set()
        for version in ("v1alpha3", "v1beta1"):
            assert await served_kinds(client, "scheduling.k8s.io", version) == {"podgroups", "workloads"}

    async def composites(client: Client) -> None:
        found = await served_kinds(client, "scheduling.k8s.io", "v1alpha3")
        assert found == {"podgroups", "workloads", "compositepodgroups"}
        assert await served_kinds(client, "scheduling.k8s.io", "v1beta1") == {"podgroups", "workloads"}

    async def before(client: Client) -> None:
        assert await served_kinds(client, "scheduling.k8s.io", "v1alpha2") == {"podgroups"}
        assert await served_kinds(client, "scheduling.k8s.io", "v1beta1") == set()

    run(plain, kubernetes=NEW)
    run(workloads, kubernetes=NEW, gates=["GenericWorkload"])
    run(composites, kubernetes=NEW, gates=["GenericWorkload", "CompositePodGroup"])
    run(before)


def test_of_a_group_the_least_number_of_pods_may_change_and_nothing_else() -> None:
    async def scenario(client: Client) -> None:
        gang = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 5, "disruptionMode": {"all": {}}}
        made = await client.create(PATHS["podgroups"], {"metadata": {"name": "g"}, "spec": gang})
        assert made["spec"] == gang
        url = f"{PATHS['podgroups']}/g"
        for version in ("v1beta1", "v1alpha3"):
            patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": len(version)}}}}
            code, changed = await client.patch(url.replace("v1beta1", version), patch)
            assert (code, changed["spec"]["schedulingPolicy"]) == (200, patch["spec"]["schedulingPolicy"])
            assert changed["apiVersion"] == f"scheduling.k8s.io/{version}"
        assert changed["metadata"]["generation"] == 3
        wrong: dict[str, Any]
        for wrong in (
            {"priority": 6},
            {"schedulingPolicy": {"gang": None, "basic": {}}},
            {"disruptionMode": {"all": None, "single": {}}},
        ):
            code, answer = await client.patch(url, {"spec": wrong})
            assert (code, causes(answer)) == (422, {("spec", "Invalid")}), wrong
        none = {"spec": {"schedulingPolicy": {"gang": {"minCount": 0}}}}
        code, answer = await client.patch(url, none)
        assert (code, causes(answer)) == (422, {("spec.schedulingPolicy.gang.minCount", "Invalid")})

    run(scenario, kubernetes=NEW, gates=["GenericWorkload"])


WRONG_GROUPS: dict[str, tuple[Raw, str]] = {
    "no policy": ({"schedulingPolicy": {}}, "spec.schedulingPolicy Invalid"),
    "both policies": (
        {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}},
        "spec.schedulingPolicy Invalid",
    ),
    "both modes": ({"disruptionMode": {"single": {}, "all": {}}}, "spec.disruptionMode Invalid"),
    "too high a priority": ({"priority": 1_000_000_001}, "spec.priority Invalid"),
    "half a reference": ({"workloadRef": {"workloadName": "w"}}, "spec.workloadRef.templateName Required"),
}


@pytest.mark.parametrize("name", WRONG_GROUPS)
def test_groups_are_validated(name: str) -> None:
    spec, cause = WRONG_GROUPS[name]

    async def scenario(client: Client) -> None:
        body = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}, **spec}}
        code, answer = await client.call("POST", PATHS["podgroups"], body)
        assert (code, [f"{f} {r}" for f, r in causes(answer)]) == (422, [cause])

    run(scenario, kubernetes=NEW, gates=["GenericWorkload"])


def test_pods_of_a_group_are_disrupted_one_by_one_by_default() -> None:
    async def scenario(client: Client) -> None:
        body = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}}
        made = await client.create(PATHS["podgroups"], body)
        assert made["spec"]["disruptionMode"] == {"single": {}}

    run(scenario, kubernetes=NEW, gates=["GenericWorkload"])


def test_preparing_can_be_skipped_with_all_that_follows() -> None:
    async def scenario(client: Client) -> None:
        made = resource_slice("s")
        made["spec"]["skipNodeOperations"] = ["NodePrepareResources", "*"]
        assert (await client.create(SLICES, made))["spec"]["skipNodeOperations"] == [
            "NodePrepareResources",
            "*",
        ]

    run(scenario, kubernetes=NEW, gates=["DRAOptionalNodeOperations"])


def test_composite_groups_need_a_workload_and_never_change() -> None:
    url = "/apis/scheduling.k8s.io/v1alpha3/namespaces/default/compositepodgroups"

    async def scenario(client: Client) -> None:
        spec: Raw = {"schedulingPolicy": {"gang": {"minGroupCount": 2}}}
        code, answer = await client.call("POST", url, {"metadata": {"name": "c"}, "spec": spec})
        assert (code, causes(answer)) == (422, {("spec.workloadRef", "Required")})
        spec["workloadRef"] = {"workloadName": "w", "templateName": "t"}
        made = await client.create(url, {"metadata": {"name": "c"}, "spec": spec})
        assert made["spec"] == {**spec, "disruptionMode": {"single": {}}}
        change = {"spec": {"schedulingPolicy": {"gang": {"minGroupCount": 3}}}}
        code, answer = await client.patch(f"{url}/c", change)
        assert (code, causes(answer)) == (422, {("spec", "Invalid")})

    run(scenario, kubernetes=NEW, gates=["GenericWorkload", "CompositePodGroup"])


def test_workloads_keep_their_templates() -> None:
    async def scenario(client: Client) -> None:
        template = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}
        spec = {"podGroupTemplates": [template]}
        await client.create(PATHS["workloads"], {"metadata": {"name": "w"}, "spec": spec})
        url = f"{PATHS['workloads']}/w"
        more = {"podGroupTemplates": [{**template, "schedulingPolicy": {"gang": {"minCount": 3}}}]}
        code, changed = await client.patch(url, {"spec": more})
        assert (code, changed["spec"]) == (200, more)
        code, answer = await client.patch(
            url, {"spec": {"podGroupTemplates": [template, {**template, "name": "u"}]}}
        )
        assert (code, causes(answer)) == (422, {("spec", "Invalid")})
        wrong = {"spec": {"podGroupTemplates": [template, template]}, "metadata": {"name": "x"}}
        code, answer = await client.call("POST", PATHS["workloads"], wrong)
        assert (code, causes(answer)) == (422, {("spec.podGroupTemplates[1]", "Duplicate")})

    run(scenario, kubernetes=NEW, gates=["GenericWorkload"])


def nested(levels: int) -> Raw:
    """A composite template with so many levels of groups below the Workload."""
    made: Raw = {"name": "t", "schedulingPolicy": {"basic": {}}}
    for _ in range(levels - 1):
        kind = "podGroupTemplates" if "podGroupTemplates" not in str(made) else "compositePodGroupTemplates"
        made = {"name": "t", "schedulingPolicy": {"gang": {"minGroupCount": 1}}, kind: [made]}
    return made


def many(number: int) -> list[Raw]:
    return [{"name": f"t{i}", "schedulingPolicy": {"basic": {}}} for i in range(number)]


WORKLOADS: dict[str, tuple[Raw, list[str]]] = {
    "eight templates": ({"podGroupTemplates": many(8)}, []),
    "nine templates": ({"podGroupTemplates": many(9)}, ["spec.podGroupTemplates TooMany"]),
    "four levels": ({"compositePodGroupTemplates": [nested(4)]}, []),
    "five levels": (
        {"compositePodGroupTemplates": [nested(5)]},
        [f"spec{'.compositePodGroupTemplates[0]' * 4} Invalid"],
    ),
    "both kinds": (
        {"podGroupTemplates": many(1), "compositePodGroupTemplates": [nested(2)]},
        ["spec Invalid"],
    ),
    "no template": ({}, ["spec Invalid"]),
    "half a controller": (
        {"podGroupTemplates": many(1), "controllerRef": {"kind": "Job"}},
        ["spec.controllerRef.name Required"],
    ),
    "no name": (
        {"podGroupTemplates": [{"schedulingPolicy": {"basic": {}}}]},
        ["spec.podGroupTemplates[0].name Required"],
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_validated(name: str) -> None:
    spec, expected = WORKLOADS[name]

    async def scenario(client: Client) -> None:
        body = {"metadata": {"name": "w"}, "spec": spec}
        code, answer = await client.call("POST", PATHS["workloads"], body)
        assert ([f"{f} {r}" for f, r in causes(answer)], code) == (expected, 422 if expected else 201)

    run(scenario, kubernetes=NEW, gates=["GenericWorkload", "CompositePodGroup"])


@pytest.mark.parametrize("levels", [50, 100, 200, 400, 5000])
def test_types_that_refer_to_themselves_have_an_end(levels: int) -> None:
    template = b'{"name":"t","schedulingPolicy":{"basic":{}},"compositePodGroupTemplates":['
    spec = template * levels + b"]}" * levels
    body = b'{"metadata":{"name":"w"},"spec":{"compositePodGroupTemplates":[%s]}}' % spec

    async def scenario(client: Client) -> None:
        code, answer = await client.call("POST", PATHS["workloads"], body)
        assert code in (400, 422), answer
        if code == 400:
            assert "nested too deeply" in answer["message"] or "depth" in answer["message"]
        good = {"metadata": {"name": "g"}, "spec": {"podGroupTemplates": many(1)}}
        await client.create(PATHS["workloads"], good)
        patch = b'{"spec":{"compositePodGroupTemplates":[%s]}}' % spec
        code, answer = await client.call("PATCH", f"{PATHS['workloads']}/g", patch, MERGE)
        assert code in (400, 422), answer

    run(scenario, kubernetes=NEW, gates=["GenericWorkload", "CompositePodGroup"])


def test_a_group_of_1_36_never_changes() -> None:
    url = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"

    async def scenario(client: Client) -> None:
        gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        await client.create(url, {"metadata": {"name": "g"}, "spec": gang})
        change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
        code, answer = await client.patch(f"{url}/g", change)
        assert (code, causes(answer)) == (422, {("spec", "Invalid")})

    run(scenario)


def test_requests_of_v1beta1_have_the_new_fields() -> None:
    url = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims?fieldValidation=Strict"
    derived = [{"name": "derived/numa", "expression": "1"}]

    async def scenario(client: Client) -> None:
        request = {"name": "r", "deviceClassName": "gpu", "derivedAttributes": derived}
        devices = {"requests": [request], "constraints": [{"matchAttribute": "derived/numa"}]}
        await client.create(url, {"metadata": {"name": "c"}, "spec": {"devices": devices}})
        _, found = await client.get(f"{CLAIMS}/c")
        assert found["spec"]["devices"]["requests"][0]["exactly"]["derivedAttributes"] == derived

    run(scenario, kubernetes=NEW, gates=["DRADerivedAttributes"])


def test_releases_and_gates_that_are_not_known_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Kubernetes '1\.35' cannot be served: give one of 1\.36, 1"
    ):
        ApiServer(kubernetes="1.35")
    with pytest.raises(ConfigurationError) as info:
        ApiServer(gates=["DRADerivedAttributes"])
    assert str(info.value) == (
        "feature gate 'DRADerivedAttributes' cannot be turned on for Kubernetes 1.36 (it is one of "
        "Kubernetes 1.37): give one of DRAListTypeAttributes"
    )
    with pytest.raises(ConfigurationError, match=r"'Nothing' cannot be turned on for Kubernetes 1\.37: give"):
        ApiServer(kubernetes=NEW, gates=["Nothing"])
