"""Plays recorded conversations with kube-scheduler, controller-manager and kubelet against the stand-ins.

What is compared is what the recording kept of each answer ("picked"). The recordings depend on timing: a look
at an object waits a while for what was recorded, instead of failing at the first difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from kubelet_fakes import FakePlugin, short_directory

from dra_driver.kube import KubeApi
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.controlplane.controllers import ClaimController, GarbageCollector
from dra_driver.sim.controlplane.eviction import TaintEviction
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.kubelet import KubeletSettings, NodeLayout, SimKubelet

DATA = Path(__file__).parent / "data" / "recorded_controllers.json.gz"
DRIVER = "dra.api.example.com"
NAMESPACES = ("api-alloc", "api-alloc4", "api-alloc5")
TOKEN = re.compile(r"<(uid|gen|rv|time|managedFields)(?::([^<>]*))?>")
NOW = "2026-11-20T14:00:00Z"
SECONDS = 15.0
FOLLOWED = ("/api/v1/pods", "/apis/resource.k8s.io/v1/resourceclaims")
IMMUTABLE = "status.allocation: Invalid value: "


def load_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(gzip.decompress(DATA.read_bytes()))["cases"]
    return cases


# --- the world that the recordings took place in ---


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[tuple[str, SimKubelet]]:
    """One node of two CPUs with eight devices; gives the server's address and the node's kubelet."""
    with short_directory() as directory, contextlib.ExitStack() as closing:
        server = ApiServer()
        await server.install(_objects())
        await server.start()
        server.write_kubeconfig(directory / "kubeconfig")
        api = await KubeApi.connect(directory / "kubeconfig")
        layout = NodeLayout(directory / "n")
        cpus = {"cpu": "2", "memory": "8Gi", "pods": "110"}
        # The slices of the test are put there by hand: no wiping.
        settings = _settings()
        kubelet = SimKubelet(api, "node1", layout, settings, allocatable=cpus)
        plugin = FakePlugin(directory, layout.registry, driver=DRIVER, cdi=False)
        await plugin.start()
        works: list[Coroutine[Any, Any, None]] = [
            ClaimController(api).run(),
            GarbageCollector(api).run(),
            # Longer than a busy machine takes to start a pod, which was recorded as running when evicted.
            TaintEviction(api, delay=1.5).run(),
            Scheduler(api, name="api-scheduler", backoff=0.7).run(),
            kubelet.run(),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            while kubelet.plugins.plugin(DRIVER) is None:
                await asyncio.sleep(0.01)
            yield server.url, kubelet
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await plugin.stop()
            await api.close()
            await server.stop()
            closing.close()


def _settings() -> KubeletSettings:
    quick = KubeletSettings.quick()
    return KubeletSettings(
        **{
            **{name: getattr(quick, name) for name in KubeletSettings.__dataclass_fields__},
            "startup_wipe": None,
            "registry_tick": 0.02,
            "exit_detection": 0.02,
            "stop_delay": 0.6,
        }
    )


def _objects() -> list[dict[str, Any]]:
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node1-devices"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "node1",
            "pool": {"name": "node1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"device-{i:02}"} for i in range(8)],
        },
    }
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in NAMESPACES]
    return [*namespaces, slice_]


# --- playing ---


@dataclass
class Player:
    session: aiohttp.ClientSession
    url: str
    kubelet: SimKubelet
    names: dict[str, str] = field(default_factory=dict)
    # By path, the versions of pods and claims since the last write: some states pass within half a second,
    # which a busy machine may not see by looking.
    seen: dict[str, list[Any]] = field(default_factory=dict)

    async def play(self, case: dict[str, Any]) -> list[str]:
        """Plays one case; gives the first difference."""
        following = [asyncio.create_task(self._follow(path)) for path in FOLLOWED]
        try:
            return await self._play(case)
        finally:
            for task in following:
                task.cancel()
            await asyncio.wait(following)

    async def _follow(self, path: str) -> None:
        group, _, plural = path.rpartition("/")
        async with self.session.get(f"{self.url}{path}", params={"watch": "true"}) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    metadata = event["object"]["metadata"]
                    where = f"{group}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
                    self.seen.setdefault(where, []).append(event["object"])

    async def _play(self, case: dict[str, Any]) -> list[str]:
        try:
            for number, step in enumerate(case["steps"]):
                note = str(step.get("note", ""))
                if note.startswith("wait "):
                    await asyncio.sleep(min(float(note[5:-1]) / 5, 0.5))
                    self.seen.clear()
                    continue
                difference = await self._step(step)
                if difference:
                    return [f"step {number} {step['method']} {step['path']}: {difference}"]
            return []
        finally:
            for path in case["cleanup"]:
                await self._delete(self._filled(path))
            await self._no_claims()

    async def _step(self, step: dict[str, Any]) -> str:
        picked = step["expect"].get("picked") and step["method"] == "GET"
        deadline = asyncio.get_running_loop().time() + (SECONDS if picked else 0)
        if step["method"] != "GET":
            self.seen.clear()
        while True:
            code, body = await self._call(step)
            difference = self._compare(step, code, body, bool(picked))
            if difference and picked and self._has_passed(step):
                return ""
            if not difference or asyncio.get_running_loop().time() >= deadline:
                return difference
            await asyncio.sleep(0.02)

    def _has_passed(self, step: dict[str, Any]) -> bool:
        """Whether the object was once as recorded; what was before that is not looked at any more."""
        versions = self.seen.get(self._filled(step["path"]), [])
        for number, version in enumerate(versions):
            if not self._compare(step, 200, version, True):
                del versions[:number]
                return True
        return False

    async def _call(self, step: dict[str, Any]) -> tuple[int, Any]:
        url = self.url + self._filled(step["path"])
        if step.get("query"):
            url += "?" + self._filled(step["query"])
        data = self._filled(json.dumps(step["body"])) if "body" in step else None
        headers = {"Content-Type": step.get("content_type", "application/json")}
        async with self.session.request(step["method"], url, data=data, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text

    def _filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] == "time":
                return NOW
            return self.names.get(match[0], match[0])

        return TOKEN.sub(value, text)

    def _compare(self, step: dict[str, Any], code: int, body: Any, picked: bool) -> str:
        expect = step["expect"]
        if code != expect["code"]:
            return f"{code} instead of {expect['code']}: {str(body)[:300]}"
        if "body" not in expect or code >= 400:
            return ""
        if not picked:
            self._bind(expect["body"].get("metadata") or {}, body.get("metadata") or {})
            return ""
        found = pick(step["path"], body)
        expected = events(expect["body"]) if step["path"].endswith("/events") else expect["body"]
        names = dict(self.names)
        difference = match(expected, found, names)
        if not difference:
            self.names = names
        return difference

    def _bind(self, expected: dict[str, Any], found: dict[str, Any]) -> None:
        for key in ("uid", "name"):
            token = expected.get(key)
            if isinstance(token, str) and TOKEN.fullmatch(token) and key in found:
                self.names.setdefault(token, found[key])

    async def _no_claims(self) -> None:
        """Waits for the generated claims of pods that are gone, and for the kubelet to unprepare all."""
        for _ in range(300):
            async with self.session.get(f"{self.url}/apis/resource.k8s.io/v1/resourceclaims") as answer:
                if not (await answer.json())["items"] and not self.kubelet.claims.claims:
                    return
            await asyncio.sleep(0.01)

    async def _delete(self, path: str) -> None:
        params = {"gracePeriodSeconds": "0"} if "/pods/" in path else {}
        if "/resourceclaims/" in path:
            # What third parties left there would keep it.
            headers = {"Content-Type": "application/merge-patch+json"}
            for part, patch in (("/status", {"status": None}), ("", {"metadata": {"finalizers": None}})):
                async with self.session.patch(
                    f"{self.url}{path}{part}", data=json.dumps(patch), headers=headers
                ):
                    pass
        for _ in range(200):
            async with self.session.delete(self.url + path, params=params) as answer:
                if answer.status == 404:
                    return
            await asyncio.sleep(0.01)


def pick(path: str, body: Any) -> Any:
    """What the recorder kept of an answer."""
    if body.get("kind", "").endswith("List") or "items" in body:
        if path.endswith("/events"):
            # The recorder left out what kubelets say about images and containers.
            return events(_event(e) for e in body["items"] if e["reason"] != "Started")
        return [_object(item) for item in body["items"]]
    if body.get("kind") == "Pod":
        return _pod(body)
    return _object(body)


def events(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each once, in an order of their own: repeats and order depend on timing."""
    distinct = {json.dumps(item, sort_keys=True): item for item in items}
    return sorted(distinct.values(), key=lambda item: (item["reason"], item["message"]))


def _event(event: dict[str, Any]) -> dict[str, Any]:
    involved = event["involvedObject"]
    return {
        "type": event["type"],
        "reason": event["reason"],
        "message": event["message"],
        "component": (event.get("source") or {}).get("component") or event.get("reportingComponent"),
        "involvedObject": {"kind": involved["kind"], "name": involved["name"]},
    }


def _pod(pod: dict[str, Any]) -> dict[str, Any]:
    status = pod.get("status", {})
    return {
        "nodeName": pod["spec"].get("nodeName"),
        "schedulingGates": pod["spec"].get("schedulingGates"),
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "conditions": {
            c["type"]: {k: c[k] for k in ("status", "reason", "message") if c.get(k)}
            for c in status.get("conditions", [])
        },
        "resourceClaimStatuses": status.get("resourceClaimStatuses"),
        "deletionTimestamp": pod["metadata"].get("deletionTimestamp"),
        "waiting": [
            (c["state"].get("waiting") or {}).get("reason") for c in status.get("containerStatuses", [])
        ],
    }


def _object(item: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "name",
        "generateName",
        "resourceVersion",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "deletionTimestamp",
    )
    metadata = {k: item["metadata"][k] for k in kept if k in item["metadata"]}
    return {"metadata": metadata, "status": item.get("status", {})}


def match(expected: Any, found: Any, names: dict[str, str], path: str = "") -> str:
    """The first difference; placeholders are bound where they are first met."""
    if isinstance(expected, str):
        whole = TOKEN.fullmatch(expected)
        if whole and whole[1] in ("time", "rv", "managedFields"):
            return "" if found is not None else f"{path} is absent"
        if whole and expected not in names and isinstance(found, str):
            names[expected] = found
        filled = TOKEN.sub(lambda m: names.get(m[0], m[0]), expected)
        if IMMUTABLE in filled:
            # What follows is a dump of Go structs.
            found, filled = str(found).partition(IMMUTABLE)[0], filled.partition(IMMUTABLE)[0]
        return "" if filled == found else f"{path}: {found!r} instead of {filled!r}"
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(k for k in found if k not in expected)]:
            difference = match(expected.get(key), found.get(key), names, f"{path}.{key}")
            if difference:
                return difference
        return ""
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{path}: {len(found)} items instead of {len(expected)}: {str(found)[:300]}"
        for i, (e, f) in enumerate(zip(expected, found, strict=True)):
            difference = match(e, f, names, f"{path}[{i}]")
            if difference:
                return difference
        return ""
    return "" if expected == found else f"{path}: {str(found)[:300]!r} instead of {str(expected)[:300]!r}"
