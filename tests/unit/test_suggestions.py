"""Which known name a mistyped one is meant for."""

import pytest

from dra_driver.suggestions import did_you_mean, nearest

CLASSES = ["gpu.dra-driver.dev", "nvidia.gpu.dra-driver.dev", "mig.gpu.dra-driver.dev", "rdma.dra-driver.dev"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("modle", ["memory", "model", "uuid"], "model"),
        ("Model", ["model"], "model"),
        ("gpu.dra-driver.de", CLASSES, "gpu.dra-driver.dev"),
        ("nvidia", CLASSES, "nvidia.gpu.dra-driver.dev"),
        ("gpu", CLASSES, "gpu.dra-driver.dev"),
        ("explian", ["explain", "plan"], "explain"),
        ("3g.40g", ["1g.10gb", "3g.40gb"], "3g.40gb"),
    ],
)
def test_a_typo_or_a_part_of_a_name_is_understood(name: str, known: list[str], meant: str) -> None:
    assert nearest(name, known) == meant
    assert did_you_mean(name, known) == f"; did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("cores", ["memory"]),
        ("dgx-b900", ["dgx-a100", "dgx-h200"]),
        ("driver", CLASSES),
        ("model", ["model", "modle"]),
        ("", ["model"]),
        ("x" * 100_000, ["x" * 99_999]),
        ("model", []),
    ],
)
def test_another_word_is_no_suggestion(name: str, known: list[str]) -> None:
    assert did_you_mean(name, known) == ""
