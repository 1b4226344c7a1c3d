"""Semantic versions: what is one, and their order."""

from __future__ import annotations

import copy
import itertools

import pytest

from dra_driver.api.version import Version
from dra_driver.errors import InvalidVersion

# The chain of semver.org, extended: each is below the next.
ASCENDING = [
    "0.0.0",
    "0.9.9",
    "1.0.0-0",
    "1.0.0-2",
    "1.0.0-11",
    "1.0.0--",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "1.2.0",
    "1.10.0",
    "550.54.15",
    f"{2**64 - 1}.0.0",
]


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(ASCENDING, 2)))
def test_precedence(low: str, high: str) -> None:
    a, b = Version.parse(low), Version.parse(high)
    assert a < b
    assert b > a
    assert a <= b
    assert a != b


def test_build_metadata_does_not_count() -> None:
    assert Version.parse("1.0.0+a") == Version.parse("1.0.0+b.001")
    assert hash(Version.parse("1.0.0+a")) == hash(Version.parse("1.0.0"))
    assert str(Version.parse("1.0.0-rc.1+b.001")) == "1.0.0-rc.1+b.001"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.0",
        "1.0.0.0",
        "v1.0.0",
        "01.0.0",
        "1.00.0",
        "1.0.0-",
        "1.0.0-01",
        "1.0.0-a..b",
        "1.0.0+",
        "1.0.0+a..b",
        "1.0.0+a+b",
        "1.0.0 ",
        "-1.0.0",
        "1.0.٣",
        f"{2**64}.0.0",
        f"1.0.0-{2**64}",
        "1.0.0-" + "9" * 5000,
        "9" * 5000 + ".0.0",
    ],
)
def test_other_texts_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(InvalidVersion, match="is not a semantic version"):
        Version.parse(text)


def test_copies_are_equal_and_nothing_changes_a_version() -> None:
    version = Version.parse("1.2.3-rc.1+b")
    assert str(copy.deepcopy(version)) == str(version)
    with pytest.raises(AttributeError, match="immutable"):
        version.major = 2
