"""Answers about identity and rights: every authenticated client may do everything."""

from __future__ import annotations

from typing import Any

from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["access_review", "token_request"]


def token_request(body: Any, namespace: str, name: str, token: str, now: str) -> Raw:
    """Return the ``TokenRequest`` of a service account, answered with a token."""
    given = (body.get("spec") if isinstance(body, dict) else None) or {}
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"audiences": ["https://kubernetes.default.svc"], **given},
        "status": {"token": token, "expirationTimestamp": now},
    }


def access_review(body: Any) -> Raw:
    """Return the ``SelfSubjectAccessReview``, which allows whatever it is about."""
    return {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": (body.get("spec") if isinstance(body, dict) else None) or {},
        "status": {"allowed": True},
    }
