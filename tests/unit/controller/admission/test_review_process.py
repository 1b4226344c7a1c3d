"""The process that reviews: what a judgement may take, and what the controller believes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.admission.review import Judgement
from controller.admission.reviewer import Reviewer
from controller.admission.wire import Capacity, Certificate, Ping, Pong, Refused, Start, line, pong_of, told
from dra_driver.api.server.admission import AdmissionRequest, AdmissionResponse

START = Start(
    listening=(),
    drivers=("gpu.dra-driver.dev",),
    others=(),
    lends=False,
    client_authorities="",
    client_names=(),
    receive_seconds=3.0,
    cpu_seconds=0.05,
    memory=1 << 30,
)
REVIEW = msgspec.json.encode(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"},
    }
)


def test_a_judgement_ends_with_its_cpu_time_and_others_go_on() -> None:
    reviewer = Reviewer(START)

    def stubborn(_: AdmissionRequest) -> Judgement:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    def quick(request: AdmissionRequest) -> Judgement:
        return Judgement(AdmissionResponse(uid=request.uid, allowed=True), "allowed")

    answered = [reviewer.answer(REVIEW, decide).status for decide in (stubborn, quick, stubborn, quick)]
    assert answered == [503, 200, 503, 200]
    assert reviewer.pong(1).reviews == {"/stopped": 2, "Pod/allowed": 2}
    assert reviewer.pong(2).reviews == {}


def test_requests_for_capacity_are_refused_until_the_api_server_is_known_to_keep_them() -> None:
    reviewer = Reviewer(START)

    def answered() -> tuple[bool, int]:
        text = reviewer.answer(REVIEW, reviewer.judge_capacity).text
        response = msgspec.json.decode(text or "")["response"]
        return response["allowed"], response.get("status", {}).get("code", 0)

    assert answered() == (False, 503)
    reviewer.keeps_capacity = True
    assert answered() == (True, 0)
    reviewer.keeps_capacity = False
    assert answered() == (False, 422)


@pytest.mark.parametrize(
    "message",
    [START, Certificate(certificate="c", key="k"), Capacity(kept=True), Ping(number=3)],
)
def test_what_the_controller_says_arrives(message: Any) -> None:
    assert told(line(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.update(number="1"),
        lambda p: p.update(more=1),
        lambda p: p.pop("reviews"),
        lambda p: p["reviews"].update({"Pod/allowed": -1}),
        lambda p: p["reviews"].update({"x" * 1001: 1}),
        lambda p: p.update(refused=p["refused"] * 17),
        lambda p: p["refused"][0].update(reason="x" * 1001),
    ],
)
def test_what_the_process_says_is_bounded(change: Callable[[dict[str, Any]], object]) -> None:
    refused = (Refused(kind="Pod", object="a/b", reason="x"),)
    good = Pong(number=1, reviews={"Pod/refused": 1}, refused=refused)
    assert pong_of(line(good)) == good
    bad = msgspec.json.decode(line(good))
    change(bad)
    with pytest.raises(msgspec.DecodeError):
        pong_of(msgspec.json.encode(bad))
