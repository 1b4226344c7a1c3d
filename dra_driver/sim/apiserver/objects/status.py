"""``Status`` objects: how the API says no, and the causes that name fields."""

from __future__ import annotations

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
        """As on the wire."""
        return {
            k: v for k, v in (("reason", self.reason), ("message", self.message), ("field", self.field)) if v
        }


class Causes(list[Cause]):
    """What is wrong with the fields of an object; the methods are named after the reasons."""

    def required(self, path: str, detail: str = "") -> None:
        """A field that must be there is not."""
        self.append(Cause("FieldValueRequired", f"Required value{': ' + detail if detail else ''}", path))

    def invalid(self, path: str, value: object, detail: str) -> None:
        """A value of the wrong form."""
        self.append(Cause("FieldValueInvalid", f"Invalid value: {_show(value)}: {detail}", path))

    def duplicate(self, path: str, value: object) -> None:
        """A value that must be unique is there twice."""
        self.append(Cause("FieldValueDuplicate", f"Duplicate value: {_show(value)}", path))

    def forbidden(self, path: str, detail: str) -> None:
        """A field that may not be set, or not like this."""
        self.append(Cause("FieldValueForbidden", f"Forbidden: {detail}", path))

    def not_found(self, path: str, value: object, detail: str = "") -> None:
        """A reference to nothing."""
        self.append(
            Cause("FieldValueNotFound", f"Not found: {_show(value)}{': ' + detail if detail else ''}", path)
        )

    def too_long(self, path: str, limit: int) -> None:
        """Too many bytes."""
        self.append(Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", path))

    def too_many(self, path: str, count: int, limit: int) -> None:
        """Too many items."""
        self.append(Cause("FieldValueTooMany", f"Too many: {count}: must have at most {limit} items", path))

    def not_supported(self, path: str, value: object, allowed: Iterable[str]) -> None:
        """Not one of the allowed words."""
        words = ", ".join(f'"{a}"' for a in sorted(allowed))
        self.append(
            Cause(
                "FieldValueNotSupported",
                f"Unsupported value: {_show(value)}: supported values: {words}",
                path,
            )
        )

    def type_invalid(self, path: str, value: object, detail: str) -> None:
        """A value of another JSON type."""
        self.append(Cause("FieldValueTypeInvalid", f"Invalid value: {_show(value)}: {detail}", path))


def _show(value: object) -> str:
    import json

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
        kind: resource or kind that it is about, in ``details``.
        group: its group.
        name: its name.
        causes: fields that are wrong.
        retry_after: seconds.
        bare: no ``details`` at all.
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
        """The ``Status`` object."""
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
        """400."""
        return cls(400, "BadRequest", message, bare=True)

    @classmethod
    def internal(cls, message: str) -> StatusError:
        """500 without a reason: what the real server makes of an unexpected error."""
        return cls(500, "", message, bare=True)

    @classmethod
    def not_found(cls, plural: str, group: str, name: str) -> StatusError:
        """404 of an object."""
        return cls(404, "NotFound", f'{_qualified(plural, group)} "{name}" not found', plural, group, name)

    @classmethod
    def no_resource(cls) -> StatusError:
        """404 of a resource that is not served."""
        return cls(404, "NotFound", "the server could not find the requested resource")

    @classmethod
    def method_not_allowed(cls) -> StatusError:
        """405."""
        return cls(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    @classmethod
    def exists(cls, plural: str, group: str, name: str, *, deleting: bool = False) -> StatusError:
        """409 of a create."""
        prefix = "object is being deleted: " if deleting else ""
        text = f'{prefix}{_qualified(plural, group)} "{name}" already exists'
        return cls(409, "AlreadyExists", text, plural, group, name)

    @classmethod
    def conflict(cls, plural: str, group: str, name: str, why: str = "") -> StatusError:
        """409 of an update."""
        why = why or (
            "the object has been modified; please apply your changes to the latest version and try again"
        )
        text = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
        return cls(409, "Conflict", text, plural, group, name)

    @classmethod
    def invalid(cls, kind: str, group: str, name: str, causes: Sequence[Cause]) -> StatusError:
        """422 with causes; kind as in ``details`` (a kind for objects, ``PatchOptions`` for options …)."""
        texts = list(dict.fromkeys(f"{c.field}: {c.message}" if c.field else c.message for c in causes))
        joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        text = f'{_qualified(kind, group)} "{name}" is invalid: {joined}'
        return cls(422, "Invalid", text, kind, group, name, tuple(causes))

    @classmethod
    def expired(cls, message: str) -> StatusError:
        """410."""
        return cls(410, "Expired", message, bare=True)


def _qualified(kind: str, group: str) -> str:
    return f"{kind}.{group}" if group else kind


def success(*, kind: str = "", group: str = "", name: str = "", uid: str = "", code: int = 0) -> Raw:
    """A ``Status`` of success, as deletions and bindings answer."""
    status: Raw = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    details = {k: v for k, v in (("name", name), ("group", group), ("kind", kind), ("uid", uid)) if v}
    if details:
        status["details"] = details
    if code:
        status["code"] = code
    return status
