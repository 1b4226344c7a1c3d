"""Shows for which pod devices are set aside: a condition of the pod, which ``dra-driver status`` reads."""

from __future__ import annotations

import asyncio
from typing import Final

from controller.observe.pod_conditions import PodCondition, Written
from dra_driver.api import names
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.fleet import set_aside_condition
from dra_driver.kube import Handler, Informer, cut_message
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["SetAsideCondition"]

_PAUSE_SECONDS: Final = 1.0


class SetAsideCondition:
    """Keeps the condition ``dra-driver.dev/DevicesSetAside``: True on the pod that has its turn, on no other.

    What is to be written is compared with what pods have, so a controller that starts anew ends what another
    one has left.

    Args:
        client: of the API server.
        clock: for timestamps.
        pods: all of them.
    """

    def __init__(self, client: KubeClient, clock: Clock, pods: Informer[Pod]) -> None:
        self._condition = PodCondition(client, names.SET_ASIDE_CONDITION, names.SET_ASIDE_FIELD_MANAGER)
        self._clock = clock
        self._pods = pods
        self._wanted: tuple[ObjectKey, Uid, str] | None = None
        self._written = ""
        # Pods that have the condition, as far as the informer has seen.
        self._having: set[ObjectKey] = set()
        pods.add_handler(Handler(self._seen, lambda _, pod: self._seen(pod), self._gone))

    def _seen(self, pod: Pod) -> None:
        if set_aside_condition(pod) is not None:
            self._having.add(pod.key)
        else:
            self._having.discard(pod.key)

    def _gone(self, pod: Pod) -> None:
        self._having.discard(pod.key)

    def show(self, pod: Pod, message: str) -> None:
        """Show that devices are set aside for a pod, and for no other one.

        Args:
            pod: which one.
            message: until when, and which devices, for people.
        """
        self._wanted = (pod.key, pod.metadata.uid, cut_message(message))
        self._written = ""

    def end(self) -> None:
        """Show that no devices are set aside."""
        self._wanted = None

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._write()

    async def _write(self) -> None:
        wanted = self._wanted
        for key in self._having - ({wanted[0]} if wanted is not None else set()):
            pod = self._pods.get(key)
            if pod is None:
                continue
            written = await self._apply(key, pod.metadata.uid, "False", "NotSetAside", "")
            if written is Written.FAILED:
                return
        if wanted is not None and self._written != wanted[2]:
            key, uid, message = wanted
            written = await self._apply(key, uid, "True", "WaitedForLong", message)
            if written is Written.DONE and self._wanted == wanted:
                self._written = message

    async def _apply(self, key: ObjectKey, uid: str, status: str, reason: str, message: str) -> Written:
        said = {"status": status, "reason": reason, "message": message}
        return await self._condition.try_to_apply(key, uid, said, rfc3339(self._clock.now()))
