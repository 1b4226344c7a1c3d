"""Which labels and annotations make pods a group, and what is wrong with them."""

from __future__ import annotations

import pytest
from written_pods import pods_of

from dra_driver.api.names import (
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
)
from dra_driver.structured import (
    LARGEST_GROUP,
    GroupLabels,
    GroupTerms,
    Level,
    group_by_problem,
    group_findings,
    group_name,
    group_terms,
    is_named_by_us,
    restart_of,
)

Meta = dict[str, str]
KUEUE_NAME = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
COSCHEDULING = "pod-group.scheduling.sigs.k8s.io"
NUMBER = f"{COSCHEDULING}/min-available"
JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/restart-attempt": "2"}
BOTH = tuple(GroupLabels)


def written(controller: str) -> tuple[Meta, Meta]:
    metadata = pods_of(controller)[0]["metadata"]
    return metadata["labels"], metadata.get("annotations", {})


@pytest.mark.parametrize(
    ("controller", "name", "terms"),
    [
        ("kueue", "kueue.x-k8s.io/train", GroupTerms(3, 3, size_key=KUEUE_COUNT)),
        ("coscheduling", "scheduling.sigs.k8s.io/train", GroupTerms(LARGEST_GROUP, 3, size_key="")),
    ],
)
def test_groups_of_others_are_recognised(controller: str, name: str, terms: GroupTerms) -> None:
    labels, notes = written(controller)
    assert group_name(labels, notes, BOTH) == name
    assert not is_named_by_us(name)
    assert group_terms([(labels, notes), ({}, {})], name) == terms
    assert group_name(labels, notes, ()) == ""
    assert group_name(labels, notes, [of for of in BOTH if of != controller]) == ""


@pytest.mark.parametrize("controller", ["jobset", "leaderworkerset"])
def test_where_the_number_is_not_on_the_pod_there_is_no_group(controller: str) -> None:
    assert group_name(*written(controller), BOTH) == ""


@pytest.mark.parametrize("key", ["fast-admission", "serving"])
def test_pods_that_come_one_after_the_other_are_no_group(key: str) -> None:
    labels, notes = written("kueue")
    assert group_name(labels, {**notes, f"kueue.x-k8s.io/pod-group-{key}": "true"}, BOTH) == ""


@pytest.mark.parametrize(
    ("labels", "notes"),
    [
        ({KUEUE_NAME: "train"}, {}),
        ({}, {KUEUE_COUNT: "3"}),
        ({"scheduling.x-k8s.io/pod-group": "train"}, {}),
        ({f"{COSCHEDULING}/name": "train"}, {}),
        ({NUMBER: "3"}, {}),
        ({}, {KUEUE_COUNT: "3", KUEUE_NAME: "x" * 254}),
        ({}, {KUEUE_COUNT: "3", KUEUE_NAME: "a/b=c"}),
    ],
)
def test_half_of_it_is_no_group(labels: Meta, notes: Meta) -> None:
    assert group_name(labels, notes, BOTH) == ""


def test_labels_of_ours_win() -> None:
    labels, notes = written("kueue")
    assert group_name({**labels, GROUP_LABEL: "mine"}, notes, BOTH) == "mine"
    assert group_name({**labels, GROUP_LABEL: ""}, notes, BOTH) == ""
    by = {**notes, GROUP_BY_ANNOTATION: KUEUE_NAME}
    assert group_name(labels, by, BOTH) == f"{KUEUE_NAME}=train"
    own = {**labels, GROUP_SIZE_LABEL: "5"}
    assert group_terms([(own, notes)], "kueue.x-k8s.io/train") == GroupTerms(5, 5)
    smaller = {**labels, GROUP_MIN_LABEL: "2"}
    assert group_terms([(smaller, notes)], "kueue.x-k8s.io/train") == GroupTerms(3, 2, size_key=KUEUE_COUNT)
    # A group of ours is not asked what others say.
    assert (
        group_terms([(labels, notes)], "mine") == f"its members need one {GROUP_SIZE_LABEL}; they say nothing"
    )


def test_the_annotation_of_kueue_goes_before_its_label() -> None:
    labels, notes = written("kueue")
    assert group_name(labels, {**notes, KUEUE_NAME: "long.name"}, BOTH) == "kueue.x-k8s.io/long.name"


@pytest.mark.parametrize("count", ["0", "-1", "1000000000", "three", "9" * 5000, "1e3", "٣"])
def test_a_number_of_others_that_makes_no_sense_is_named(count: str) -> None:
    found = group_terms([({}, {KUEUE_COUNT: count})], "kueue.x-k8s.io/train")
    assert isinstance(found, str)
    assert found.startswith(f"{KUEUE_COUNT} is '{count[:80]}', expected 1 to 1024"[:100])
    assert len(found) < 200
    found = group_terms([({NUMBER: count[:63]}, {})], "scheduling.sigs.k8s.io/train")
    assert isinstance(found, str)
    assert found.startswith(NUMBER)


def test_members_must_agree_about_numbers_of_others() -> None:
    found = group_terms([({}, {KUEUE_COUNT: "2"}), ({}, {KUEUE_COUNT: "3"})], "kueue.x-k8s.io/train")
    assert found == f"its members need one {KUEUE_COUNT}; they say 2, 3"
    found = group_terms([({NUMBER: "2"}, {}), ({NUMBER: "3"}, {})], "scheduling.sigs.k8s.io/train")
    assert found == f"its members name several {NUMBER}: 2, 3"


def test_members_in_parts_of_a_group_without_an_end() -> None:
    notes = {GROUP_DOMAIN_ANNOTATION: "rack*3"}
    found = group_terms([({NUMBER: "3"}, notes)], "scheduling.sigs.k8s.io/train")
    assert found == GroupTerms(1023, 3, (Level(label="rack", count=3),), size_key="")
    found = group_terms([({NUMBER: "4"}, notes)], "scheduling.sigs.k8s.io/train")
    assert isinstance(found, str)
    assert f"{NUMBER} is 4, expected a multiple of 3" in found


def test_a_group_by_labels_has_their_values() -> None:
    labels = {"a": "1", "x.io/b": "2"}
    assert group_name(labels, {GROUP_BY_ANNOTATION: "a, x.io/b"}, ()) == "a=1,x.io/b=2"
    assert group_by_problem(labels, {GROUP_BY_ANNOTATION: "a,x.io/b"}) == ""
    assert not is_named_by_us(group_name(labels, {GROUP_BY_ANNOTATION: "a"}, ()))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b,c,d,e", "5 labels are named, expected 4 at most"),
        ("a,,b", "'' is not the key of a label"),
        ("a=b", "'a=b' is not the key of a label"),
        ("x" * 5000, "it has 5000 characters, expected 4 labels at most"),
        ("missing", "names labels that the pod has not: missing"),
    ],
)
def test_labels_that_name_no_group_are_refused(text: str, problem: str) -> None:
    notes = {GROUP_BY_ANNOTATION: text}
    found = group_by_problem({"a": "1"}, notes)
    assert problem in found
    # The pod is not served alone instead, and its group has a short name.
    assert 0 < len(group_name({"a": "1"}, notes, ())) < 150
    assert [f.message for f in group_findings({}, notes)] == ([] if text == "missing" else [found])


def test_restarts_are_those_of_a_job_set() -> None:
    assert restart_of(JOB_SET) == ("train", 2)
    assert restart_of({**JOB_SET, "jobset.sigs.k8s.io/jobset-uid": "u"}) == ("u", 2)
    assert restart_of({"jobset.sigs.k8s.io/restart-attempt": "2"}) is None
    for wrong in ("", "x", "-1", "9" * 63, "²"):
        assert restart_of({**JOB_SET, "jobset.sigs.k8s.io/restart-attempt": wrong}) is None
