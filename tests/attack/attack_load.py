"""Honest pods beside an attack, and the watch of all claims that times them and finds double allocations."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Mapping

import attack_objects as objects
from attack_api import Api, Manifest, path_of
from attack_judgement import DeviceWatch

from dra_driver.api.names import DEFAULT_DRIVER_NAME

__all__ = ["HONEST", "ClaimWatch", "HonestLoad"]

HONEST = "honest"
"""Namespace of the honest pods; attacks have others."""
PER_SECOND = 6.0
_LIFE_SECONDS = 1.0
_GIVE_UP_SECONDS = 15.0

_MEMORY = f'device.capacity["{DEFAULT_DRIVER_NAME}"].memory.compareTo(quantity("40Gi")) >= 0'
_SPECS: tuple[tuple[str, Manifest, int], ...] = (
    ("one GPU", objects.devices(), 6),
    ("two GPUs", objects.devices(2), 2),
    (
        "two GPUs of one NUMA node",
        objects.requests(
            objects.exactly(),
            objects.exactly(),
            constraints=[{"requests": ["r0", "r1"], "matchAttribute": objects.NUMA}],
        ),
        1,
    ),
    ("a GPU with 40Gi", objects.selected(_MEMORY), 2),
)


class ClaimWatch:
    """Follows all claims from before the first attack to the end.

    Attributes:
        devices: who holds which device.
        gaps: how often the watch ended and the claims were listed anew.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: dict[tuple[str, str], asyncio.Future[Manifest]] = {}
        self.devices = DeviceWatch()
        self.gaps = -1
        self.following = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self.gaps += 1
            _, page = await self._api.call("GET", "/apis/resource.k8s.io/v1/resourceclaims")
            self.devices.replace(page["items"])
            for claim in page["items"]:
                self._allocated(claim)
            self.following.set()
            async for event in self._api.watch("ResourceClaim", page["metadata"]["resourceVersion"]):
                if event["type"] == "ERROR":
                    break
                self.devices.seen(event["object"], deleted=event["type"] == "DELETED")
                self._allocated(event["object"])

    def _allocated(self, claim: Mapping[str, object]) -> None:
        meta, status = claim["metadata"], claim.get("status")
        assert isinstance(meta, dict)
        if isinstance(status, dict) and status.get("allocation"):
            future = self._waiting.pop((meta["namespace"], meta["name"]), None)
            if future is not None and not future.done():
                future.set_result(dict(claim))

    def allocated(self, namespace: str, name: str) -> asyncio.Future[Manifest]:
        """Return the claim as soon as it is allocated."""
        return self._waiting.setdefault((namespace, name), asyncio.get_running_loop().create_future())


class HonestLoad:
    """Pods that come at a steady rate, run for a second, and free their devices again.

    They come whether the earlier ones were served or not. Of each the time is taken from the moment at which
    the API server has its pod until the claim is seen to be allocated.
    """

    def __init__(self, api: Api, watch: ClaimWatch, seed: int) -> None:
        self._api = api
        self._watch = watch
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._living: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> list[float]:
        """Create pods for some time; return the waits of all of them, infinite for those given up."""
        waits: list[asyncio.Future[float]] = []
        weights = [weight for _, _, weight in _SPECS]
        started = time.monotonic()
        for i in range(max(1, int(seconds * PER_SECOND))):
            await asyncio.sleep(max(0.0, started + i / PER_SECOND - time.monotonic()))
            ((_, spec, _),) = self._rng.choices(_SPECS, weights)
            waits.append(self._start(spec))
        return [await wait for wait in waits]

    async def canary(self) -> float:
        """Return how long one pod waits."""
        return await self._start(_SPECS[0][1])

    def _start(self, spec: Manifest) -> asyncio.Future[float]:
        """Let one pod live, beyond the end of its wait; return the seconds that it waits."""
        wait: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._one(f"honest-{next(self._numbers)}", spec, wait))
        self._living.add(task)
        task.add_done_callback(self._living.discard)
        return wait

    async def _one(self, name: str, spec: Manifest, wait: asyncio.Future[float]) -> None:
        claim, pod = objects.one(name, HONEST, spec)
        there = self._watch.allocated(HONEST, name)
        try:
            await self._api.create(claim)
            status, made = await self._api.create(pod)
            if status != 201:
                raise RuntimeError(f"honest pod {name}: {made}")
            started = time.monotonic()
            try:
                async with asyncio.timeout(_GIVE_UP_SECONDS):
                    allocated = await there
            except TimeoutError:
                wait.set_result(math.inf)
            else:
                wait.set_result(time.monotonic() - started)
                await self._bind(made, allocated)
                await asyncio.sleep(_LIFE_SECONDS)
            await self._api.delete("Pod", name, HONEST)
            await self._api.free(claim)
        except Exception as e:
            if not wait.done():
                wait.set_exception(e)
            raise

    async def _bind(self, pod: Manifest, claim: Manifest) -> None:
        """Reserve the claim and bind the pod, as kube-scheduler does once the gate is off."""
        meta = pod["metadata"]
        reserved = [{"resource": "pods", "name": meta["name"], "uid": meta["uid"]}]
        path = path_of({**claim, "kind": "ResourceClaim"})
        await self._api.patch(f"{path}/status", {"status": {"reservedFor": reserved}})
        node = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0][
            "values"
        ][0]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        await self._api.call("POST", f"{path_of({**pod, 'kind': 'Pod'})}/binding", body)
