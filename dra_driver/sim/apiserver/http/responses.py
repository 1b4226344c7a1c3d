"""Answers of the API server over HTTP: documents, bytes, warnings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import yaml
from aiohttp import web

from dra_driver.sim.apiserver.http.requests import (
    Accept,
)
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = [
    "JSON",
    "bytes_response",
    "formed",
    "json_response",
    "no_page",
    "partial",
    "unsupported",
    "warning",
]

JSON = "application/json"


def partial(raw: Raw) -> Raw:
    """Return the object as ``PartialObjectMetadata``."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": raw["metadata"]}


def unsupported(accepted: str) -> StatusError:
    """Return the error for a body of another media type than those that are accepted."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {accepted}",
        bare=True,
    )


def warning(text: str) -> str:
    """Return the value of a ``Warning`` header (RFC 9111 of old, as Kubernetes uses it)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'299 - "{escaped}"'


def no_page() -> web.Response:
    """Return the answer where nothing is served."""
    return web.Response(status=404, text="404 page not found\n")


def json_response(code: int, raw: Raw, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a document."""
    return bytes_response(code, msgspec.json.encode(raw), headers)


def bytes_response(code: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a document that is encoded already."""
    return web.Response(status=code, body=body, headers={"Content-Type": JSON, **(headers or {})})


def formed(code: int, body: bytes, form: Accept, headers: Mapping[str, str]) -> web.Response:
    """Return an answer with a document, in the form that the client accepts."""
    if form.form == "yaml":
        text = yaml.safe_dump(msgspec.json.decode(body), sort_keys=False)
        return web.Response(status=code, text=text, headers={"Content-Type": "application/yaml", **headers})
    return bytes_response(code, body, headers)
