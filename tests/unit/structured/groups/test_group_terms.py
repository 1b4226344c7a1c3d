"""What labels and annotations ask of a group, and what of them makes no sense."""

from __future__ import annotations

import sys

import pytest

from dra_driver.api.names import (
    GROUP_DOMAIN_ANNOTATION,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.structured import GroupTerms, Level, group_findings, group_terms, levels_of


@pytest.mark.parametrize(
    ("labels", "annotations", "terms"),
    [
        ({GROUP_SIZE_LABEL: "8"}, {}, GroupTerms(8, 8)),
        ({GROUP_SIZE_LABEL: "8", GROUP_MIN_LABEL: "4"}, {}, GroupTerms(8, 4)),
        (
            {GROUP_SIZE_LABEL: "8"},
            {GROUP_DOMAIN_ANNOTATION: "zone,rack*4"},
            GroupTerms(8, 8, (Level(label="zone"), Level(label="rack", count=4))),
        ),
        ({GROUP_SIZE_LABEL: "8"}, {GROUP_SOME_RUN_ANNOTATION: "release"}, GroupTerms(8, 8, release=True)),
        ({GROUP_SIZE_LABEL: "8"}, {GROUP_SOME_RUN_ANNOTATION: "wait"}, GroupTerms(8, 8)),
    ],
)
def test_terms_are_read(labels: dict[str, str], annotations: dict[str, str], terms: GroupTerms) -> None:
    assert group_terms([(labels, annotations), ({}, {}), (labels, {})]) == terms
    assert group_findings(labels, annotations) == []


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("preferred:attribute:a/b*2", Level(attribute="a/b", required=False, count=2)),
        (" topology.kubernetes.io/rack*16 ", Level(label="topology.kubernetes.io/rack", count=16)),
    ],
)
def test_the_last_level_may_have_a_count(text: str, level: Level) -> None:
    assert levels_of(text) == (level,)


@pytest.mark.parametrize(
    ("labels", "annotations", "field", "message"),
    [
        ({GROUP_SIZE_LABEL: "0"}, {}, f"labels[{GROUP_SIZE_LABEL}]", "is '0', expected 1 to 1024"),
        (
            {GROUP_SIZE_LABEL: "8", GROUP_MIN_LABEL: "9"},
            {},
            f"labels[{GROUP_MIN_LABEL}]",
            f"{GROUP_MIN_LABEL} is '9', expected 1 to 8",
        ),
        ({GROUP_MIN_LABEL: "-1"}, {}, f"labels[{GROUP_MIN_LABEL}]", "is '-1', expected 1 to 1024"),
        (
            {GROUP_SIZE_LABEL: "10"},
            {GROUP_DOMAIN_ANNOTATION: "rack*4"},
            f"labels[{GROUP_SIZE_LABEL}]",
            "is 10, expected a multiple of 4",
        ),
        (
            {GROUP_SIZE_LABEL: "8", GROUP_MIN_LABEL: "6"},
            {GROUP_DOMAIN_ANNOTATION: "rack*4"},
            f"labels[{GROUP_MIN_LABEL}]",
            "is 6, expected a multiple of 4",
        ),
        ({}, {GROUP_DOMAIN_ANNOTATION: "rack*x"}, f"annotations[{GROUP_DOMAIN_ANNOTATION}]", "the count 'x'"),
        ({}, {GROUP_DOMAIN_ANNOTATION: "rack*"}, f"annotations[{GROUP_DOMAIN_ANNOTATION}]", "the count ''"),
        (
            {},
            {GROUP_DOMAIN_ANNOTATION: "rack*" + "1" * 5_000},
            f"annotations[{GROUP_DOMAIN_ANNOTATION}]",
            "expected 1 to 1024",
        ),
        (
            {},
            {GROUP_DOMAIN_ANNOTATION: "zone*2,rack"},
            f"annotations[{GROUP_DOMAIN_ANNOTATION}]",
            "behind the last level only",
        ),
        (
            {},
            {GROUP_SOME_RUN_ANNOTATION: "stop"},
            f"annotations[{GROUP_SOME_RUN_ANNOTATION}]",
            "is 'stop', expected wait or release",
        ),
    ],
)
def test_what_makes_no_sense_is_named(
    labels: dict[str, str], annotations: dict[str, str], field: str, message: str
) -> None:
    (finding,) = group_findings(labels, annotations)
    assert finding.field == field
    assert message in finding.message


def test_members_must_agree() -> None:
    labels = {GROUP_SIZE_LABEL: "4"}
    text = group_terms([({**labels, GROUP_MIN_LABEL: "2"}, {}), ({**labels, GROUP_MIN_LABEL: "3"}, {})])
    assert text == f"its members name several {GROUP_MIN_LABEL}: 2, 3"
    assert group_terms([({}, {})]) == f"its members need one {GROUP_SIZE_LABEL}; they say nothing"


def test_an_annotation_full_of_levels_is_not_read_to_its_end() -> None:
    """A pod has room for 130,000, and the process that reviews is at work on one review at a time."""

    def calls(levels: int) -> int:
        text = ",".join(["rack"] * levels)
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            findings = group_findings({}, {GROUP_DOMAIN_ANNOTATION: text})
        finally:
            sys.setprofile(None)
        assert f"{levels} levels are named, expected 4 at most" in findings[0].message
        return counted

    assert calls(100_000) == calls(5)
