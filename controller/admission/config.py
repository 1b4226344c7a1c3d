"""What can be set about the webhooks."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

__all__ = ["OBJECT_NAME", "TIMEOUT_SECONDS", "AdmissionConfig"]

# Of the Secret, the Service and both webhook configurations. The controller may write only objects of this
# name, which the manifests bring along.
OBJECT_NAME: Final = "dra-driver-admission"
# A claim is checked within milliseconds; who waits longer waits for a controller that is not there.
TIMEOUT_SECONDS: Final = 3

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """How the API server reaches us.

    Attributes:
        port: that is listened on; 0: any.
        host: address to listen on; empty: all.
        service: name of the Service in front of us, in the controller's namespace.
        service_port: of that Service.
        url: instead of the Service: beginning of the address, such as ``https://10.0.0.7:9443``.
    """

    port: int
    host: str = ""
    service: str = OBJECT_NAME
    service_port: int = 443
    url: str = ""

    def findings(self) -> list[str]:
        """Return everything that is wrong with the settings."""
        found: list[str] = []
        if not 0 <= self.port <= 65535:
            found.append(f"--admission-port {self.port}: must be between 0 and 65535 (0: any)")
        if not 1 <= self.service_port <= 65535:
            found.append(f"--admission-service-port {self.service_port}: must be between 1 and 65535")
        if not _LABEL.fullmatch(self.service):
            found.append(
                f"--admission-service {self.service!r}: must be a DNS label of at most 63 characters"
            )
        if self.url and not _is_base(self.url):
            found.append(
                f"--admission-url {self.url!r}: must be https://HOST[:PORT][/PATH], without user, query or "
                "fragment"
            )
        return found

    def names(self, namespace: str) -> frozenset[str]:
        """Return the names and addresses that the serving certificate must be good for."""
        if self.url:
            return frozenset({urlsplit(self.url).hostname or ""})
        short = f"{self.service}.{namespace}"
        return frozenset({f"{short}.svc", f"{short}.svc.cluster.local"})


def _is_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme != "https" or not host or parts.query or parts.fragment or parts.username is not None:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", host) is not None
    return True
