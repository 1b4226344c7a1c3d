"""The port of the page in the documentation is the one that the chart sets."""

from __future__ import annotations

import re

from paths import PROJECT

CHART = PROJECT / "deploy/helm/dra-driver"


def test_the_page_is_reached_by_the_port_that_the_chart_sets() -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    (port,) = re.findall(r'define "dra-driver\.webPort" -}}(\d+){{', helpers)
    pages = [PROJECT / "README.md", CHART / "values.yaml", *(PROJECT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text()
        forwarded = re.findall(r"port-forward deployment/dra-driver-controller (\d+)", text)
        assert set(forwarded) <= {port}, page
        if forwarded and page.suffix == ".md":
            assert "controller.web" in text, f"{page}: the page is off by default"
            assert set(re.findall(r"localhost:(\d+)", text)) <= {port}, page
