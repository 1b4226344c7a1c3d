"""What labels and annotations ask of a group: its size, its topology, and what becomes of a part of it.

============================================  ==============================================================
label ``dra-driver.dev/group-size``           number of members; of an elastic group, the most
label ``dra-driver.dev/group-min``            number of members that suffice; without it, all are needed
annotation ``dra-driver.dev/group-domain``    levels of topology, separated by commas, the widest one first:
                                              ``LABEL`` or ``attribute:NAME``, before it ``required:`` (the
                                              default) or ``preferred:``, behind the last one ``*COUNT``
annotation ``dra-driver.dev/group-when-       ``wait`` (the default) or ``release``
some-run``
============================================  ==============================================================

Sizes may be on labels of others instead: ``dra_driver.structured.groups.labels``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from dra_driver.api.names import (
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.structured.groups.labels import LABELS_BEHIND, group_by_problem, labels_behind
from dra_driver.structured.groups.members import Level

__all__ = [
    "GROUP_KEYS",
    "LARGEST_GROUP",
    "GroupFinding",
    "GroupTerms",
    "group_findings",
    "group_terms",
    "levels_of",
]

LARGEST_GROUP: Final = 1024
"""Members that a group can have."""

# Each combination of their values is a domain.
_MOST_LEVELS: Final = 4
_MOST_ATTRIBUTES: Final = 1
_LONGEST_SHOWN: Final = 80
# Annotations may have so many digits that they are no number to Python any more.
_LONGEST_NUMBER: Final = 63
_Meta = Mapping[str, str]
_LABELS: Final = (GROUP_SIZE_LABEL, GROUP_MIN_LABEL)
_ANNOTATIONS: Final = (GROUP_DOMAIN_ANNOTATION, GROUP_SOME_RUN_ANNOTATION)
GROUP_KEYS: Final = frozenset((GROUP_LABEL, *_LABELS, *_ANNOTATIONS, *LABELS_BEHIND))
"""Labels and annotations of claims that say something of a group."""


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """What a group asks for beside the claims of its members.

    Attributes:
        size: number of members; of an elastic group, the most.
        least: number of members that suffice.
        levels: of topology that the members share.
        release: where some members run and another one cannot be placed, devices of those that are not bound
            are released, until all that are missing can have theirs; otherwise they keep them.
        size_key: the label or annotation that names the size; empty, any number of members may come.
    """

    size: int
    least: int
    levels: tuple[Level, ...] = ()
    release: bool = False
    size_key: str = GROUP_SIZE_LABEL

    @property
    def is_elastic(self) -> bool:
        """Whether fewer members suffice than there can be."""
        return self.least < self.size

    @property
    def is_bounded(self) -> bool:
        """Whether the group says how many members there can be."""
        return bool(self.size_key)

    @property
    def parts(self) -> Level | None:
        """The level with a count of members for each domain, if there is one."""
        return next((level for level in self.levels if level.count), None)

    def with_room_for(self, members: int) -> GroupTerms:
        """Return the terms of a group that has more members than it names: those join the others.

        With parts, as many may come as make the last one whole.
        """
        count = self.parts.count if self.parts is not None else 1
        return replace(self, size=min(members + -members % count, LARGEST_GROUP - LARGEST_GROUP % count))

    @property
    def number(self) -> str:
        """The number of members, for people: ``8``, ``4 to 8``, or ``at least 4``."""
        if not self.is_elastic:
            return str(self.size)
        return f"{self.least} to {self.size}" if self.is_bounded else f"at least {self.least}"


class GroupFinding(NamedTuple):
    """A label or an annotation that makes no sense.

    Attributes:
        key: its name.
        message: what is there, and what is expected.
    """

    key: str
    message: str

    @property
    def field(self) -> str:
        """Where it is, in the object's metadata."""
        return f"{'labels' if self.key in _LABELS else 'annotations'}[{self.key}]"


def group_findings(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[GroupFinding]:
    """Return what makes no sense in the metadata of one object, whatever others of its group say."""
    findings = _read(_values(labels, annotations))[1]
    if problem := group_by_problem(None, annotations):
        findings.append(GroupFinding(GROUP_BY_ANNOTATION, problem))
    return findings


def group_terms(of: Iterable[tuple[_Meta, _Meta]], name: str = "") -> GroupTerms | str:
    """Return what a group asks for, or what is wrong with that.

    Args:
        of: labels and annotations of each member, and of each claim that a member uses.
        name: of the group. Where others have named it, what they say counts as far as our labels say nothing.
    """
    behind = labels_behind(name)
    found: dict[str, set[str]] = {key: set() for key in (*_LABELS, *_ANNOTATIONS)}
    others: dict[str, set[str]] = {key: set() for key in behind}
    for labels, notes in of:
        for key, other in behind.items():
            if value := labels.get(other) or notes.get(other):
                others[key].add(value)
        for key in _LABELS:
            if value := labels.get(key):
                found[key].add(value)
        for key in _ANNOTATIONS if notes else ():
            if value := notes.get(key):
                found[key].add(value)
    said_by = {key: behind[key] for key, values in others.items() if values and not found[key]}
    found |= {key: others[key] for key in said_by}
    bounded = GROUP_MIN_LABEL not in behind or bool(found[GROUP_SIZE_LABEL])
    if bounded and len(found[GROUP_SIZE_LABEL]) != 1:
        said = _listed(found[GROUP_SIZE_LABEL]) or "nothing"
        return f"its members need one {said_by.get(GROUP_SIZE_LABEL, GROUP_SIZE_LABEL)}; they say {said}"
    for key, values in found.items():
        if len(values) > 1:
            return f"its members name several {said_by.get(key, key)}: {_listed(values)}"
    terms, findings = _read(
        {key: values.pop() for key, values in found.items() if values}, said_by, bounded=bounded
    )
    if findings or terms is None:
        return "; ".join(finding.message for finding in findings)
    return terms


def _values(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    pairs = [(key, labels.get(key)) for key in _LABELS] + [(k, annotations.get(k)) for k in _ANNOTATIONS]
    return {key: value for key, value in pairs if value}


def _listed(values: Iterable[str]) -> str:
    return ", ".join(value[:_LONGEST_SHOWN] for value in sorted(values))


def _read(
    values: Mapping[str, str], said_by: Mapping[str, str] = MappingProxyType({}), *, bounded: bool = True
) -> tuple[GroupTerms | None, list[GroupFinding]]:
    """Return what the values ask for, as far as they make sense, and what makes no sense.

    Args:
        values: by our names.
        said_by: labels and annotations of others that they are from.
        bounded: whether the size is named; otherwise so many suffice as are named, and any more may come.
    """
    findings: list[GroupFinding] = []

    def number(key: str, most: int) -> int | None:
        text = values.get(key)
        if text is None:
            return None
        if not _is_number(text, most):
            key = said_by.get(key, key)
            message = f"{key} is {text[:_LONGEST_SHOWN]!r}, expected 1 to {most}"
            findings.append(GroupFinding(key, message))
            return None
        return int(text)

    size = number(GROUP_SIZE_LABEL, LARGEST_GROUP)
    least = number(GROUP_MIN_LABEL, LARGEST_GROUP if size is None else size)
    levels = levels_of(values.get(GROUP_DOMAIN_ANNOTATION, ""))
    if isinstance(levels, str):
        findings.append(GroupFinding(GROUP_DOMAIN_ANNOTATION, f"{GROUP_DOMAIN_ANNOTATION}: {levels}"))
        levels = ()
    for level in levels:
        for key, members in ((GROUP_SIZE_LABEL, size), (GROUP_MIN_LABEL, least)):
            if level.count and members is not None and members % level.count:
                shown = said_by.get(key, key)
                message = (
                    f"{shown} is {members}, expected a multiple of {level.count}: {GROUP_DOMAIN_ANNOTATION} "
                    f"has so many members share each {level.name}"
                )
                findings.append(GroupFinding(shown, message))
    some_run = values.get(GROUP_SOME_RUN_ANNOTATION, "wait")
    if some_run not in ("wait", "release"):
        message = f"{GROUP_SOME_RUN_ANNOTATION} is {some_run[:_LONGEST_SHOWN]!r}, expected wait or release"
        findings.append(GroupFinding(GROUP_SOME_RUN_ANNOTATION, message))
    if findings:
        return None, findings
    release = some_run == "release"
    if not bounded and least is not None:
        parts = next((level.count for level in levels if level.count), 1)
        return GroupTerms(LARGEST_GROUP - LARGEST_GROUP % parts, least, levels, release, size_key=""), []
    if size is None:
        return None, []
    key = said_by.get(GROUP_SIZE_LABEL, GROUP_SIZE_LABEL)
    return GroupTerms(size, size if least is None else least, levels, release, key), []


def _is_number(text: str, most: int) -> bool:
    digits = len(text) <= _LONGEST_NUMBER and text.isascii() and text.isdigit()
    return digits and 1 <= int(text) <= most


def levels_of(text: str) -> tuple[Level, ...] | str:
    """Return the levels that the annotation for topology names, or what is wrong with it."""
    levels: list[Level] = []
    # First of all: an annotation has room for 130,000.
    number = text.count(",") + 1
    if number > _MOST_LEVELS:
        return f"{number} levels are named, expected {_MOST_LEVELS} at most"
    for item in text.split(",") if text.strip() else ():
        level = _level(item.strip())
        if isinstance(level, str):
            return level
        levels.append(level)
    if sum(bool(level.attribute) for level in levels) > _MOST_ATTRIBUTES:
        return f"more than {_MOST_ATTRIBUTES} attribute of devices is named"
    if any(level.count for level in levels[:-1]):
        return "a count of members stands behind the last level only"
    return tuple(levels)


def _level(item: str) -> Level | str:
    text, star, count = item.partition("*")
    if star and not _is_number(count, LARGEST_GROUP):
        shown = item[:_LONGEST_SHOWN]
        return f"{shown!r} has the count {count[:_LONGEST_SHOWN]!r}, expected 1 to {LARGEST_GROUP}"
    kind, _, name = text.rpartition(":")
    strictness, _, what = kind.partition(":")
    if strictness == "attribute" and not what:
        strictness, what = "", "attribute"
    if strictness not in ("", "required", "preferred") or what not in ("", "attribute") or not name:
        return (
            f"{item[:_LONGEST_SHOWN]!r} is not understood; a node label is, or attribute:NAME of devices, "
            "with required: or preferred: before it, and *COUNT behind the last one"
        )
    level = Level(required=strictness != "preferred", count=int(count) if star else 0)
    return replace(level, attribute=name) if what else replace(level, label=name)
