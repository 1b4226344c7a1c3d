"""Which labels and annotations make pods a group: our own, and those that other controllers write.

==============================================  ============================================================
label ``dra-driver.dev/group``                  ours: the name of the group. Empty, the pod has none
annotation ``dra-driver.dev/group-by``          ours: labels of the pod, separated by commas, whose values
                                                name the group
label (or annotation)                           Kueue: pods that are admitted together; their number is in
``kueue.x-k8s.io/pod-group-name``               the annotation ``kueue.x-k8s.io/pod-group-total-count``
label                                           the coscheduling plugin of kube-scheduler, before it had
``pod-group.scheduling.sigs.k8s.io/name``       PodGroups; how many suffice is in the label
                                                ``pod-group.scheduling.sigs.k8s.io/min-available``
==============================================  ============================================================

Names of groups by labels of others have a "/", those of ``group-by`` a "=" in them, which label values have
not: they are never taken for a group of the first kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from dra_driver.api.names import (
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)

__all__ = [
    "LABELS_BEHIND",
    "READ_ANNOTATIONS",
    "READ_LABELS",
    "GroupLabels",
    "group_by_problem",
    "group_name",
    "is_named_by_others",
    "is_named_by_us",
    "labels_behind",
    "restart_of",
]


class GroupLabels(StrEnum):
    """Labels of others that make pods a group, by the program that reads or writes them."""

    KUEUE = "kueue"
    COSCHEDULING = "coscheduling"


_Meta = Mapping[str, str]

_KUEUE_NAME: Final = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
# Pods of such groups may come one after the other, each after the one before is ready: of a StatefulSet, or
# workers of a LeaderWorkerSet after their leader. Kueue does not wait for all of them either.
_KUEUE_ONE_BY_ONE: Final = ("kueue.x-k8s.io/pod-group-fast-admission", "kueue.x-k8s.io/pod-group-serving")
_COSCHEDULING_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
_COSCHEDULING_LEAST: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
_BEFORE: Final = {GroupLabels.KUEUE: "kueue.x-k8s.io/", GroupLabels.COSCHEDULING: "scheduling.sigs.k8s.io/"}
_BEHIND: Final = {
    GroupLabels.KUEUE: {GROUP_SIZE_LABEL: _KUEUE_COUNT},
    GroupLabels.COSCHEDULING: {GROUP_MIN_LABEL: _COSCHEDULING_LEAST},
}
LABELS_BEHIND: Final = tuple(other for of in _BEHIND.values() for other in of.values())
"""Labels and annotations of others that stand for labels of ours."""

_JOB_SET: Final = ("jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/jobset-name")
_RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"
_RESTARTS: Final = re.compile(r"[0-9]{1,9}")

READ_LABELS: Final = frozenset(
    {
        *(GROUP_LABEL, GROUP_SIZE_LABEL, GROUP_MIN_LABEL),
        *(_KUEUE_NAME, _KUEUE_COUNT, _COSCHEDULING_NAME, _COSCHEDULING_LEAST),
        *(*_JOB_SET, _RESTART),
    }
)
"""Labels of pods and claims that say something about groups, besides those that ``group-by`` names."""
READ_ANNOTATIONS: Final = frozenset(
    {
        *(GROUP_BY_ANNOTATION, GROUP_DOMAIN_ANNOTATION, GROUP_SOME_RUN_ANNOTATION),
        *(_KUEUE_NAME, _KUEUE_COUNT, *_KUEUE_ONE_BY_ONE, _COSCHEDULING_LEAST),
    }
)
"""Annotations of pods and claims that say something about groups."""

_MOST_LABELS: Final = 4
_LONGEST_KEY: Final = 317
# As long as the name of an object.
_LONGEST_NAME: Final = 253
_LONGEST_SHOWN: Final = 80
_KEY: Final = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def group_name(labels: _Meta, annotations: _Meta, others: Collection[str]) -> str:
    """Return the name of a pod's group, as far as its own metadata says; empty where it has none.

    Args:
        labels: of the pod.
        annotations: of the pod.
        others: labels of others that make pods a group, as ``GroupLabels`` names them.
    """
    own = labels.get(GROUP_LABEL)
    if own is not None:
        return own
    by = annotations.get(GROUP_BY_ANNOTATION)
    if by:
        keys = _keys(by)
        if isinstance(keys, str):
            return f"{GROUP_BY_ANNOTATION}={by[:_LONGEST_SHOWN]}"
        return ",".join(f"{key}={labels.get(key, '')}" for key in keys)
    if GroupLabels.KUEUE in others and (name := _kueue_group(labels, annotations)):
        return _BEFORE[GroupLabels.KUEUE] + name
    if GroupLabels.COSCHEDULING in others and labels.get(_COSCHEDULING_LEAST):
        name = labels.get(_COSCHEDULING_NAME, "")
        return name and _BEFORE[GroupLabels.COSCHEDULING] + name
    return ""


def is_named_by_us(name: str) -> bool:
    """Return whether the name of a group is that of the label ``dra-driver.dev/group``."""
    return "/" not in name and "=" not in name


def is_named_by_others(name: str) -> bool:
    """Return whether the name of a group is from labels of others alone."""
    return bool(labels_behind(name))


def labels_behind(name: str) -> Mapping[str, str]:
    """Return, of a group by labels of others, which of these stand for which labels of ours."""
    if "=" in name:
        return {}
    return next((_BEHIND[of] for of, before in _BEFORE.items() if name.startswith(before)), {})


def group_by_problem(labels: _Meta | None, annotations: _Meta) -> str:
    """Return what is wrong with the labels that are to name a pod's group; empty if nothing is.

    Args:
        labels: of the pod; if None, it is not looked at whether it has them.
        annotations: of the pod.
    """
    keys = _keys(annotations.get(GROUP_BY_ANNOTATION, ""))
    if isinstance(keys, str):
        return f"{GROUP_BY_ANNOTATION}: {keys}"
    if labels is not None and (lacking := [key for key in keys if not labels.get(key)]):
        return f"{GROUP_BY_ANNOTATION} names labels that the pod has not: {', '.join(lacking)}"
    return ""


def restart_of(labels: _Meta) -> tuple[str, int] | None:
    """Return the JobSet of a pod and how often that was restarted before the pod; None where it has none."""
    text = labels.get(_RESTART)
    if not text or not _RESTARTS.fullmatch(text):
        return None
    job_set = next((found for key in _JOB_SET if (found := labels.get(key))), None)
    return (job_set, int(text)) if job_set else None


def _kueue_group(labels: _Meta, annotations: _Meta) -> str:
    if not annotations.get(_KUEUE_COUNT) or any(annotations.get(k) == "true" for k in _KUEUE_ONE_BY_ONE):
        return ""
    # Kueue looks at the annotation first (feature gate WorkloadIdentifierAnnotations).
    for name in (annotations.get(_KUEUE_NAME, ""), labels.get(_KUEUE_NAME, "")):
        if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name):
            return name
    return ""


def _keys(text: str) -> tuple[str, ...] | str:
    """Return the labels that the annotation names, or what is wrong with it."""
    if len(text) > _MOST_LABELS * _LONGEST_KEY:
        return f"it has {len(text)} characters, expected {_MOST_LABELS} labels at most"
    keys = tuple(item.strip() for item in text.split(",")) if text else ()
    if len(keys) > _MOST_LABELS:
        return f"{len(keys)} labels are named, expected {_MOST_LABELS} at most"
    wrong = next((key for key in keys if not _KEY.fullmatch(key)), None)
    if wrong is not None:
        return f"{wrong[:_LONGEST_SHOWN]!r} is not the key of a label"
    return keys
