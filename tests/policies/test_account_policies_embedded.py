"""The same writes, judged by the embedded API server, which evaluates the policies with our own CEL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import yaml
from policy_cases import SLICES, Write, cases, slice_
from policy_world import FENCE, Accounts, check, describe_nodes, only_the_holder_writes, world

from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.store import Key

T = TypeVar("T")


def run(tmp_path: Path, scenario: Callable[[Accounts], Awaitable[T]], server: ApiServer | None = None) -> T:
    async def main() -> T:
        async with server or ApiServer() as started:

            async def connect(token: str) -> KubeApi:
                config = started.kubeconfig()
                config["users"][0]["user"] = {"token": token} if token else {}
                path = tmp_path / f"kubeconfig-{abs(hash(token)):x}"
                path.write_text(yaml.safe_dump(config))
                return await KubeApi.connect(path)

            async with await connect("") as admin, world(connect, admin) as made:
                return await scenario(made)

    return asyncio.run(main())


def test_every_write_gets_its_verdict(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> list[tuple[str, str, str]]:
        await describe_nodes(made.admin)
        found = [(w, await made.send(w)) for w in cases()]
        return [(f"{w.by} {w.what}", w.refused, verdict) for w, verdict in found if verdict != w.refused]

    assert run(tmp_path, scenario) == []


def test_only_the_pod_that_holds_the_lease_writes(tmp_path: Path) -> None:
    run(tmp_path, only_the_holder_writes)


def test_without_the_lease_nobody_is_refused(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        server.registry.policies.parameters = lambda _kind, _key: None
        await check(made, "standby", "")
        await check(made, "podless", "")

    server = ApiServer()
    run(tmp_path, scenario, server)


def test_parameters_are_looked_up_before_the_conditions(tmp_path: Path) -> None:
    """As on the real server: a parameter that is denied where it is missing refuses everybody."""

    async def scenario(made: Accounts) -> None:
        bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        patch = {"spec": {"paramRef": {"name": "no-such-lease", "parameterNotFoundAction": "Deny"}}}
        path, merge = f"{bindings}/{FENCE}", "application/merge-patch+json"
        await made.admin._call("PATCH", path, body=patch, content_type=merge)
        theirs = slice_("new", "gpu.example.com")
        assert await made.send(Write("", "admin", "POST", SLICES, theirs)) == FENCE

    run(tmp_path, scenario)


def test_an_expression_that_fails_refuses_or_is_ignored_as_the_policy_says(tmp_path: Path) -> None:
    async def scenario(made: Accounts) -> None:
        server.registry.policies.parameters = unfit
        await check(made, "controller", FENCE)
        policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        patch = {"spec": {"failurePolicy": "Ignore"}}
        path, merge = f"{policies}/{FENCE}", "application/merge-patch+json"
        await made.admin._call("PATCH", path, body=patch, content_type=merge)
        await check(made, "controller", "")

    def unfit(_kind: Kind, _key: Key) -> Raw | None:
        return {"spec": {"holderIdentity": 7}}

    server = ApiServer()
    run(tmp_path, scenario, server)
