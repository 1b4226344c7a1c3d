"""TokenReview and SubjectAccessReview: whose a token is, and what its owner may do.

Both are created and never stored: the answer is in the status of what ``create`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api.meta import Resource, Wire, WireObject

__all__ = [
    "SUBJECT_ACCESS_REVIEWS",
    "TOKEN_REVIEWS",
    "NonResourceAttributes",
    "SubjectAccessReview",
    "SubjectAccessReviewSpec",
    "SubjectAccessReviewStatus",
    "TokenReview",
    "TokenReviewSpec",
    "TokenReviewStatus",
    "UserInfo",
]


class UserInfo(Wire, frozen=True, kw_only=True):
    """``status.user`` of a TokenReview."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewSpec(Wire, frozen=True, kw_only=True):
    """The token. Without audiences it must be one for the API server itself."""

    token: str = ""


class TokenReviewStatus(Wire, frozen=True, kw_only=True):
    """Whose the token is; ``error`` says why that is not known."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    error: str = ""


class TokenReview(WireObject, frozen=True, kw_only=True):
    """``authentication.k8s.io/v1 TokenReview``."""

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class NonResourceAttributes(Wire, frozen=True, kw_only=True):
    """A path that is no API object, and what is done with it (``get``)."""

    path: str = ""
    verb: str = ""


class SubjectAccessReviewSpec(Wire, frozen=True, kw_only=True):
    """Who wants to do what."""

    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class SubjectAccessReviewStatus(Wire, frozen=True, kw_only=True):
    """Whether that is allowed."""

    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SubjectAccessReview(WireObject, frozen=True, kw_only=True):
    """``authorization.k8s.io/v1 SubjectAccessReview``."""

    spec: SubjectAccessReviewSpec = SubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


TOKEN_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", TokenReview, namespaced=False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    SubjectAccessReview,
    namespaced=False,
)
