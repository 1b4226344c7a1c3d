"""Objects kept in a file: whatever moment a server ends, the next one has all that was answered."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from apiserver_client import CONFIG_MAPS, Client, config_map
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.journal import SMALLEST, Journal, change_line

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"plural": "things", "kind": "Thing"},
        "scope": "Cluster",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


def serve(data: Path, scenario: Any) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(120),
            ApiServer(data=data) as server,
            aiohttp.ClientSession() as session,
        ):
            await scenario(Client(server, session))

    asyncio.run(main())


ACCOUNT = ("default", "somebody")
NEW = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}


async def answer_to(server: ApiServer, token: str) -> tuple[int, str]:
    """Return the status and the text of the answer to a write by somebody with a token."""
    url = f"{server.url}{CONFIG_MAPS}"
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.post(url, json=NEW, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("demanded", [None, "sesame"])
def test_the_next_server_knows_whose_a_token_is(tmp_path: Path, demanded: str | None) -> None:
    async def main() -> None:
        async with ApiServer(data=tmp_path / "data", token=demanded) as server:
            group = {"apiVersion": "admissionregistration.k8s.io/v1"}
            account = f"system:serviceaccount:{':'.join(ACCOUNT)}"
            rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
            spec = {
                "matchConstraints": {"resourceRules": [{**rule, "resources": ["configmaps"]}]},
                "validations": [{"expression": f"request.userInfo.username != '{account}'"}],
            }
            bound = {"policyName": "p", "validationActions": ["Deny"]}
            policy = {**group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": spec}
            binding = {**group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "p"}}
            await server.install([policy, {**binding, "spec": bound}])
            token = server.kubeconfig(ACCOUNT)["users"][0]["user"]["token"]
            assert token != server.kubeconfig(ACCOUNT)["users"][0]["user"]["token"]
        async with ApiServer(data=tmp_path / "data", token=demanded) as server:
            status, text = await answer_to(server, token)
            assert (status, "ValidatingAdmissionPolicy 'p'" in text) == (422, True)
            payload, _, signature = token.partition(".")
            for forged in (f"{payload}.{signature[::-1]}", f"{payload}.", payload, "x.y", ""):
                # Where no token is demanded, everybody else is an administrator.
                assert (await answer_to(server, forged))[0] == (401 if demanded else 201)

    asyncio.run(main())


def test_the_next_server_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    async def before(client: Client) -> None:
        await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        await client.create("/apis/example.com/v1/things", {
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}
        })  # fmt: skip
        await client.create(CONFIG_MAPS, config_map("gone"))
        seen["kept"] = await client.create(CONFIG_MAPS, config_map("kept", a="1"))
        seen["newer"] = (await client.patch(f"{CONFIG_MAPS}/kept", {"data": {"a": "2"}}))[1]
        await client.delete(f"{CONFIG_MAPS}/gone")
        seen["list"] = (await client.get(CONFIG_MAPS))[1]

    async def after(client: Client) -> None:
        _, listed = await client.get(CONFIG_MAPS)
        assert listed["items"] == seen["list"]["items"]
        assert int(listed["metadata"]["resourceVersion"]) >= int(seen["list"]["metadata"]["resourceVersion"])
        assert (await client.get("/apis/example.com/v1/things/t"))[0] == 200
        made = await client.create(CONFIG_MAPS, config_map("new"))
        assert int(made["metadata"]["resourceVersion"]) > int(seen["list"]["metadata"]["resourceVersion"])
        stale = seen["kept"]["metadata"]["resourceVersion"]
        code, _ = await client.patch(f"{CONFIG_MAPS}/kept", {"metadata": {"resourceVersion": stale}})
        assert code == 409
        # Nothing was lost since the last change, something was since the one before it.
        latest = listed["metadata"]["resourceVersion"]
        async with client.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={latest}") as following:
            event = await following()
            assert event is not None
            assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "new")
        async with client.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={stale}") as following:
            event = await following()
            assert event is not None
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)

    serve(tmp_path / "data", before)
    serve(tmp_path / "data", after)


def test_a_namespace_that_was_being_deleted_goes_after_all(tmp_path: Path) -> None:
    async def before(client: Client) -> None:
        await client.create("/api/v1/namespaces", {"metadata": {"name": "going"}})
        await client.create("/api/v1/namespaces/going/configmaps", config_map("a"))
        await client.delete("/api/v1/namespaces/going")

    async def after(client: Client) -> None:
        while (await client.get("/api/v1/namespaces/going"))[0] != 404:
            await asyncio.sleep(0.05)
        assert (await client.get("/api/v1/namespaces/default"))[0] == 200

    serve(tmp_path / "data", before)
    serve(tmp_path / "data", after)


@settings(max_examples=examples(60), deadline=None)
@given(cut=st.integers(min_value=0), edits=st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_file_that_ends_anywhere_gives_the_changes_before(
    tmp_path_factory: pytest.TempPathFactory, cut: int, edits: list[int]
) -> None:
    """Killed in the middle of a line: what is whole counts, and the next change goes behind it."""
    path = tmp_path_factory.mktemp("journal") / "data"
    opened = Journal(path)
    opened.rewrite(1000, {"/things": 1000}, iter(()))
    start = path.stat().st_size
    states: list[tuple[int, dict[str, int]]] = [(start, {})]
    for version, name in enumerate(edits, start=1001):
        state = dict(states[-1][1])
        gone = str(name) in state
        encoded = b"null" if gone else json.dumps({"v": version}).encode()
        opened.append(change_line(version, "", "things", ("", str(name)), encoded))
        if gone:
            del state[str(name)]
        else:
            state[str(name)] = version
        states.append((path.stat().st_size, state))
    opened.close()
    end = start + cut % (states[-1][0] - start + 1)
    os.truncate(path, end)
    reopened = Journal(path)
    expected = [state for size, state in states if size <= end][-1]
    assert {key[3]: raw["v"] for key, raw in reopened.kept.objects.items()} == expected
    reopened.append(change_line(2000, "", "things", ("", "last"), b'{"v":2000}'))
    reopened.close()
    last = Journal(path)
    last.close()
    assert last.kept.version == 2000
    assert {key[3] for key in last.kept.objects} == {*expected, "last"}


def test_the_file_does_not_grow_without_bounds(tmp_path: Path) -> None:
    path = tmp_path / "data"

    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a"))
        largest = 0
        written = 0
        for i in range(100, 220):
            data = str(i) * 30_000
            written += len(data)
            code, _ = await client.patch(f"{CONFIG_MAPS}/a", {"data": {"n": data}})
            assert code == 200
            largest = max(largest, path.stat().st_size)
        assert largest < SMALLEST + 100_000 < written

    serve(path, scenario)
    serve(path, lambda client: _n_is(client, "219"))


async def _n_is(client: Client, digits: str) -> None:
    _, found = await client.get(f"{CONFIG_MAPS}/a")
    assert found["data"]["n"] == digits * 30_000


def test_a_full_disk_refuses_writes_and_keeps_what_was(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "data").stat().st_size + 10, hard))
        try:
            code, _ = await client.call("POST", CONFIG_MAPS, config_map("b"))
            assert code == 500
            assert (await client.get(f"{CONFIG_MAPS}/b"))[0] == 404
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)
        await client.create(CONFIG_MAPS, config_map("b"))

    async def after(client: Client) -> None:
        assert (await client.get(f"{CONFIG_MAPS}/b"))[0] == 200

    serve(tmp_path / "data", scenario)
    serve(tmp_path / "data", after)


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for content, says in (
        (b"a: yaml file\n", "is no file of an API server"),
        (b"not even a line", "is no file of an API server"),
        (b'{"format":"dra-driver sim objects 1"}\n', "is no file of an API server"),
        (
            b'{"format":"dra-driver sim objects 1","version":"x","versions":[]}\n',
            "is no file of an API server",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=says):
            ApiServer(data=path)
        assert path.read_bytes() == content
    with pytest.raises(ConfigurationError, match="No such file"):
        ApiServer(data=tmp_path / "no" / "data")


def test_damage_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "data"
    made = Journal(path)
    made.rewrite(1000, {}, iter(()))
    made.close()
    with path.open("ab") as f:
        f.write(b"[1001,\n" + change_line(1002, "", "things", ("", "a"), b"{}"))
    with pytest.raises(ConfigurationError, match="line 2 is damaged"):
        Journal(path)


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    first = Journal(tmp_path / "data")
    with pytest.raises(ConfigurationError, match="another server uses it"):
        Journal(tmp_path / "data")
    first.close()
    Journal(tmp_path / "data").close()


@pytest.mark.long
@pytest.mark.sim
def test_kill_minus_nine_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "dra_driver.cli.main", "sim", "apiserver"]
    command += ["--kubeconfig", str(kubeconfig), "--data", str(tmp_path / "data")]

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        url = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        return process, url + CONFIG_MAPS

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    process, url = start()
    try:
        for i in range(20):
            body = json.dumps(config_map(f"c{i}")).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                version = json.load(answer)["metadata"]["resourceVersion"]
    finally:
        kill(process)
    process, url = start()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            listed = json.load(answer)
    finally:
        kill(process)
    assert len(listed["items"]) == 20
    assert int(listed["metadata"]["resourceVersion"]) >= int(version)
