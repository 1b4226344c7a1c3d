"""Objects on the embedded API server: creating, replacing, deleting, and what is refused."""

from __future__ import annotations

from apiserver_client import (
    CLAIMS,
    CONFIG_MAPS,
    PODS,
    SLICES,
    Client,
    causes,
    claim,
    config_map,
    pod,
    resource_slice,
    run,
)


def test_a_created_object_has_what_the_server_owns() -> None:
    async def scenario(client: Client) -> None:
        body = config_map("m", a="1")
        body["metadata"]["uid"] = "mine"
        made = await client.create(CONFIG_MAPS, body)
        assert made["metadata"]["uid"] != "mine"
        assert made["metadata"]["namespace"] == "default"
        assert made["metadata"]["creationTimestamp"].endswith("Z")
        assert (await client.get(f"{CONFIG_MAPS}/m"))[1] == made
        code, answer = await client.call("POST", CONFIG_MAPS, body)
        assert (code, answer["reason"]) == (409, "AlreadyExists")

    run(scenario)


def test_generated_names_have_five_random_characters() -> None:
    async def scenario(client: Client) -> None:
        names = set()
        for _ in range(3):
            made = await client.create(CONFIG_MAPS, {"metadata": {"generateName": "g" * 80}})
            names.add(made["metadata"]["name"])
        assert len(names) == 3
        assert {len(n) for n in names} == {63}

    run(scenario)


def test_an_object_in_a_namespace_that_is_not_there() -> None:
    async def scenario(client: Client) -> None:
        code, answer = await client.call("POST", CONFIG_MAPS.replace("default", "nope"), config_map("m"))
        assert (code, answer["details"]) == (404, {"name": "nope", "kind": "namespaces"})
        code, answer = await client.get(CONFIG_MAPS.replace("default", "nope"))
        assert (code, answer["items"]) == (200, [])

    run(scenario)


def test_a_stale_version_is_a_conflict_and_no_version_overwrites() -> None:
    async def scenario(client: Client) -> None:
        first = await client.create(CONFIG_MAPS, config_map("m", a="1"))
        code, second = await client.call("PUT", f"{CONFIG_MAPS}/m", config_map("m", a="2"))
        assert code == 200
        stale = config_map("m", a="3")
        stale["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]
        code, answer = await client.call("PUT", f"{CONFIG_MAPS}/m", stale)
        assert (code, answer["reason"]) == (409, "Conflict")
        assert (await client.get(f"{CONFIG_MAPS}/m"))[1] == second

    run(scenario)


def test_writing_what_is_there_changes_nothing() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(SLICES, resource_slice("s"))
        code, same = await client.call("PUT", f"{SLICES}/s", resource_slice("s"))
        assert (code, same) == (200, made)

    run(scenario)


def test_generation_counts_changes_of_the_spec_where_the_kind_has_one() -> None:
    async def scenario(client: Client) -> None:
        await client.create(SLICES, resource_slice("s"))
        _, labelled = await client.patch(f"{SLICES}/s", {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        _, changed = await client.patch(f"{SLICES}/s", {"spec": {"pool": {"generation": 2}}})
        assert changed["metadata"]["generation"] == 2
        assert "generation" not in (await client.create(CLAIMS, claim("c")))["metadata"]

    run(scenario)


def test_quantities_become_canonical_and_defaults_are_filled_in() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(SLICES, resource_slice("s"))
        assert made["spec"]["devices"][0]["capacity"]["memory"]["value"] == "1Gi"
        made = await client.create(CLAIMS, claim("c"))
        assert made["spec"]["devices"]["requests"][0]["exactly"] == {
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 1,
        }

    run(scenario)


def test_refusals_name_the_fields() -> None:
    async def scenario(client: Client) -> None:
        bad = resource_slice("s")
        bad["spec"]["devices"] = [{"name": "D0", "attributes": {"a-b": {}}}, {"name": "ok"}, {"name": "ok"}]
        del bad["spec"]["nodeName"]
        code, answer = await client.call("POST", SLICES, bad)
        assert code == 422
        assert causes(answer) == {
            ("spec", "Required"),
            ("spec.devices[0].name", "Invalid"),
            ("spec.devices[0].attributes", "Invalid"),
            ("spec.devices[0].attributes[a-b]", "Invalid"),
            ("spec.devices[2]", "Duplicate"),
        }
        code, answer = await client.call("POST", CLAIMS, claim("c", selectors=[{"cel": {"expression": "1"}}]))
        assert causes(answer) == {("spec.devices.requests[0].exactly.selectors[0].cel.expression", "Invalid")}

    run(scenario)


def test_a_claim_s_spec_and_allocation_never_change() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CLAIMS, claim("c"))
        code, answer = await client.call("PUT", f"{CLAIMS}/c", claim("c", count=2))
        assert (code, causes(answer)) == (422, {("spec", "Invalid")})
        result = {"request": "r0", "driver": "gpu.example.com", "pool": "n1", "device": "d0"}
        allocated = {"status": {"allocation": {"devices": {"results": [result]}}}}
        code, _ = await client.patch(f"{CLAIMS}/c/status", allocated)
        assert code == 200
        allocated["status"]["allocation"]["devices"]["results"][0]["device"] = "d1"
        code, answer = await client.patch(f"{CLAIMS}/c/status", allocated)
        assert (code, causes(answer)) == (422, {("status.allocation", "Invalid")})

    run(scenario)


def test_each_endpoint_writes_its_own_part() -> None:
    async def scenario(client: Client) -> None:
        body = claim("c")
        body["status"] = {"allocation": {}}
        made = await client.create(CLAIMS, body)
        assert not made["status"]
        change = {
            "metadata": {"labels": {"x": "y"}},
            "status": {"allocation": {"nodeSelector": None}},
            "spec": {"devices": None},
        }
        code, changed = await client.patch(f"{CLAIMS}/c/status", change)
        assert code == 200
        assert changed["spec"] == made["spec"]
        assert "labels" not in changed["metadata"]
        assert "allocation" in changed["status"]

    run(scenario)


def test_unknown_fields_warn_or_are_refused() -> None:
    async def scenario(client: Client) -> None:
        body = {**config_map("m"), "nonsense": 1}
        code, answer = await client.call("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", body)
        assert code == 400
        assert 'unknown field "nonsense"' in answer["message"]
        made = await client.create(CONFIG_MAPS, body)
        assert "nonsense" not in made
        assert client.warnings == ['299 - "unknown field \\"nonsense\\""']
        twice = b'{"metadata":{"name":"d"},"data":{"a":"1","a":"2"}}'
        await client.call("POST", CONFIG_MAPS, twice)
        assert client.warnings == ['299 - "duplicate field \\"data.a\\""']

    run(scenario)


def test_values_of_another_type_are_refused() -> None:
    async def scenario(client: Client) -> None:
        for data in (b'{"data":{"a":1}}', b'{"data":[]}', b'{"metadata":5}', b"[]", b"", b"{", b'"x"'):
            code, answer = await client.call("POST", CONFIG_MAPS, data)
            assert (code, answer["reason"]) == (400, "BadRequest"), data

    run(scenario)


def test_dry_runs_answer_and_store_nothing() -> None:
    async def scenario(client: Client) -> None:
        code, _ = await client.call("POST", f"{CONFIG_MAPS}?dryRun=All", config_map("m"))
        assert code == 201
        assert (await client.get(f"{CONFIG_MAPS}/m"))[0] == 404
        await client.create(CONFIG_MAPS, config_map("m", a="1"))
        await client.patch(f"{CONFIG_MAPS}/m?dryRun=All", {"data": {"a": "2"}})
        await client.delete(f"{CONFIG_MAPS}/m?dryRun=All")
        assert (await client.get(f"{CONFIG_MAPS}/m"))[1]["data"] == {"a": "1"}

    run(scenario)


def test_finalizers_hold_an_object_until_the_last_one_goes() -> None:
    async def scenario(client: Client) -> None:
        body = claim("c")
        body["metadata"]["finalizers"] = ["example.com/hold"]
        await client.create(CLAIMS, body)
        code, marked = await client.delete(f"{CLAIMS}/c")
        assert code == 200
        assert marked["metadata"]["deletionTimestamp"]
        more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
        code, answer = await client.patch(f"{CLAIMS}/c", more)
        assert (code, causes(answer)) == (422, {("metadata.finalizers", "Forbidden")})
        code, _ = await client.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": None}})
        assert code == 200
        assert (await client.get(f"{CLAIMS}/c"))[0] == 404

    run(scenario)


def test_preconditions_of_a_deletion() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(CONFIG_MAPS, config_map("m"))
        for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
            code, _ = await client.delete(f"{CONFIG_MAPS}/m", {"preconditions": wrong})
            assert code == 409
        code, answer = await client.delete(
            f"{CONFIG_MAPS}/m", {"preconditions": {"uid": made["metadata"]["uid"]}}
        )
        assert (code, answer["status"]) == (200, "Success")

    run(scenario)


def test_a_pod_on_a_node_waits_for_its_kubelet() -> None:
    async def scenario(client: Client) -> None:
        await client.create(PODS, pod("there", nodeName="n1", terminationGracePeriodSeconds=5))
        _, marked = await client.delete(f"{PODS}/there")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 5
        assert (await client.get(f"{PODS}/there"))[0] == 200
        await client.delete(f"{PODS}/there?gracePeriodSeconds=0")
        assert (await client.get(f"{PODS}/there"))[0] == 404
        await client.create(PODS, pod("nowhere"))
        await client.delete(f"{PODS}/nowhere")
        assert (await client.get(f"{PODS}/nowhere"))[0] == 404

    run(scenario)


def test_deleting_a_collection_takes_what_the_selector_matches() -> None:
    async def scenario(client: Client) -> None:
        for name in ("a", "b"):
            body = config_map(name)
            body["metadata"]["labels"] = {"which": name}
            await client.create(CONFIG_MAPS, body)
        code, gone = await client.delete(f"{CONFIG_MAPS}?labelSelector=which=a")
        assert (code, [o["metadata"]["name"] for o in gone["items"]]) == (200, ["a"])
        _, left = await client.get(CONFIG_MAPS)
        assert [o["metadata"]["name"] for o in left["items"]] == ["b"]

    run(scenario)


def test_pods_change_only_where_they_may() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(PODS, pod("p", schedulingGates=[{"name": "a.b/c"}]))
        assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
        code, answer = await client.patch(f"{PODS}/p", {"spec": {"schedulingGates": [{"name": "x.y/z"}]}})
        assert (code, causes(answer)) == (
            422,
            {("spec.schedulingGates[0].name", "Forbidden")},
        )
        code, answer = await client.patch(f"{PODS}/p", {"spec": {"hostNetwork": True}})
        assert (code, causes(answer)) == (422, {("spec", "Forbidden")})
        code, ungated = await client.patch(f"{PODS}/p", {"spec": {"schedulingGates": None}})
        assert code == 200
        assert "schedulingGates" not in ungated["spec"]

    run(scenario)


def test_binding_assigns_a_pod_once() -> None:
    async def scenario(client: Client) -> None:
        await client.create(PODS, pod("p"))
        target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
        assert (await client.call("POST", f"{PODS}/p/binding", target))[0] == 201
        assert (await client.call("POST", f"{PODS}/p/binding", target))[0] == 409
        bound = (await client.get(f"{PODS}/p"))[1]
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["status"]["conditions"][0]["type"] == "PodScheduled"

    run(scenario)
