"""What ``core/v1`` pods require of where other pods are: affinity, anti-affinity, topology spread."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api.meta import Wire

__all__ = [
    "LabelSelector",
    "LabelSelectorRequirement",
    "PodAffinity",
    "PodAffinityTerm",
    "TopologySpreadConstraint",
]


class LabelSelectorRequirement(Wire, frozen=True, kw_only=True):
    """``meta/v1 LabelSelectorRequirement``: operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True, kw_only=True):
    """``meta/v1 LabelSelector``: all of it must hold; an empty one selects everything."""

    match_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class PodAffinityTerm(Wire, frozen=True, kw_only=True):
    """One term. Its ``matchLabelKeys`` are in the selector already: the API server puts them there."""

    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class PodAffinity(Wire, frozen=True, kw_only=True):
    """``podAffinity`` and ``podAntiAffinity``: only the required part binds us."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()


class TopologySpreadConstraint(Wire, frozen=True, kw_only=True):
    """``spec.topologySpreadConstraints[]``."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()
