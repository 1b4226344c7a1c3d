"""``metav1.Status`` → our exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver.api import codec
from dra_driver.errors import ApiError, Conflict, Forbidden, Gone, Invalid, NotFound, ServerBusy

__all__ = ["to_error"]


class _Cause(msgspec.Struct):
    field: str = ""
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decoder = msgspec.json.Decoder(_Status)

_UID: Final = "metadata.uid"

_KINDS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: ServerBusy,
    500: ServerBusy,
    502: ServerBusy,
    503: ServerBusy,
    504: ServerBusy,
}


def to_error(http_status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the exception for an answer.

    Args:
        http_status: 0 where the Status came in a watch event (it then carries its own code).
        body: a Status, or anything: proxies and unknown groups answer plain text.
        headers: of the response.
    """
    try:
        status = codec.from_json(_decoder, body)
    except msgspec.DecodeError:
        status = _Status(message=body[:300].decode("utf-8", "replace").strip())
    code = http_status or status.code or 500
    details = status.details or _Details()
    retry_after = details.retry_after_seconds
    header = headers.get("Retry-After", "")
    if header.isdigit():
        retry_after = float(header)
    causes = details.causes or ()
    kind = _KINDS.get(code, ServerBusy if code >= 500 else ApiError)
    if kind is Invalid and any(cause.field == _UID for cause in causes):
        # So the API server (1.36) refuses a patch that names the UID of an object which another has replaced.
        kind = Conflict
    return kind(
        status.message or f"HTTP {code}",
        code=code,
        reason=status.reason,
        causes=[(c.field, c.reason, c.message) for c in causes],
        retry_after=retry_after,
    )
