"""Who may read a page: as kube-rbac-proxy does, by TokenReview and SubjectAccessReview.

A request carries the token of an account (``Authorization: Bearer …``). The API server says whose it is and
whether RBAC allows that account ``get`` on the path, as a ``nonResourceURLs`` rule:

    rules:
      - nonResourceURLs: [/metrics]
        verbs: [get]

What cannot be asked is not served. Answers are kept for a while, few of them, and by digest, so that no
token stays in memory. Whoever makes up tokens costs the API server a few reviews a second, and costs no
reader whose token was good before its place.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from dra_driver.api import codec
from dra_driver.api.server.reviews import (
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    NonResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
    UserInfo,
)
from dra_driver.errors import DraError
from dra_driver.ports import Clock, KubeClient

__all__ = ["Authorizer", "Verdict", "protected"]

log = structlog.get_logger(__name__)

# A right that was taken away counts no more after this; Kubernetes' own webhooks keep answers for minutes.
ALLOWED_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
# Of each of the two.
MOST_KEPT: Final = 1000
# Questions to the API server at a time; tokens of which nothing good is known that wait for a place; and how
# many of those may turn out bad at once, and per second.
AT_ONCE: Final = 4
MOST_WAITING: Final = 16
BAD_TOKENS: Final = 20.0
BAD_TOKENS_PER_SECOND: Final = 2.0
REVIEW_SECONDS: Final = 3.0
_LONGEST_TOKEN: Final = 8 << 10

# Digest of a token, and path.
_Key = tuple[bytes, str]
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about one token and one path.

    Attributes:
        status: 200, 401 (no account has this token), 403 (its account may not) or 503 (not known now).
        reason: for whoever asked; empty where it is allowed.
    """

    status: int
    reason: str = ""


_BUSY: Final = Verdict(503, "too many requests wait to be authorized; try again")


class _Kept:
    """Answers of one kind, until they are too old or too many."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: OrderedDict[_Key, tuple[Verdict, float]] = OrderedDict()

    def has(self, key: _Key) -> bool:
        """Return whether there was such an answer, even if it is too old."""
        return key in self._answers

    def recall(self, key: _Key, now: float) -> Verdict | None:
        verdict, until = self._answers.get(key, (None, 0.0))
        return verdict if now < until else None

    def keep(self, key: _Key, verdict: Verdict, now: float) -> None:
        self._answers[key] = (verdict, now + self._seconds)
        self._answers.move_to_end(key)
        while len(self._answers) > MOST_KEPT:
            self._answers.popitem(last=False)

    def forget(self, key: _Key) -> None:
        self._answers.pop(key, None)


class Authorizer:
    """Asks the API server, and keeps what it said.

    Args:
        client: may create TokenReviews and SubjectAccessReviews.
        clock: answers get old by it.
    """

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._allowed = _Kept(ALLOWED_SECONDS)
        self._refused = _Kept(REFUSED_SECONDS)
        self._places = asyncio.Semaphore(AT_ONCE)
        # For those whose token was good before.
        self._readers_places = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        # How many bad tokens may still be sent, and when that was counted.
        self._patience = (BAD_TOKENS, clock.monotonic())

    async def verdict(self, header: str, path: str) -> Verdict:
        """Return whether the sender of a request may get a path.

        Args:
            header: ``Authorization`` of the request.
            path: of the request, without its query.
        """
        scheme, _, token = header.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return Verdict(401, "send the token of an account: Authorization: Bearer TOKEN")
        if len(token) > _LONGEST_TOKEN or not token.isascii():
            return Verdict(401, "this is no token of an account")
        key = (hashlib.sha256(token.encode()).digest(), path)
        known = self._recall(key)
        if known is not None:
            return known
        reader = self._allowed.has(key)
        if not reader and (self._waiting >= MOST_WAITING or self._left() < 1):
            return _BUSY
        places = self._readers_places if reader else self._places
        self._waiting += 1
        try:
            async with asyncio.timeout(REVIEW_SECONDS), places:
                # Somebody else may have asked meanwhile.
                return self._recall(key) or self._keep(key, await self._ask(token, path))
        except (DraError, TimeoutError) as e:
            log.warning("a page is not served: its reader cannot be authorized", path=path, error=str(e))
            return Verdict(503, "the API server cannot be asked who may read this; try again")
        finally:
            self._waiting -= 1

    def _recall(self, key: _Key) -> Verdict | None:
        now = self._clock.monotonic()
        return self._allowed.recall(key, now) or self._refused.recall(key, now)

    def _keep(self, key: _Key, verdict: Verdict) -> Verdict:
        now = self._clock.monotonic()
        if verdict.status == 200:
            self._allowed.keep(key, verdict, now)
        else:
            self._allowed.forget(key)
            self._refused.keep(key, verdict, now)
            self._patience = (self._left() - 1, now)
        return verdict

    def _left(self) -> float:
        """Return how many bad tokens may be sent now."""
        left, counted = self._patience
        return min(BAD_TOKENS, left + (self._clock.monotonic() - counted) * BAD_TOKENS_PER_SECOND)

    async def _ask(self, token: str, path: str) -> Verdict:
        body = codec.to_raw(TOKEN_REVIEWS, TokenReview(spec=TokenReviewSpec(token=token)))
        review = await self._client.create(TOKEN_REVIEWS, body)
        if not review.status.authenticated:
            return Verdict(401, "the API server knows no account with this token")
        return await self._ask_about(review.status.user, path)

    async def _ask_about(self, user: UserInfo, path: str) -> Verdict:
        asked = SubjectAccessReview(
            spec=SubjectAccessReviewSpec(
                non_resource_attributes=NonResourceAttributes(path=path, verb="get"),
                user=user.username,
                groups=user.groups,
                uid=user.uid,
                extra=user.extra,
            )
        )
        answer = await self._client.create(
            SUBJECT_ACCESS_REVIEWS, codec.to_raw(SUBJECT_ACCESS_REVIEWS, asked)
        )
        if answer.status.allowed and not answer.status.denied:
            return Verdict(200)
        why = f" ({answer.status.reason[:300]})" if answer.status.reason else ""
        return Verdict(
            403,
            f"{user.username[:300]} may not get {path}{why}; RBAC allows it by a ClusterRole with "
            f"nonResourceURLs: [{path}] and verbs: [get]",
        )


def protected(authorizer: Authorizer | None, paths: Collection[str]) -> Middleware:
    """Return what serves some paths to those only who may get them.

    Args:
        authorizer: if None, everything is served to everybody.
        paths: those that are protected; all others are open.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handle) -> web.StreamResponse:
        if authorizer is not None and request.path in paths:
            header = request.headers.get("Authorization", "")
            verdict = await authorizer.verdict(header, request.path)
            if verdict.status != 200:
                headers = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else {}
                return web.Response(status=verdict.status, text=f"{verdict.reason}\n", headers=headers)
        return await handler(request)

    return check
