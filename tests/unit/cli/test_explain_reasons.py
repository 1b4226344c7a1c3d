"""Why a claim does not fit: what is asked for in one line, a row for each cause, nothing twice."""

from __future__ import annotations

import json
import re

import builders
import pytest
from explained_fleet import asking, fleet, pod_of

from dra_driver.api.names import ALLOCATED_CONDITION
from dra_driver.cli.explain import explained
from dra_driver.cli.explaining.targets import parse_target, parse_targets
from dra_driver.errors import InvalidInput


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", "waits for its claims"),
        ("autoscalers see the pod: ", "waits: autoscalers see the pod"),
        ("0 of 8 members fit: ", "waits: 0 of 8 members fit"),
    ],
)
def test_why_a_claim_does_not_fit_is_not_repeated_of_its_pod(before: str, line: str) -> None:
    """The condition has the words of ``explain``, with figures that may be old."""
    pod = pod_of("p", "c", "", "")
    fits_not = explained(fleet(asking("c", "1000Gi")), output="json")
    reason = json.loads(str(fits_not))["claims"][0]["reason"]
    message = f"{before}{reason}".replace("160Gi", "100Gi")
    condition = {"type": ALLOCATED_CONDITION, "status": "False", "reason": "R", "message": message}
    pod["status"] = {"conditions": [condition]}
    found = str(explained(fleet(asking("c", "1000Gi"), pods=(pod,)), [parse_target("pod/p")], "ns"))
    assert found.splitlines()[1] == line
    assert found.count("needs 1 gpu with memory 1000Gi") == 1
    assert "100Gi" not in found


def test_claims_for_different_amounts_are_two_paragraphs_even_if_the_same_is_there() -> None:
    found = str(explained(fleet(asking("a", "1000Gi"), asking("b", "2000Gi"))))
    assert "ns/a does not fit: needs 1 gpu with memory 1000Gi\n" in found
    assert "ns/b does not fit: needs 1 gpu with memory 2000Gi\n" in found


def test_devices_that_are_too_few_are_counted_by_node() -> None:
    claim = builders.claim("many", builders.request("gpu", count=3), namespace="ns")
    (row,) = str(explained(fleet(claim))).splitlines()[2:3]
    assert " ".join(row.split()) == "gpu 6 of 6 free, but 3 are needed together n1 (2), n2 (2), n3 (2)"


@pytest.mark.parametrize(
    ("target", "namespace", "said"),
    [
        ("pod/trian", "ns", "; did you mean `train`?"),
        ("pod/train", "nss", "; namespace ns has one"),
        ("deploy/x", "nss", "; did you mean `ns`?"),
        ("claim/cc", "ns", "; did you mean `ns/c`?"),
        ("", "nss", "; did you mean `ns`?"),
    ],
)
def test_a_name_that_is_not_there_is_said_with_the_one_that_was_meant(
    target: str, namespace: str, said: str
) -> None:
    manifests = fleet(asking("c", "1Gi"), pods=(pod_of("train", "c", "", ""),))
    with pytest.raises(InvalidInput, match=re.escape(said) + "$"):
        explained(manifests, [parse_target(target)] if target else [], namespace)


def test_kind_and_name_may_be_two_words() -> None:
    assert parse_targets(["pod", "a", "b"]) == parse_targets(["pod/a", "pod/b"])
    assert parse_targets(["pod/a", "claim/b"]) == [parse_target("pod/a"), parse_target("claim/b")]
    for words in (["pod"], ["pdo", "a"], ["pod", "a/b"]):
        with pytest.raises(InvalidInput, match="KIND/NAME is wanted"):
            parse_targets(words)
    with pytest.raises(InvalidInput, match="did you mean `pods`"):
        parse_targets(["podss/a"])


def test_devices_of_a_claim_have_their_model_and_memory() -> None:
    manifests = fleet(asking("small", "32Gi"))
    header, row = str(explained(manifests)).splitlines()[1:3]
    assert header.split() == ["REQUEST", "DEVICE", "MODEL", "MEMORY"]
    assert row.split()[-1] == "40Gi"
    status = {"allocation": {"devices": {"results": [result(f"gpu-{i}") for i in (0, 1)]}}}
    held = [builders.claim(n, builders.request("gpu"), namespace="ns", status=status) for n in ("a", "b")]
    header, row, _ = str(explained(fleet(*held))).splitlines()
    assert header.split() == ["ALLOCATED", "CLAIM", "NODE", "DEVICES", "MODELS"]
    assert row.split("   ")[-1].split(" ")[-1] in ("40Gi", "80Gi")


def result(device: str) -> dict[str, str]:
    return {"request": "gpu", "driver": builders.DRIVER, "pool": "n1", "device": device}
