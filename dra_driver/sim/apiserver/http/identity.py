"""Answers about identity and rights: who a token is of. Every authenticated client may do everything."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from typing import Any

from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.store import Key, Store
from dra_driver.sim.apiserver.writing.reviews import ADMINISTRATOR

__all__ = ["Tokens", "access_review", "token_request"]

_EXTRA = "authentication.kubernetes.io/"


class Tokens:
    """Tokens of service accounts.

    A token says whose it is, signed with the bearer token that the server demands: so the next server with
    that token and the same file of objects knows it, too. Where none is demanded, everybody else is an
    administrator.

    Args:
        store: has the pods that tokens are bound to.
        secret: the bearer token that the server demands; empty if none.
    """

    def __init__(self, store: Store, secret: str) -> None:
        self._store = store
        self._secret = secret.encode()

    def issue(self, body: Any, namespace: str, account: str) -> str:
        """Return a new token for a ``TokenRequest``, which says what it is bound to."""
        spec = (body.get("spec") if isinstance(body, dict) else None) or {}
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        user: Raw = {"username": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
        extra = self._extra(spec.get("boundObjectRef") or {}, namespace)
        if extra:
            user["extra"] = {f"{_EXTRA}{key}": [value] for key, value in extra.items()}
        text = json.dumps([user, secrets.token_hex(8)])
        payload = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{payload}.{self._signature(payload)}"

    def _signature(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()

    def _read(self, token: str) -> Raw | None:
        payload, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(payload).encode()):
            return None
        try:
            user, _ = json.loads(base64.urlsafe_b64decode(f"{payload}=="))
        except (binascii.Error, ValueError, TypeError):
            return None
        return user if isinstance(user, dict) else None

    def _extra(self, bound: Raw, namespace: str) -> dict[str, str]:
        name = str(bound.get("name", ""))
        if bound.get("kind") == "Node":
            return {"node-name": name}
        if bound.get("kind") != "Pod":
            return {}
        pod = self._store.collection("", "pods").get(Key(namespace, name))
        found = {"pod-name": name}
        if pod is not None:
            found["pod-uid"] = pod.raw["metadata"]["uid"]
            if node := (pod.raw.get("spec") or {}).get("nodeName"):
                found["node-name"] = node
        return found

    def __contains__(self, token: str) -> bool:
        return self._read(token) is not None

    def user(self, token: str) -> Raw:
        """Return ``userInfo`` of a bearer token; who has none of ours is an administrator."""
        return self._read(token) or ADMINISTRATOR


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
