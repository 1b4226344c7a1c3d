"""Replays conversations recorded from the real API server against the embedded one.

A case is a list of requests with the answers of the real server: status code, reason, causes as (field,
reason), the whole body of successes, the events of watches. Names in angle brackets stand for values that
differ between runs.
"""

from __future__ import annotations

import asyncio
import collections
import gzip
import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dra_driver.sim.apiserver import ApiServer

DATA = Path(__file__).parent / "data"
PLACEHOLDER = re.compile(r"<(uid|rv|gen|continue):([^<>]*)>|<(time|rv|managedFields)>")
NAMESPACES = ("api-val", "api-sem", "api-sem2", "api-sem3")

# Cases in which the embedded server answers otherwise, each with the reason.
DEVIATIONS = {
    "machinery/crd": "descriptions of Table columns are ours",
    "machinery/table": "descriptions of Table columns are ours",
    "machinery/watch-table": "descriptions of Table columns are ours",
    "machinery/pod-delete-graceful": "a kubelet runs the pod",
    "machinery/put-without-rv-all-kinds": "meets what an earlier recording left behind",
    "class/config-params-10k": "the size of opaque parameters is taken without the blanks that were sent",
}


class Mismatch(Exception):
    """An answer that is not the recorded one."""


class Bindings(dict[tuple[str, str], str]):
    """What the placeholders stand for in this run."""

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self.fill(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if not isinstance(value, str):
            return value

        def known(m: re.Match[str]) -> str:
            if m[3]:
                return "2026-01-01T00:00:00Z" if m[3] == "time" else "1"
            return self.get((m[1], m[2]), m[0])

        return PLACEHOLDER.sub(known, value)

    def match(self, wanted: Any, found: Any, where: str = "") -> None:
        if isinstance(wanted, str) and PLACEHOLDER.search(wanted):
            self._match_text(wanted, found, where)
        elif isinstance(wanted, dict) and isinstance(found, dict):
            for key in {**wanted, **found}:
                if key in ("managedFields", "selfLink"):
                    continue
                a, b = wanted.get(key), found.get(key)
                if a in (None, {}, [], "<rv>") and b in (None, {}, []):
                    continue
                self.match(a, b, f"{where}.{key}")
        elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
            for i, (a, b) in enumerate(zip(wanted, found, strict=True)):
                self.match(a, b, f"{where}[{i}]")
        elif wanted != found:
            raise Mismatch(f"{where}: {wanted!r} expected, {found!r}")

    def _match_text(self, wanted: str, found: Any, where: str) -> None:
        names, pattern, at = [], "", 0
        for m in PLACEHOLDER.finditer(wanted):
            pattern += re.escape(wanted[at : m.start()]) + "(.*)"
            names.append(m)
            at = m.end()
        got = re.fullmatch(pattern + re.escape(wanted[at:]), "" if found is None else str(found), re.S)
        if got is None:
            raise Mismatch(f"{where}: {wanted!r} expected, {found!r}")
        for m, value in zip(names, got.groups(), strict=True):
            if m[1] and m[2] != "?" and self.setdefault((m[1], m[2]), value) != value:
                raise Mismatch(f"{where}: {m[0]} was {self[m[1], m[2]]}, now {value}")


def _causes(items: list[dict[str, Any]] | None) -> collections.Counter[tuple[Any, Any]]:
    return collections.Counter((c.get("field"), c.get("reason")) for c in items or [])


async def _step(session: aiohttp.ClientSession, url: str, step: dict[str, Any], bound: Bindings) -> None:
    path = bound.fill(step["path"])
    if step.get("query"):
        path += "?" + urllib.parse.quote(bound.fill(step["query"]), safe="=&%+.,-_~!()<>/:")
    headers = {"Accept": "application/json", **(step.get("headers") or {})}
    body = bound.fill(step["raw_body"]).encode() if "raw_body" in step else None
    if body is None and step.get("body") is not None:
        body = json.dumps(bound.fill(step["body"])).encode()
    skipped = {"Content-Type"}
    if step.get("content_type"):
        headers["Content-Type"] = step["content_type"]
        skipped = set()
    async with session.request(
        step["method"], url + path, data=body, headers=headers, skip_auto_headers=skipped
    ) as response:
        data = await response.read()
        _compare(step["expect"], response.status, data, bound)


def _compare(wanted: dict[str, Any], code: int, data: bytes, bound: Bindings) -> None:
    if code != wanted["code"]:
        raise Mismatch(f"{wanted['code']} expected, {code}: {data[:200]!r}")
    if wanted.get("picked"):
        return
    if "events" in wanted:
        bound.match(
            wanted["events"], [json.loads(line) for line in data.splitlines() if line.strip()], "events"
        )
    elif code >= 400:
        if "json" in (wanted.get("content_type") or ""):
            found = json.loads(data)
            assert (wanted.get("status_reason") or "") == (found.get("reason") or "")
            a, b = _causes(wanted.get("causes")), _causes((found.get("details") or {}).get("causes"))
            if a != b:
                raise Mismatch(
                    f"causes: missing {list((a - b).elements())}, extra {list((b - a).elements())}"
                )
    elif isinstance(wanted.get("body"), dict):
        bound.match(wanted["body"], json.loads(data) if data else None, "body")


async def _play(case: dict[str, Any]) -> str | None:
    """None, or what is different. Every case gets a server of its own."""
    namespaces: list[dict[str, Any]] = [{"metadata": {"name": n}} for n in NAMESPACES]
    label = {"resource.kubernetes.io/admin-access": "true"}
    namespaces.append({"metadata": {"name": "api-val-admin", "labels": label}})
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        await server.install([{"apiVersion": "v1", "kind": "Namespace", **n} for n in namespaces])
        bound = Bindings()
        for i, step in enumerate(case["steps"]):
            try:
                await _step(session, server.url, step, bound)
            except (Mismatch, AssertionError, ValueError) as e:
                return f"step {i} {step['method']} {step['path']}: {e}"
    return None


async def _play_all(cases: list[dict[str, Any]]) -> dict[str, str]:
    different: dict[str, str] = {}
    limit = asyncio.Semaphore(32)  # cases with watches mostly wait

    async def play(case: dict[str, Any]) -> None:
        async with limit:
            result = await _play(case)
        if result is not None:
            different[case["name"]] = result

    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(play(case))
    return different


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["validation", "semantics"])
def test_recorded_conversations(corpus: str) -> None:
    with gzip.open(DATA / f"apiserver_{corpus}.json.gz", "rt") as f:
        cases = [c for c in json.load(f)["cases"] if "optional" not in c.get("tags", [])]
    different = asyncio.run(_play_all(cases))
    unexpected = {name: why for name, why in different.items() if name not in DEVIATIONS}
    assert not unexpected
    mended = {c["name"] for c in cases} & set(DEVIATIONS) - set(different)
    assert not mended, "these agree now: take them off the list"
