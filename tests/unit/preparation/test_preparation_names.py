"""Names made of claims are safe, and different for different claims."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.errors import InvalidInput
from dra_driver.preparation import check_uid, spec_file_name, uid_of_spec_file
from dra_driver.preparation.files import names

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "-a", "a-", "a.b", "a b", "a\n", "ü", "a" * 64, "a\0"])
def test_uids_that_are_refused(uid: str) -> None:
    with pytest.raises(InvalidInput, match="claim UID"):
        check_uid(uid)


@given(st.text(max_size=80))
def test_a_file_name_is_never_a_path(uid: str) -> None:
    try:
        name = spec_file_name("gpu.example.com", Uid(uid))
    except InvalidInput:
        return
    assert "/" not in name
    assert "\0" not in name
    assert uid_of_spec_file("gpu.example.com", name) == uid
    assert uid_of_spec_file("gpu.example", name) is None


def test_files_of_others_are_not_ours() -> None:
    for name in (
        "nvidia.yaml",
        "k8s.gpu.example.com-claim_x.yaml",
        "k8s.gpu.example.com-claim_.json",
        "k8s.gpu.example.com-claim_a.b.json",
        "k8s.gpu.example.com-other_x.json",
        ".k8s.gpu.example.com-claim_x.json.0123.tmp",
    ):
        assert uid_of_spec_file("gpu.example.com", name) is None


@given(st.tuples(labels, labels, st.none() | labels), st.tuples(labels, labels, st.none() | labels))
def test_cdi_device_names_differ_where_their_parts_do(
    one: tuple[str, str, str | None], two: tuple[str, str, str | None]
) -> None:
    a = names.cdi_device_name(Uid("0f"), *one)
    b = names.cdi_device_name(Uid("0f"), *two)
    assert (a == b) == (one == two)
    assert cdi.qualified_name("k8s.example.com/claim", a)
    assert a[0].isalpha()


@given(st.text(max_size=300), st.text(max_size=300))
def test_environment_fragments_are_names_of_variables_and_differ(one: str, two: str) -> None:
    a, b = names.environment_fragment(one), names.environment_fragment(two)
    assert re.fullmatch(r"[A-Z0-9_]{1,64}", a)
    assert "__" not in a
    assert (a == b) == (one == two)


def test_environment_fragments_of_usual_names() -> None:
    assert names.environment_fragment("gpu") == "GPU"
    assert names.environment_fragment("my-gpu-2") == "MY_GPU_2"
    assert re.fullmatch(r"A_B_[0-9A-F]{8}", names.environment_fragment("a.b"))
