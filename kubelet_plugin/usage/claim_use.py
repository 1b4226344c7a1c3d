"""Whether containers still use what claims hold: asks the node, and keeps devices that may be in use.

The rules are in ``dra_driver.preparation``. What is kept is reported once by an Event, and stands in the
inventory and in the metrics until it is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from dra_driver.api.meta import Uid
from dra_driver.api.names import CLAIM_GONE_IN_USE
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.errors import PrepareError
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock
from dra_driver.preparation import (
    PodReference,
    PreparedClaim,
    ProcessView,
    Use,
    Verdict,
    cdi_ids,
    exclusive_nodes,
    judge,
    judge_unprepare,
)
from kubelet_plugin.config import Configuration
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.usage.cgroups import PodCgroups
from kubelet_plugin.usage.pod_resources import KubeletList, PodResources
from kubelet_plugin.usage.processes import Processes

__all__ = ["ClaimUse", "set_up"]

log = structlog.get_logger(__name__)

# Folder of the state directory for files that an administrator names after claims that nothing uses.
_UNUSED: Final = "unused"
# The last process of a container may be reaped a moment after the runtime has reported its end.
_ENDING_SECONDS: Final = 3.0
_LOOK_AGAIN_SECONDS: Final = 0.2
# Of one claim, the newest: it may outlive any number of pods.
_MOST_JOINED: Final = 4096


@dataclass(frozen=True, slots=True)
class _Kept:
    """A claim that keeps its devices although it is gone or was to be unprepared.

    Attributes:
        text: what is reported: as it was first, because lists of processes change all the time.
        since: RFC 3339.
        is_gone: the API server says that it is gone; otherwise the kubelet has unprepared it.
    """

    record: PreparedClaim
    text: str
    since: str
    is_gone: bool


class ClaimUse:
    """The use of claims on this node.

    Attributes:
        changes: notified when claims begin or cease to be kept.
        visible: whether processes of pods could be seen at the last look; None before the first.
        asked: claims of which it is asked whether they still hold devices, because they are gone.

    Args:
        driver: ours.
        kubelet: asks the kubelet which pods have which devices.
        processes: looks for processes of pods; given device nodes, and UIDs of claims.
        cgroups: returns which of these pods have processes, with their cgroups; None if they cannot be seen.
        records: the records of all claims.
        unused: folder of the files of administrators.
        report: called with the kind (see ``notices``) and the text of what is kept.
    """

    def __init__(
        self,
        *,
        driver: str,
        clock: Clock,
        kubelet: Callable[[], Awaitable[KubeletList | None]],
        processes: Callable[[Collection[str], Collection[Uid]], Awaitable[ProcessView | None]],
        cgroups: Callable[[Collection[Uid]], Awaitable[Mapping[Uid, str] | None]],
        records: Callable[[], Sequence[PreparedClaim]],
        unused: Path,
        report: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._kubelet = kubelet
        self._processes = processes
        self._cgroups = cgroups
        self._records = records
        self._unused = unused
        self._report = report
        self._kept: dict[Uid, _Kept] = {}
        self._once_listed: set[Uid] = set()
        self._joined: dict[Uid, dict[Uid, PodReference]] = {}
        self.changes = Changes()
        self.visible: bool | None = None
        self.asked: frozenset[Uid] = frozenset()

    @property
    def kept(self) -> int:
        """How many claims keep their devices because these may be in use."""
        return len(self._kept)

    def gone(self) -> Sequence[PreparedClaim]:
        """Return the claims that the API server has no more and that keep their devices."""
        return [kept.record for kept in self._kept.values() if kept.is_gone]

    def conditions(self) -> Mapping[str, DeviceHealth]:
        """Return what the inventory says of devices that stay with such claims, by name.

        Of a device that is shared or cut it is for information: what one tenant does not end must not keep
        the rest of it from others.
        """
        found: dict[str, DeviceHealth] = {}
        for kept in self._kept.values():
            for device in kept.record.devices:
                if device.admin_access:
                    continue
                in_part = device.share_id is not None or device.partition is not None
                name = device.partition.gpu if device.partition is not None else device.device
                condition = DeviceHealth(
                    reason=CLAIM_GONE_IN_USE,
                    severity="info" if in_part else "degraded",
                    message=kept.text,
                    since=kept.since,
                )
                found.setdefault(name, condition)
        return found

    async def list(self) -> KubeletList | None:
        """Ask the kubelet which pods have which devices, and remember which claims it has ever listed."""
        listed = await self._kubelet()
        records = self._records()
        known = {r.uid for r in records}
        for uid in self._kept.keys() - known:
            self.release(uid)  # another instance has unprepared it
        self._joined = {uid: pods for uid, pods in self._joined.items() if uid in known}
        self._once_listed &= known
        if listed is not None:
            self._once_listed |= {r.uid for r in records if not cdi_ids(r).isdisjoint(listed.pods)}
        return listed

    def joined(self, uid: Uid, pods: Collection[PodReference]) -> None:
        """Note pods that use a claim beside those of its record; they stay known when they are gone."""
        known = self._joined.setdefault(uid, {})
        known.update({p.uid: p for p in pods if p.uid})
        while len(known) > _MOST_JOINED:
            del known[next(iter(known))]

    # --- claims that are gone -------------------------------------------------------------------------------

    async def of_gone(
        self, due: Sequence[PreparedClaim], records: Sequence[PreparedClaim], *, listed: bool | None
    ) -> Sequence[tuple[PreparedClaim, Verdict]]:
        """Return what is known of the use of claims that are gone.

        Args:
            due: the claims.
            records: of all claims.
            listed: whether the kubelet lists pods that have them; None where it cannot be asked.
        """
        # What a reboot has ended holds nothing that could be in use.
        in_doubt = [self._with_pods(r) for r in due if not r.ended]
        view = await self._view(in_doubt)
        others = [self._with_pods(r) for r in records]
        verdicts = {
            r.uid: self._decided(r, judge(r, listed=listed, view=view, others=others)) for r in in_doubt
        }
        return [(r, verdicts.get(r.uid, Verdict(Use.FREE))) for r in due]

    async def of_reallocated(self, record: PreparedClaim) -> Verdict:
        """Return whether containers may still use what a claim was given before it was allocated anew."""
        records = self._records()
        kubelet = await self.list()
        listed: bool | None = None
        if kubelet is not None:
            others = [r for r in records if r.uid != record.uid]
            # A kubelet that lists none of the claims that are there does not list claims at all.
            lists_claims = not others or any(not cdi_ids(r).isdisjoint(kubelet.pods) for r in others)
            listed = not cdi_ids(record).isdisjoint(kubelet.pods) or (False if lists_claims else None)
        ((_, verdict),) = await self.of_gone([record], records, listed=listed)
        return verdict

    def keep_gone(
        self, kept: Mapping[Uid, tuple[PreparedClaim, str]], *, still: Collection[Uid] = ()
    ) -> None:
        """Note which claims are gone and keep their devices, and why these may be in use.

        Args:
            kept: the claims, by UID.
            still: those of which nothing new is known.
        """
        for uid in [u for u, k in self._kept.items() if k.is_gone and u not in kept and u not in still]:
            self.release(uid)
        for record, why in kept.values():
            self._keep(record, why, is_gone=True)

    # --- claims that the kubelet unprepares -----------------------------------------------------------------

    async def check_unprepare(self, record: PreparedClaim) -> None:
        """Refuse to unprepare a claim while containers may use its devices; the kubelet tries again.

        Raises:
            PrepareError: they may.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _ENDING_SECONDS
        verdict = await self._of_unprepared(record)
        while verdict.use is Use.IN_USE and loop.time() < end and record.uid not in self._kept:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            verdict = await self._of_unprepared(record)
        if verdict.use is Use.FREE:
            return
        self._keep(record, verdict.why, is_gone=False)
        raise PrepareError(f"it keeps its devices: {verdict.why}", retryable=True)

    def release(self, uid: Uid) -> None:
        """Note that a claim keeps its devices no more because they may be in use."""
        if self._kept.pop(uid, None) is not None:
            self.changes.notify()

    def unprepared(self, uid: Uid) -> None:
        """Note that a claim has released its devices."""
        self.release(uid)
        if uid in self.asked:
            self.changes.notify()
        self._joined.pop(uid, None)
        self._once_listed.discard(uid)
        try:
            (self._unused / uid).unlink(missing_ok=True)
        except OSError as e:
            log.warning("a file about a claim that is unprepared stays", error=str(e))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _of_unprepared(self, record: PreparedClaim) -> Verdict:
        record = self._with_pods(record)
        view = await self._view([record])
        listed: bool | None = None
        if view is None or not record.pods:
            listed = await self._is_listed(record)
        others = [self._with_pods(r) for r in self._records()]
        verdict = judge_unprepare(record, listed=listed, view=view, others=others)
        return self._decided(record, verdict)

    async def _is_listed(self, record: PreparedClaim) -> bool | None:
        listed = await self.list()
        if listed is None:
            return None
        if not cdi_ids(record).isdisjoint(listed.pods):
            return True
        # Of devices that only an ordinary init container has, the kubelet lists nothing.
        return False if record.uid in self._once_listed else None

    async def _view(self, records: Sequence[PreparedClaim]) -> ProcessView | None:
        """Look for processes that use claims; of claims without any, at cgroups alone if that is enough."""
        seen = await self._cgroups({pod.uid for r in records for pod in r.pods})
        view: ProcessView | None = None
        if seen is None or seen or not all(r.is_for_one_pod for r in records):
            nodes = frozenset().union(*map(exclusive_nodes, records))
            view = await self._processes(nodes, [r.uid for r in records])
        if seen is not None:
            view = replace(view or ProcessView(complete=False), cgroups=seen)
        self.visible = view is not None
        return view

    def _with_pods(self, record: PreparedClaim) -> PreparedClaim:
        known = {p.uid for p in record.pods}
        more = tuple(p for uid, p in self._joined.get(record.uid, {}).items() if uid not in known)
        return msgspec.structs.replace(record, pods=(*record.pods, *more)) if more else record

    def _decided(self, record: PreparedClaim, verdict: Verdict) -> Verdict:
        """Take an administrator's word where nothing else is known; never against what is seen."""
        if verdict.use is Use.UNKNOWN and (self._unused / record.uid).is_file():
            return Verdict(Use.FREE)
        return verdict

    def _keep(self, record: PreparedClaim, why: str, *, is_gone: bool) -> None:
        """Note and report, once, a claim that keeps its devices."""
        if (before := self._kept.get(record.uid)) is not None:
            self._kept[record.uid] = replace(before, is_gone=is_gone or before.is_gone)
            return
        event = "is gone" if is_gone else "was to be unprepared"
        text = (
            f"a claim (UID {record.uid}) {event}, but it keeps its devices: {why}. End the processes or "
            "reboot the node. If processes cannot be seen and you know that nothing uses the devices, create "
            f"{self._unused}/{record.uid}"
        )
        self._kept[record.uid] = _Kept(record, text, rfc3339(self._clock.now()), is_gone)
        self.changes.notify()
        log.warning("a claim keeps its devices, which may be in use", claim=str(record.key), why=text)
        self._report(CLAIM_GONE_IN_USE, f"{self._driver}: {text}")


def set_up(
    settings: Configuration,
    *,
    clock: Clock,
    records: Callable[[], Sequence[PreparedClaim]],
    executor: Executor,
    report: Callable[[str, str], None],
) -> ClaimUse:
    """Return what watches the use of claims on the node that the settings describe.

    Args:
        settings: of the agent.
        clock: for the time since when devices are kept.
        records: the records of all claims.
        executor: where the node is looked at.
        report: see ``ClaimUse``.
    """
    processes = Processes(settings.procfs_root)
    cgroups = PodCgroups(settings.cgroup_root, settings.instance_id)

    async def look(nodes: Collection[str], claims: Collection[Uid]) -> ProcessView | None:
        return await asyncio.get_running_loop().run_in_executor(executor, processes.look, nodes, claims)

    async def with_processes(pods: Collection[Uid]) -> Mapping[Uid, str] | None:
        return await asyncio.get_running_loop().run_in_executor(executor, cgroups.with_processes, pods)

    return ClaimUse(
        driver=settings.driver_name,
        clock=clock,
        kubelet=PodResources(settings.pod_resources_socket, settings.driver_name).list,
        processes=look,
        cgroups=with_processes,
        records=records,
        unused=settings.state / _UNUSED,
        report=report,
    )
