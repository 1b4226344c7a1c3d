"""The exceptions of the project.

::

    DraError                      everything that we raise on purpose
    ├── InvalidInput              an input is wrong: says what was given, what is allowed, where
    │   ├── InvalidQuantity       not a Kubernetes quantity
    │   ├── InvalidVersion        not a semantic version
    │   ├── InvalidParameters     opaque parameters of a claim or class; carries all findings at once
    │   ├── DecodeError           an object does not have the form of its kind
    │   └── ConfigurationError    flags, environment or files of a binary; carries all findings at once
    ├── ApiError                  the API server answered with a Status other than success
    │   ├── NotFound              404
    │   ├── Conflict              409: resourceVersion or name; read again, never overwrite
    │   ├── Gone                  410: a watch or a continue token is too old; list again
    │   ├── Invalid               422 and 400: the server refuses the object
    │   ├── Forbidden             401 and 403
    │   └── ServerBusy            429, 500, 503, 504: worth another try later
    ├── ApiUnavailable            no answer at all (connection refused, reset, timed out)
    ├── NotLeading                a write was not sent: another process may hold the lease
    ├── DiscoveryError            a backend cannot look at the hardware
    └── PrepareError              a claim cannot be prepared; the text goes to the pod's Event
        ├── DeviceNodeAbsent      its document would name a device node that is not there
        │   └── PartitionAbsent   admin access to a partition that is not there
        ├── DriverRefused         a kernel driver does not take a PCI function back
        └── StillPreparing        a backend is at work, and the kubelet has to ask again

"It does not fit" is not an exception: allocation returns it as a value with reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ApiError",
    "ApiUnavailable",
    "ConfigurationError",
    "Conflict",
    "DecodeError",
    "DeviceNodeAbsent",
    "DiscoveryError",
    "DraError",
    "DriverRefused",
    "Forbidden",
    "Gone",
    "Invalid",
    "InvalidInput",
    "InvalidParameters",
    "InvalidQuantity",
    "InvalidVersion",
    "NotFound",
    "NotLeading",
    "PartitionAbsent",
    "PrepareError",
    "ServerBusy",
    "StillPreparing",
]


class DraError(Exception):
    """Base of every exception that the project raises on purpose."""


class InvalidInput(DraError, ValueError):
    """An input is wrong."""


class InvalidQuantity(InvalidInput):
    """A text that is not a Kubernetes quantity."""


class InvalidVersion(InvalidInput):
    """A text that is not a semantic version (semver.org 2.0.0)."""


class InvalidParameters(InvalidInput):
    """Opaque parameters are wrong.

    Attributes:
        findings: every finding, with the path of the field.
    """

    def __init__(self, findings: str | Sequence[str]) -> None:
        self.findings: tuple[str, ...] = (findings,) if isinstance(findings, str) else tuple(findings)
        super().__init__("; ".join(self.findings))


class DecodeError(InvalidInput):
    """An object does not have the form of its kind; the text names the field path."""


class ConfigurationError(InvalidInput):
    """Flags, environment or files of a binary are wrong.

    Attributes:
        findings: every finding, each a sentence that names what was given, what is allowed and where.
    """

    def __init__(self, findings: str | Sequence[str]) -> None:
        self.findings: tuple[str, ...] = (findings,) if isinstance(findings, str) else tuple(findings)
        super().__init__("; ".join(self.findings))


class ApiError(DraError):
    """The API server answered with a Status other than success.

    Attributes:
        code: HTTP status code.
        reason: ``Status.reason``, for example ``AlreadyExists``; empty where the body was no Status.
        causes: ``(field, reason, message)`` of ``Status.details.causes``.
        retry_after: seconds that the server asked us to wait, if it did.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        reason: str = "",
        causes: Sequence[tuple[str, str, str]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.causes = tuple(causes)
        self.retry_after = retry_after


class NotFound(ApiError):
    """404."""

    @property
    def is_of_object(self) -> bool:
        """Whether there is no such object; a path that is not served says nothing of it."""
        return self.reason == "NotFound"


class Conflict(ApiError):
    """409: another writer was faster, or the name exists (reason ``AlreadyExists``).

    Also 422 where a write names the UID of an object that another one of its name has replaced.
    """


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old."""


class Invalid(ApiError):
    """400 or 422: the server refuses the object itself."""


class Forbidden(ApiError):
    """401 or 403."""


class ServerBusy(ApiError):
    """429, 500, 503 or 504: the same call may succeed later."""


class ApiUnavailable(DraError):
    """The API server could not be reached or did not answer in time."""


class NotLeading(DraError):
    """A write was not sent, because another process may hold the lease by now."""


class DiscoveryError(DraError):
    """A backend cannot look at the hardware (library absent, sysfs unreadable)."""


class PrepareError(DraError):
    """A claim cannot be prepared or unprepared.

    Attributes:
        retryable: whether the same call may succeed soon (then it is worth waiting inside the call: the
            kubelet itself asks again only after 65 s or more).
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class DeviceNodeAbsent(PrepareError):
    """The device node of a claim's device is not on the host, so that no document may name it."""


class DriverRefused(PrepareError):
    """A kernel driver does not take a PCI function back, which is bound to none now."""


class StillPreparing(PrepareError):
    """A backend still prepares a device, within the time that it has planned: nothing is to be undone."""


class PartitionAbsent(DeviceNodeAbsent):
    """The partition that a claim has admin access to does not exist now; such a claim makes none."""
