"""``Status`` objects: the API's errors, and their causes, which name fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cause", "Causes", "Raw", "StatusError", "success"]

# An object as plain data, as JSON has it.
Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``details.causes``."""

    reason: str
    message: str
    field: str = ""

    def raw(self) -> Raw:
        """Return the cause as on the wire."""
        return {
            k: v for k, v in (("reason", self.reason), ("message", self.message), ("field", self.field)) if v
        }


class Causes(list[Cause]):
    """The causes of an invalid object; each method adds one, and is named after its reason."""

    def required(self, path: str, detail: str = "") -> None:
        """Report that a required field is missing."""
        self.append(Cause("FieldValueRequired", f"Required value{': ' + detail if detail else ''}", path))

    def invalid(self, path: str, value: object, detail: str) -> None:
        """Report a value of the wrong form."""
        self.append(Cause("FieldValueInvalid", f"Invalid value: {_show(value)}: {detail}", path))

    def duplicate(self, path: str, value: object) -> None:
        """Report a second occurrence of a value that must be unique."""
        self.append(Cause("FieldValueDuplicate", f"Duplicate value: {_show(value)}", path))

    def forbidden(self, path: str, detail: str) -> None:
        """Report a field that may not be set, or not to this value."""
        self.append(Cause("FieldValueForbidden", f"Forbidden: {detail}", path))

    def not_found(self, path: str, value: object, detail: str = "") -> None:
        """Report a reference to something that does not exist."""
        self.append(
            Cause("FieldValueNotFound", f"Not found: {_show(value)}{': ' + detail if detail else ''}", path)
        )

    def too_long(self, path: str, limit: int) -> None:
        """Report a text with more bytes than the limit."""
        self.append(Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", path))

    def too_many(self, path: str, count: int, limit: int) -> None:
        """Report a list with more items than the limit."""
        self.append(Cause("FieldValueTooMany", f"Too many: {count}: must have at most {limit} items", path))

    def not_supported(self, path: str, value: object, allowed: Iterable[str]) -> None:
        """Report a value that is not among the allowed ones."""
        words = ", ".join(f'"{a}"' for a in sorted(allowed))
        self.append(
            Cause(
                "FieldValueNotSupported",
                f"Unsupported value: {_show(value)}: supported values: {words}",
                path,
            )
        )

    def type_invalid(self, path: str, value: object, detail: str) -> None:
        """Report a value of another JSON type."""
        self.append(Cause("FieldValueTypeInvalid", f"Invalid value: {_show(value)}: {detail}", path))


def _show(value: object) -> str:
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(eq=False)
class StatusError(Exception):
    """An answer other than success.

    Attributes:
        code: HTTP status.
        reason: ``Status.reason``; empty where the real server has none (its 500s).
        message: text for people.
        kind: resource or kind of the object, in ``details``.
        group: its group.
        name: its name.
        causes: fields that are wrong.
        retry_after: seconds.
        bare: whether ``details`` are left out.
    """

    code: int
    reason: str
    message: str
    kind: str = ""
    group: str = ""
    name: str = ""
    causes: Sequence[Cause] = ()
    retry_after: int = 0
    bare: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def raw(self) -> Raw:
        """Return the ``Status`` object."""
        status: Raw = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        details: Raw = {
            k: v for k, v in (("name", self.name), ("group", self.group), ("kind", self.kind)) if v
        }
        if self.causes:
            details["causes"] = [c.raw() for c in self.causes]
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        if details or not self.bare:
            status["details"] = details
        status["code"] = self.code
        return status

    # The usual ones.

    @classmethod
    def bad_request(cls, message: str) -> StatusError:
        """Return error 400."""
        return cls(400, "BadRequest", message, bare=True)

    @classmethod
    def internal(cls, message: str) -> StatusError:
        """Return error 500 without a reason, as the real server answers an unexpected error."""
        return cls(500, "", message, bare=True)

    @classmethod
    def not_found(cls, plural: str, group: str, name: str) -> StatusError:
        """Return error 404 of an object."""
        return cls(404, "NotFound", f'{_qualified(plural, group)} "{name}" not found', plural, group, name)

    @classmethod
    def no_resource(cls) -> StatusError:
        """Return error 404 of a resource that is not served."""
        return cls(404, "NotFound", "the server could not find the requested resource")

    @classmethod
    def method_not_allowed(cls) -> StatusError:
        """Return error 405."""
        return cls(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    @classmethod
    def exists(cls, plural: str, group: str, name: str, *, deleting: bool = False) -> StatusError:
        """Return error 409 of a create."""
        prefix = "object is being deleted: " if deleting else ""
        text = f'{prefix}{_qualified(plural, group)} "{name}" already exists'
        return cls(409, "AlreadyExists", text, plural, group, name)

    @classmethod
    def conflict(cls, plural: str, group: str, name: str, why: str = "") -> StatusError:
        """Return error 409 of an update."""
        why = why or (
            "the object has been modified; please apply your changes to the latest version and try again"
        )
        text = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
        return cls(409, "Conflict", text, plural, group, name)

    @classmethod
    def invalid(cls, kind: str, group: str, name: str, causes: Sequence[Cause]) -> StatusError:
        """Return error 422 with causes; ``kind`` is that in ``details``, such as ``PatchOptions``."""
        texts = list(dict.fromkeys(f"{c.field}: {c.message}" if c.field else c.message for c in causes))
        joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        text = f'{_qualified(kind, group)} "{name}" is invalid: {joined}'
        return cls(422, "Invalid", text, kind, group, name, tuple(causes))

    @classmethod
    def expired(cls, message: str) -> StatusError:
        """Return error 410."""
        return cls(410, "Expired", message, bare=True)


def _qualified(kind: str, group: str) -> str:
    return f"{kind}.{group}" if group else kind


def success(*, kind: str = "", group: str = "", name: str = "", uid: str = "", code: int = 0) -> Raw:
    """Return the ``Status`` of success with which deletions and bindings are answered."""
    status: Raw = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    details = {k: v for k, v in (("name", name), ("group", group), ("kind", kind), ("uid", uid)) if v}
    if details:
        status["details"] = details
    if code:
        status["code"] = code
    return status
