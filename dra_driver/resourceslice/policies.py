"""Merges DevicePolicies into settings for each device and for the pool.

Order: the higher ``priority`` first, between equals the name that sorts first. Each field is taken from the
first policy that sets it; taints are united by key and effect, attributes by name, where again the first one
wins. What a policy loses to another one is in its status. It is a conflict where both have the same priority:
then no admin has said which one should win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dra_driver.api.meta import DriverName
from dra_driver.api.own.policy import DevicePolicy, HealthPolicy, PartitionPolicy, SharePolicy
from dra_driver.api.resource import Device, DeviceAttribute, DeviceTaint

if TYPE_CHECKING:
    from dra_driver import cel

__all__ = ["DeviceSettings", "Overridden", "PolicyOutcome", "PoolSettings", "merge_policies"]

_SCALARS: Final = ("hide", "share", "partitions", "health", "besideDevicePlugin", "besideOtherDriver")
# Fields whose names in Python are not those of the API, which people read.
_MEMBERS: Final = {
    "nodePolicy": "node_policy",
    "besideDevicePlugin": "beside_device_plugin",
    "besideOtherDriver": "beside_other_driver",
}
_DEFAULT_HEALTH: Final = HealthPolicy()


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What applies to one device.

    Attributes:
        sources: field → name of the policy that it is from.
    """

    hide: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    attributes: Mapping[str, DeviceAttribute] = field(default_factory=dict)
    share: SharePolicy | None = None
    partitions: PartitionPolicy | None = None
    health: HealthPolicy = _DEFAULT_HEALTH
    beside_device_plugin: str = ""
    beside_other_driver: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Overridden:
    """A field that a policy sets and another one sets otherwise.

    Attributes:
        policy: the one that loses.
        field: name of the field, with the key where only a part of it is lost.
        winner: the other one.
        tie: both have the same priority.
    """

    policy: str
    field: str
    winner: str
    tie: bool


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What became of one policy in one pool.

    Attributes:
        devices: number of devices that it matches.
        overridden: fields that it lost.
        problems: what is wrong with it, such as a selector that cannot be evaluated.
        pending: what waits for devices that are in use.
    """

    devices: int = 0
    overridden: tuple[Overridden, ...] = ()
    problems: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What applies to a pool and its devices; names as in ``DevicePolicySpec``, or empty."""

    allocator: str
    strategy: str
    node_policy: str
    devices: Mapping[str, DeviceSettings]
    outcomes: Mapping[str, PolicyOutcome]
    sources: Mapping[str, str]


def merge_policies(
    policies: Iterable[DevicePolicy], driver: DriverName, devices: Sequence[Device]
) -> PoolSettings:
    """Return the settings of one pool.

    Args:
        policies: those that match the node, in any order.
        driver: policies for other drivers are left out.
        devices: as found on the node, before any policy.
    """
    # Imported here: a node agent whose slices the controller publishes never needs these 3 MiB.
    from dra_driver import cel

    ranked = sorted(
        (p for p in policies if p.spec.driver in ("", driver) and not p.metadata.deletion_timestamp),
        key=lambda p: p.rank,
    )
    notes: dict[str, _Notes] = {p.metadata.name: _Notes(p.spec.priority) for p in ranked}
    merge = _Merge(notes)
    views = [(d, cel.DeviceView(driver, d)) for d in devices] if ranked else []
    matching = {p.metadata.name: _matching(p, views, notes[p.metadata.name]) for p in ranked}
    settings: dict[str, DeviceSettings] = {}
    for device, _ in views:
        mine = [p for p in ranked if device.name in matching[p.metadata.name]]
        if mine:
            settings[device.name] = merge.device(mine)
    pool = merge.pool([p for p in ranked if matching[p.metadata.name] or not devices])
    for name, found in matching.items():
        notes[name].devices = len(found)
    return PoolSettings(
        allocator=str(pool.get("allocator", ("", ""))[0]),
        strategy=str(pool.get("strategy", ("", ""))[0]),
        node_policy=str(pool.get("nodePolicy", ("", ""))[0]),
        devices=settings,
        outcomes={name: n.outcome() for name, n in notes.items() if n.devices or n.problems},
        sources={name: source for name, (_, source) in pool.items()},
    )


@dataclass(slots=True)
class _Notes:
    priority: int
    devices: int = 0
    overridden: set[Overridden] = field(default_factory=set)
    problems: dict[str, None] = field(default_factory=dict)

    def outcome(self) -> PolicyOutcome:
        return PolicyOutcome(self.devices, tuple(sorted(self.overridden)), tuple(self.problems))


def _matching(
    policy: DevicePolicy, views: Sequence[tuple[Device, cel.DeviceView]], notes: _Notes
) -> frozenset[str]:
    """Return the names of the devices that every selector matches; an error on a device counts as no."""
    from dra_driver import cel

    selectors: list[Callable[[cel.DeviceView], bool]] = []
    for selector in policy.spec.device_selectors:
        if selector.cel is None:
            continue
        try:
            selectors.append(cel.compile_selector(selector.cel.expression).matches)
        except cel.CelCompileError as e:
            notes.problems[f"a device selector does not compile: {e}"] = None
            return frozenset()
    found: list[str] = []
    for device, view in views:
        if view.error is not None and selectors:
            notes.problems[f"device {device.name}: {view.error}"] = None
            continue
        try:
            if all(matches(view) for matches in selectors):
                found.append(device.name)
        except cel.CelRuntimeError as e:
            notes.problems[f"a device selector fails on device {device.name}: {e}"] = None
    return frozenset(found)


class _Merge:
    """Takes fields from policies in the order of their rank, and notes who lost what."""

    def __init__(self, notes: Mapping[str, _Notes]) -> None:
        self._notes = notes

    def device(self, ranked: Sequence[DevicePolicy]) -> DeviceSettings:
        chosen = self._scalars(ranked, _SCALARS)
        taints: dict[tuple[str, str], tuple[DeviceTaint, str]] = {}
        attributes: dict[str, tuple[DeviceAttribute, str]] = {}
        for policy in ranked:
            name = policy.metadata.name
            for taint in policy.spec.taints:
                present = taints.setdefault((taint.key, taint.effect), (taint, name))
                if present[0].value != taint.value:
                    self._lost(name, f"taints[{taint.key}]", present[1])
            for key, attribute in policy.spec.attributes.items():
                known = attributes.setdefault(key, (attribute, name))
                if known[0] != attribute:
                    self._lost(name, f"attributes[{key}]", known[1])
        sources = {name: source for name, (_, source) in chosen.items()}
        sources |= {f"attributes[{key}]": source for key, (_, source) in attributes.items()}
        hide, share = chosen.get("hide"), chosen.get("share")
        partitions, health = chosen.get("partitions"), chosen.get("health")
        result = DeviceSettings(
            hide=hide is not None and hide[0] is True,
            taints=tuple(taint for taint, _ in taints.values()),
            attributes={key: attribute for key, (attribute, _) in attributes.items()},
            share=share[0] if share is not None and isinstance(share[0], SharePolicy) else None,
            partitions=partitions[0]
            if partitions is not None and isinstance(partitions[0], PartitionPolicy)
            else None,
            health=health[0]
            if health is not None and isinstance(health[0], HealthPolicy)
            else _DEFAULT_HEALTH,
            beside_device_plugin=str(chosen.get("besideDevicePlugin", ("", ""))[0]),
            beside_other_driver=str(chosen.get("besideOtherDriver", ("", ""))[0]),
            sources=sources,
        )
        return self._share_or_partitions(result, ranked)

    def _share_or_partitions(
        self, settings: DeviceSettings, ranked: Sequence[DevicePolicy]
    ) -> DeviceSettings:
        """Keep the one that ranks first: the counters of a GPU are taken once for all of its shares."""
        share, cut = settings.share, settings.partitions
        if share is None or not share.shares or cut is None or not cut.profiles:
            return settings
        order = [p.metadata.name for p in ranked]
        sharing, cutting = settings.sources["share"], settings.sources["partitions"]
        if order.index(sharing) <= order.index(cutting):
            self._lost(cutting, "partitions", sharing)
            cut = None
        else:
            self._lost(sharing, "share", cutting)
            share = None
        return replace(settings, share=share, partitions=cut)

    def pool(self, ranked: Sequence[DevicePolicy]) -> dict[str, tuple[object, str]]:
        return self._scalars(ranked, ("allocator", "strategy", "nodePolicy"))

    def _scalars(
        self, ranked: Sequence[DevicePolicy], fields: Iterable[str]
    ) -> dict[str, tuple[object, str]]:
        chosen: dict[str, tuple[object, str]] = {}
        for name in fields:
            for policy in ranked:
                value: object = getattr(policy.spec, _MEMBERS.get(name, name))
                if value is None or value == "":
                    continue
                if name not in chosen:
                    chosen[name] = (value, policy.metadata.name)
                elif chosen[name][0] != value:
                    self._lost(policy.metadata.name, name, chosen[name][1])
        return chosen

    def _lost(self, policy: str, field_: str, winner: str) -> None:
        if policy != winner:
            tie = self._notes[policy].priority == self._notes[winner].priority
            self._notes[policy].overridden.add(Overridden(policy, field_, winner, tie))
