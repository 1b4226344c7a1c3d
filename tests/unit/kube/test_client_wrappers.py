"""Wrappers of the client know every method of the port: arguments arrive, writes are fenced, calls counted.

The methods are taken from the port itself, so that a new one is looked at as soon as it is there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from controller.observe.metrics import MeteredClient, Metrics
from dra_driver.api.core import NODES
from dra_driver.errors import NotLeading
from dra_driver.kube import DelegatingClient, Fence, FencedClient, SystemClock
from dra_driver.ports import KubeClient

METHODS = sorted(n for n, f in vars(KubeClient).items() if inspect.isfunction(f) and not n.startswith("_"))
READS = {"get", "list", "watch", "served"}
BODY = {"metadata": {"name": "n"}}
VALUES: dict[str, object] = {
    "resource": NODES,
    "name": "n",
    "namespace": "ns",
    "label_selector": "a=b",
    "field_selector": "metadata.name=n",
    "resource_version": "7",
    "timeout_seconds": 3,
    "body": BODY,
    "patch": {"metadata": {"labels": {"a": "b"}}},
    "subresource": "status",
    "field_manager": "me",
    "force": True,
    "dry_run": True,
    "uid": "u",
    "grace_period_seconds": 0,
    "group": "resource.k8s.io",
    "version": "v1",
}


class Recorder:
    """A client that answers everything and notes the arguments, by the names of the port's parameters."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        signature = inspect.signature(getattr(KubeClient, method))

        async def events() -> AsyncIterator[object]:
            yield "an event"

        async def answer() -> object:
            return "the answer"

        def called(*args: object, **kwargs: object) -> object:
            bound = dict(signature.bind(self, *args, **kwargs).arguments)
            del bound["self"]
            self.seen.append((method, bound))
            return events() if method == "watch" else answer()

        return called


def call(client: KubeClient, method: str) -> object:
    """Call a method with a value for each of its parameters, and return the answer or the only event."""
    parameters = list(inspect.signature(getattr(KubeClient, method)).parameters.values())[1:]
    positional = [VALUES[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = {p.name: VALUES[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}

    async def main() -> object:
        result = getattr(client, method)(*positional, **named)
        if method == "watch":
            events = [event async for event in result]
            assert len(events) == 1
            return events[0]
        return await result

    return asyncio.run(main())


def client_of(recorder: Recorder) -> KubeClient:
    return cast("KubeClient", recorder)


def open_fence() -> Fence:
    fence = Fence(SystemClock(), 10.0, 15.0)
    fence.begin()
    fence.renewed(SystemClock().monotonic())
    return fence


@pytest.mark.parametrize("wrapper", ["delegating", "fenced", "metered"])
@pytest.mark.parametrize("method", METHODS)
def test_every_argument_arrives(wrapper: str, method: str) -> None:
    recorder = Recorder()
    inner = client_of(recorder)
    wrappers: dict[str, KubeClient] = {
        "delegating": DelegatingClient(inner),
        "fenced": FencedClient(inner, open_fence()),
        "metered": MeteredClient(inner, Metrics()),
    }
    client = wrappers[wrapper]
    answers = {"watch": "an event", "delete": None, "evict": None}
    assert call(client, method) == answers.get(method, "the answer")
    parameters = list(inspect.signature(getattr(KubeClient, method)).parameters)[1:]
    assert recorder.seen == [(method, {name: VALUES[name] for name in parameters})]


@pytest.mark.parametrize("method", METHODS)
def test_behind_a_closed_fence_only_reads_are_sent(method: str) -> None:
    recorder = Recorder()
    client = FencedClient(client_of(recorder), Fence(SystemClock(), 10.0, 15.0))
    if method in READS:
        call(client, method)
    else:
        with pytest.raises(NotLeading):
            call(client, method)
    assert [name for name, _ in recorder.seen] == ([method] if method in READS else [])


@pytest.mark.parametrize("method", METHODS)
def test_every_call_is_counted_once(method: str) -> None:
    metrics = Metrics()
    call(MeteredClient(client_of(Recorder()), metrics), method)
    (calls,) = metrics.calls.collect()
    counted = [s for s in calls.samples if s.name.endswith("_total")]
    # What is served is about no kind, and kinds are a label.
    assert [s.value for s in counted] == ([] if method == "served" else [1.0])
    resource = {"evict": "pods"}.get(method, "nodes")
    assert all(s.labels["resource"] == resource and s.labels["code"] == "200" for s in counted)
