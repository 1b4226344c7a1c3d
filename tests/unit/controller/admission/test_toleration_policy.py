"""The admission policy on tolerations gives the verdict of the allocator, case by case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nonempty import nonempty
from policies import Policy
from tolerations import TAINT, cases, claim, template

OURS = "gpu.dra-driver.dev"
OWN = "fast-gpus"  # an administrator's own class, which may select our devices
OTHERS = "nic.example.com"
EXEMPT = f"['{OTHERS}']"


@pytest.mark.parametrize("wrap", [claim, template])
def test_whatever_covers_our_taint_is_refused_whichever_class_it_names(
    wrap: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> None:
    policy = Policy("dra-driver-no-toleration")
    table = list(cases(OURS, OWN, OTHERS))
    wrong = [c for c in table if policy.admits(wrap("c", c.spec)) is c.covers]
    assert wrong == []
    assert 0 < sum(c.covers for c in table) < len(table)


def test_classes_that_an_administrator_lists_may_tolerate_everything_but_not_our_key() -> None:
    policy = Policy("dra-driver-no-toleration", tolerantClasses=EXEMPT)
    for case in nonempty(cases(OWN, OTHERS)):
        refused = case.covers and not (case.keyless and case.class_name == OTHERS)
        assert policy.admits(claim("c", case.spec)) is not refused, case


@pytest.mark.parametrize("devices", [{}, {"requests": None}, {"requests": []}, {"requests": [{"name": "r"}]}])
def test_claims_without_requests_are_none_of_its_business(devices: dict[str, Any]) -> None:
    policy = Policy("dra-driver-no-toleration")
    assert policy.admits(claim("c", {"devices": devices}))
    assert policy.admits(template("c", {"devices": devices}))


def test_one_request_among_many_is_enough() -> None:
    policy = Policy("dra-driver-no-toleration")
    plain = {"name": "a", "exactly": {"deviceClassName": OWN}}
    sly = {"deviceClassName": OWN, "tolerations": [{"operator": "Exists"}]}
    assert policy.admits(claim("c", {"devices": {"requests": [plain] * 32}}))
    exactly = {"name": "b", "exactly": sly}
    assert not policy.admits(claim("c", {"devices": {"requests": [plain] * 31 + [exactly]}}))
    nested = {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": OWN}] * 7 + [sly]}
    assert not policy.admits(claim("c", {"devices": {"requests": [plain] * 31 + [nested]}}))


def test_the_taint_that_is_published_is_the_one_that_the_policy_is_about() -> None:
    """The policy is text: if the taint changes, it must change too."""
    assert (TAINT.key, TAINT.value, TAINT.effect) == (
        "dra-driver.dev/controller",
        "allocates",
        "NoSchedule",
    )
