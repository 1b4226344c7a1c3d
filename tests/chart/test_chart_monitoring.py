"""Alerts, dashboard and ServiceMonitors: of the right form, and about metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from chart_cases import ALL_MONITORING
from chart_support import CHART, Chart, Object, named, of_kind
from nonempty import nonempty
from paths import PROJECT

import controller.observe.metrics
import kubelet_plugin.telemetry.metrics

ALERTS = {
    "groups": [
        *yaml.safe_load((CHART / "files" / "alerts" / "controller.yaml").read_text()),
        *yaml.safe_load((CHART / "files" / "alerts" / "nodes.yaml").read_text()),
    ]
}
DASHBOARD = json.loads((CHART / "files" / "dashboards" / "dra-driver.json").read_text())
# Added by Prometheus to what it scrapes; "node" by the relabeling of our ServiceMonitor.
ADDED_LABELS = {"node", "le"}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def metrics() -> dict[str, set[str]]:
    """Every name that the driver's two processes expose → its labels."""
    node = kubelet_plugin.telemetry.metrics.Metrics(
        kubelet_plugin.telemetry.metrics.Sources(
            devices=list, claims=list, failures=dict, registrations=lambda: 0, registered=lambda: True
        )
    )
    found: dict[str, set[str]] = {}
    for registry in (controller.observe.metrics.Metrics().registry, node._registry):
        for collector in list(registry._collector_to_names):
            for family in collector.collect():
                labels: Iterable[str] = getattr(family, "_labelnames", ()) or getattr(
                    collector, "_labelnames", ()
                )
                for suffix in SUFFIXES[family.type]:
                    found[family.name + suffix] = set(labels)
    return found


KNOWN = metrics()


def expressions() -> Iterator[tuple[str, str]]:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


def test_every_metric_exists_with_its_labels() -> None:
    seen = set()
    for where, text in expressions():
        names = set(re.findall(r"\bdra_driver_\w+", text))
        assert names, f"{where} is about none of our metrics: {text}"
        assert names <= KNOWN.keys(), f"{where}: {names - KNOWN.keys()}"
        seen |= names
        for name, matchers in re.findall(r"\b(dra_driver_\w+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= KNOWN[name] | ADDED_LABELS, f"{where}: {name} has no {labels - KNOWN[name]}"
        for grouped in re.findall(r"\bby \(([^)]*)\)", text):
            labels = {label.strip() for label in grouped.split(",")}
            assert labels <= set().union(*(KNOWN[n] for n in names)) | ADDED_LABELS, f"{where}: {labels}"
    # A dashboard that shows next to nothing would pass as well.
    assert len(seen) > 20


def test_labels_in_texts_of_alerts_are_there() -> None:
    for group in nonempty(ALERTS["groups"]):
        for rule in nonempty(group["rules"]):
            names = re.findall(r"\bdra_driver_\w+", rule["expr"])
            labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
            assert labels <= set().union(*(KNOWN[n] for n in names)) | ADDED_LABELS, rule["alert"]


def test_alerts_have_the_form_that_prometheus_demands(chart: Chart) -> None:
    rule = named(chart.render({"monitoring": ALL_MONITORING}), "PrometheusRule", "dra-driver")
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == ALERTS
    names = [r["alert"] for g in ALERTS["groups"] for r in g["rules"]]
    assert len(set(names)) == len(names)
    assert "DraDriverControllerAbsent" in names
    for group in ALERTS["groups"]:
        assert set(group) == {"name", "rules"}
        for one in group["rules"]:
            assert set(one) <= {"alert", "expr", "for", "labels", "annotations"}
            assert one["labels"]["severity"] in ("critical", "warning", "info")
            assert one["annotations"]["summary"]
            assert re.fullmatch(r"\d+[smh]", one.get("for", "0s"))
            balanced(one["expr"], one["alert"])


def test_every_alert_links_to_a_section_on_troubleshooting_that_exists() -> None:
    page = (PROJECT / "docs" / "troubleshooting.md").read_text()
    headings = re.findall(r"^#{2,} (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for group in nonempty(ALERTS["groups"]):
        for rule in nonempty(group["rules"]):
            where, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            assert where == "docs/troubleshooting.md", rule["alert"]
            assert anchor in anchors, rule["alert"]


def test_the_links_of_alerts_are_of_the_page_that_a_value_names(chart: Chart) -> None:
    values = {"monitoring": {**ALL_MONITORING, "runbooks": "https://docs.example.com/gpus/"}}
    rule = named(chart.render(values), "PrometheusRule", "dra-driver")
    links = {r["annotations"]["runbook_url"] for g in rule["spec"]["groups"] for r in g["rules"]}
    assert "https://docs.example.com/gpus/#a-node-agent-is-gone" in links
    assert all(link.startswith("https://docs.example.com/gpus/#") for link in links)


def test_parts_that_are_gone_sick_devices_and_long_waits_are_alerts() -> None:
    names = {r["alert"] for g in ALERTS["groups"] for r in g["rules"]}
    wanted = {"ControllerAbsent", "AgentsGone", "DeviceUnhealthy", "LongWait"}
    assert {f"DraDriver{name}" for name in wanted} <= names


def test_without_a_controller_nobody_misses_it(chart: Chart) -> None:
    values = {"publish": "node", "allocator": "scheduler", "controller": {"enabled": False}}
    objects = chart.render({**values, "monitoring": ALL_MONITORING})
    assert "DraDriverControllerAbsent" not in str(of_kind(objects, "PrometheusRule"))
    assert len(of_kind(objects, "ServiceMonitor")) == 1


def balanced(text: str, where: str) -> None:
    """No bracket is left open, which is what one gets wrong by hand."""
    stack: list[str] = []
    for character in re.sub(r'"[^"]*"', '""', text):
        if character in "([{":
            stack.append({"(": ")", "[": "]", "{": "}"}[character])
        elif character in ")]}":
            assert stack, where
            assert stack.pop() == character, where
    assert not stack, where


# --- dashboard ----------------------------------------------------------------------------------------------

PANELS = {"row", "stat", "timeseries", "table"}
UNITS = {"short", "ops", "reqps", "s", "percentunit", "celsius", "watt"}


def cells(panel: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    grid = panel["gridPos"]
    for x in range(grid["x"], grid["x"] + grid["w"]):
        for y in range(grid["y"], grid["y"] + grid["h"]):
            yield x, y


def test_the_dashboard_has_what_grafana_needs_to_load_it() -> None:
    assert {
        "title",
        "uid",
        "schemaVersion",
        "panels",
        "templating",
        "time",
        "annotations",
    } <= DASHBOARD.keys()
    # Grafana takes one without an id for new; with one it would look for that of another installation.
    assert "id" not in DASHBOARD
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["schemaVersion"] >= 36  # data sources by type and uid
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        title = panel["title"]
        assert panel["type"] in PANELS, title
        area = set(cells(panel))
        assert not area & taken, f"{title} covers another panel"
        taken |= area
        assert all(0 <= x < 24 for x, _ in area), f"{title} is wider than the page"
        if panel["type"] != "row":
            check_targets(panel)


def check_targets(panel: Mapping[str, Any]) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    references = [t["refId"] for t in panel["targets"]]
    assert len(set(references)) == len(references) > 0, panel["title"]
    assert panel["datasource"] == source
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
    for target in panel["targets"]:
        assert target["datasource"] == source
        balanced(target["expr"], panel["title"])
        variables = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
        assert variables <= {v["name"] for v in DASHBOARD["templating"]["list"]}, panel["title"]


def test_the_dashboard_reaches_grafana_unchanged(chart: Chart) -> None:
    config = named(chart.render({"monitoring": {"dashboard": True}}), "ConfigMap", "dra-driver-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["dra-driver.json"]) == DASHBOARD


# --- ServiceMonitor -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rdma", [False, True])
def test_every_component_is_scraped(chart: Chart, rdma: bool) -> None:
    objects = chart.render({"monitoring": ALL_MONITORING, "rdma": {"enabled": rdma}})
    monitors = of_kind(objects, "ServiceMonitor")
    assert len(monitors) == 2 + rdma
    for monitor in monitors:
        assert set(monitor["spec"]) == {"selector", "endpoints"}
        services = list(selected(monitor, of_kind(objects, "Service")))
        assert len(services) == 1
        (endpoint,) = monitor["spec"]["endpoints"]
        assert set(endpoint) <= {"port", "interval", "honorLabels", "relabelings"}
        (port,) = [p for p in services[0]["spec"]["ports"] if p["name"] == endpoint["port"]]
        component = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        (workload,) = [
            o
            for o in objects
            if o["kind"] in ("DaemonSet", "Deployment") and o["metadata"]["name"] == f"dra-driver-{component}"
        ]
        ports = workload["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert {"name": port["targetPort"], "containerPort": port["port"], "protocol": "TCP"} in ports


def selected(monitor: Object, services: Iterable[Object]) -> Iterator[Object]:
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    return (s for s in services if wanted <= s["metadata"]["labels"].items())
