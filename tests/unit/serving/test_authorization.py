"""Who may read pages: by TokenReview and SubjectAccessReview, and nobody where that cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import aiohttp
import virtual_time
from aiohttp import web

from dra_driver.api import codec
from dra_driver.api.server.reviews import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from dra_driver.errors import ApiUnavailable
from dra_driver.ports import KubeClient
from dra_driver.serving import Authorizer, Limits, Port, protected, serve
from dra_driver.serving.authorization import ALLOWED_SECONDS, BAD_TOKENS, MOST_KEPT, MOST_WAITING

SCRAPER, STRANGER = "token-of-prometheus", "token-of-a-tenant"
USERS = {SCRAPER: "system:serviceaccount:monitoring:prometheus", STRANGER: "system:serviceaccount:team:pod"}


class Reviews:
    """The API server's reviews: which tokens are good, and which accounts may read ``/metrics``."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.down = False
        self.seconds = 0.0
        self.readers = {USERS[SCRAPER]}

    async def create(
        self, resource: object, body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> Any:
        await asyncio.sleep(self.seconds)
        if self.down:
            raise ApiUnavailable("no route to host")
        spec = body["spec"]
        if resource is TOKEN_REVIEWS:
            self.asked.append(("token", spec["token"]))
            name = USERS.get(spec["token"])
            status: dict[str, Any] = {"authenticated": name is not None}
            if name is not None:
                status["user"] = {"username": name, "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
            return codec.convert(TOKEN_REVIEWS.type, {"status": status})
        assert resource is SUBJECT_ACCESS_REVIEWS
        assert (spec["uid"], spec["groups"], spec["extra"]) == ("u", ["g"], {"k": ["v"]})
        path = spec["nonResourceAttributes"]["path"]
        assert spec["nonResourceAttributes"]["verb"] == "get"
        self.asked.append((spec["user"], path))
        status = {"allowed": spec["user"] in self.readers and path == "/metrics", "reason": "RBAC: no rule"}
        return codec.convert(SUBJECT_ACCESS_REVIEWS.type, {"status": status})


class Case:
    """An authorizer whose API server is in the test's hand."""

    def __init__(self) -> None:
        self.reviews = Reviews()
        client: KubeClient = self.reviews  # type: ignore[assignment]
        self.authorizer = Authorizer(client, virtual_time.LoopClock())

    async def status(self, token: str, path: str = "/metrics") -> int:
        return (await self.authorizer.verdict(f"Bearer {token}", path)).status


def run(scenario: Callable[[Case], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Case())

    virtual_time.run(main())


def test_rbac_decides() -> None:
    async def scenario(case: Case) -> None:
        assert await case.status(SCRAPER) == 200
        assert await case.status(SCRAPER, "/debug/state") == 403
        assert await case.status(STRANGER) == 403
        refused = await case.authorizer.verdict(f"bearer {STRANGER}", "/metrics")
        assert "may not get /metrics (RBAC: no rule)" in refused.reason
        assert "nonResourceURLs: [/metrics]" in refused.reason
        assert await case.status("made-up") == 401

    run(scenario)


def test_without_a_token_nothing_is_asked() -> None:
    async def scenario(case: Case) -> None:
        for header in ("", "Basic dTpw", "Bearer", "Bearer  ", "Bearer " + "x" * 9000, "Bearer ü"):
            assert (await case.authorizer.verdict(header, "/metrics")).status == 401
        assert case.reviews.asked == []

    run(scenario)


def test_what_cannot_be_asked_is_not_served() -> None:
    async def scenario(case: Case) -> None:
        case.reviews.down = True
        assert await case.status(SCRAPER) == 503
        case.reviews.down = False
        assert await case.status(SCRAPER) == 200  # the outage was not kept
        case.reviews.seconds = 100
        assert await case.status(STRANGER) == 503

    run(scenario)


def test_an_answer_counts_for_a_while_and_no_longer() -> None:
    async def scenario(case: Case) -> None:
        for _ in range(100):
            assert await case.status(SCRAPER) == 200
        assert len(case.reviews.asked) == 2
        case.reviews.readers.clear()
        await asyncio.sleep(ALLOWED_SECONDS - 1)
        assert await case.status(SCRAPER) == 200
        await asyncio.sleep(2)
        assert await case.status(SCRAPER) == 403

    run(scenario)


def test_those_who_ask_at_once_cost_one_question() -> None:
    async def scenario(case: Case) -> None:
        case.reviews.seconds = 0.1
        async with asyncio.TaskGroup() as tasks:
            many = [tasks.create_task(case.status(SCRAPER)) for _ in range(MOST_WAITING)]
        assert {task.result() for task in many} == {200}
        assert len(case.reviews.asked) <= 8  # those that were on their way already

    run(scenario)


def test_made_up_tokens_cost_few_questions_and_no_reader_its_place() -> None:
    async def scenario(case: Case) -> None:
        assert await case.status(SCRAPER) == 200
        before = len(case.reviews.asked)
        answers = [await case.status(f"made-up-{i}") for i in range(5 * MOST_KEPT)]
        assert set(answers) == {401, 503}
        assert len(case.reviews.asked) - before <= BAD_TOKENS
        await asyncio.sleep(ALLOWED_SECONDS)
        for i in range(MOST_KEPT):
            await case.status(f"others-{i}")
        assert await case.status(SCRAPER) == 200  # asked anew
        assert await case.status(STRANGER) == 503
        await asyncio.sleep(60)
        assert await case.status(STRANGER) == 403

    run(scenario)


def test_a_crowd_that_waits_keeps_no_known_reader_out() -> None:
    async def scenario(case: Case) -> None:
        assert await case.status(SCRAPER) == 200
        await asyncio.sleep(ALLOWED_SECONDS + 1)
        case.reviews.seconds = 0.5
        crowd = [asyncio.create_task(case.status(f"made-up-{i}")) for i in range(100)]
        await asyncio.sleep(0)
        assert await case.status(SCRAPER) == 200
        assert {await task for task in crowd} == {401, 503}

    run(scenario)


def test_tokens_are_not_kept() -> None:
    async def scenario(case: Case) -> None:
        await case.status(SCRAPER)
        await case.status("made-up")
        kept = repr((vars(case.authorizer._allowed), vars(case.authorizer._refused)))
        assert SCRAPER not in kept
        assert "made-up" not in kept

    run(scenario)


def test_probes_are_open_and_pages_are_not() -> None:
    async def scenario() -> None:
        case = Case()

        def make_app(port: Port) -> web.Application:
            app = web.Application(middlewares=[port.middleware, protected(case.authorizer, {"/metrics"})])
            app.router.add_get("/metrics", _say("secret"))
            app.router.add_get("/healthz", _say("ok"))
            return app

        async with (
            serve("127.0.0.1", 0, make_app, flag="--port", limits=Limits()) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port.address[1]}") as session,
        ):

            async def get(path: str, token: str = "") -> tuple[int, str]:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with session.get(path, headers=headers) as answer:
                    assert (answer.status == 401) == ("WWW-Authenticate" in answer.headers)
                    return answer.status, await answer.text()

            assert (await get("/healthz"))[0] == 200
            status, text = await get("/metrics")
            assert (status, "secret" in text) == (401, False)
            assert (await get("/metrics", STRANGER))[0] == 403
            assert await get("/metrics", SCRAPER) == (200, "secret")
            # No other spelling of the path is served.
            for path in ("/metrics/", "/Metrics", "/./metrics/../metrics", "/metrics%2f"):
                status, text = await get(path)
                assert status in (401, 404), path
                assert "secret" not in text
            assert (await get("/%6detrics"))[0] == 401

    asyncio.run(asyncio.wait_for(scenario(), 120))


def _say(text: str) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return handle
