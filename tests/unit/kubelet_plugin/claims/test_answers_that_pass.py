"""Answers of the API server that pass soon: a prepare waits for a better one, within its budget."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_client import FakeClient
from kubelet_calls import prepare
from node_agent import add_claim, claim, device, running

from dra_driver.errors import DecodeError, DraError, Forbidden, Invalid, NotFound
from kubelet_plugin.claims.planning import Timing

ANSWERS = {
    "401": Forbidden("Unauthorized", code=401, reason="Unauthorized"),
    "403": Forbidden("not yet synchronized", code=403, reason="Forbidden"),
    "400 of a proxy": Invalid("<html>", code=400),
    "404 without a status": NotFound("404 page not found", code=404),
    "garbage": DecodeError("ResourceClaim: JSON is malformed"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_passes_is_waited_for(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        kube, left = FakeClient(), [ANSWERS[kind]] * 2
        body = add_claim(kube, claim("one", "gpu-0"))

        def disturb(verb: str, resource: str, *_: str) -> None:
            if resource == "ResourceClaim" and left:
                raise left.pop()

        async with running(tmp_path, kube, [device(0)]) as node:
            kube.before = disturb
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            assert left == []

    asyncio.run(main())


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_does_not_pass_is_told(tmp_path: Path, kind: str) -> None:
    error: DraError = ANSWERS[kind]

    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", "gpu-0"))

        def refuse(verb: str, resource: str, *_: str) -> None:
            if resource == "ResourceClaim":
                raise error

        async with running(tmp_path, kube, [device(0)], timing=Timing(budget=2.0)) as node:
            kube.before = refuse
            told = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert told == f"the claim cannot be read, tried for 2 s: {error}"

    asyncio.run(main())


def test_a_claim_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = claim("one", "gpu-0")
        async with running(tmp_path, kube, [device(0)]) as node:
            told = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert told == "the API server has no such claim"
            assert sum(c[:2] == ("get", "ResourceClaim") for c in kube.calls) == 1

    asyncio.run(main())
