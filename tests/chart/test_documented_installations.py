"""Helm's commands in the documentation: the chart takes the values that they set."""

from __future__ import annotations

import re

import pytest
import yaml
from chart_support import KUBE_VERSION, ROOT, Chart, Refused
from documented_commands import Command, blocks, commands
from nonempty import nonempty

HELM = [
    command
    for block in blocks()
    if not block.reason
    for command in commands(block)
    if command.program == "helm"
]
# What an installation does beyond a rendering; flags of newer versions of Helm among them.
ALONE = {"--install", "--create-namespace", "--reuse-values", "--reset-then-reuse-values"}


def rendering(command: Command) -> list[str]:
    """The arguments of `helm template` in place of those of an installation."""
    words = [word for word in command.words[1:] if word not in ALONE]
    assert words.pop(0) in ("install", "upgrade"), command.text
    assert words[:2] == ["dra-driver", "deploy/helm/dra-driver"], command.text
    return ["template", "dra-driver", str(ROOT / words[1]), *words[2:], "--kube-version", KUBE_VERSION]


def test_there_are_such_commands() -> None:
    assert len(HELM) > 8


@pytest.mark.parametrize("command", HELM, ids=lambda c: str(c.block))
def test_the_chart_takes_what_the_page_sets(chart: Chart, command: Command) -> None:
    rendered = [d for d in yaml.safe_load_all(chart.run(*rendering(command))) if d]
    assert {"Deployment", "DaemonSet", "DeviceClass"} <= {d["kind"] for d in rendered}


@pytest.mark.parametrize("page", ["installation.md", "platforms.md", "migration.md"])
def test_values_that_pages_name_are_in_the_chart(page: str) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "dra-driver" / "values.yaml").read_text())
    text = (ROOT / "docs" / page).read_text()
    first = "|".join(key for key, value in values.items() if isinstance(value, dict))
    for name in nonempty(set(re.findall(rf"`((?:{first})(?:\.[a-zA-Z]+)+)\b", text))):
        found = values
        for key in name.split("."):
            assert key in found, f"{page}: {name}"
            found = found[key]


def test_a_value_that_is_not_there_is_refused(chart: Chart) -> None:
    with pytest.raises(Refused, match="extendedResources"):
        chart.render({"extendedResources": {"enabled": True}})
