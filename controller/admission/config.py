"""What can be set about the webhooks."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from dra_driver.errors import ConfigurationError

__all__ = ["CAPACITY_CONFIGURATION", "OBJECT_NAME", "TIMEOUT_SECONDS", "AdmissionConfig"]

# Of the Secret, the Service and both webhook configurations, which the manifests bring along.
OBJECT_NAME: Final = "dra-driver-admission"
# The configuration that sends requests for capacity here. It fails closed, so it is one of its own.
CAPACITY_CONFIGURATION: Final = "dra-driver-admission-capacity"
# A claim is checked within milliseconds; who waits longer waits for a controller that is not there.
TIMEOUT_SECONDS: Final = 3

_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """How the API server reaches us.

    Attributes:
        port: that is listened on; 0: any.
        host: address to listen on; empty: all.
        service: name of the Service in front of us, in the controller's namespace.
        secret: name of the Secret with the certificates, likewise.
        client_authorities: file with the authorities (PEM) of callers' certificates; None: anybody may call.
        client_names: of those certificates, common or DNS name; empty: any.
        url: instead of the Service: beginning of the address, such as ``https://10.0.0.7:9443``.
    """

    port: int
    host: str = ""
    service: str = OBJECT_NAME
    secret: str = OBJECT_NAME
    url: str = ""
    client_authorities: Path | None = None
    client_names: tuple[str, ...] = ()

    def findings(self) -> list[str]:
        """Return everything that is wrong with the settings."""
        found: list[str] = []
        if not 0 <= self.port <= 65535:
            found.append(f"--admission-port {self.port}: must be between 0 and 65535 (0: any)")
        if not _LABEL.fullmatch(self.service):
            found.append(
                f"--admission-service {self.service!r}: must be a DNS label of at most 63 characters"
            )
        if not _SUBDOMAIN.fullmatch(self.secret):
            found.append(f"--admission-secret {self.secret!r}: must be a DNS name of at most 253 characters")
        if self.client_names and self.client_authorities is None:
            found.append("--admission-client-name: needs --admission-client-ca, which verifies the names")
        if self.url and not _is_base(self.url):
            found.append(
                f"--admission-url {self.url!r}: must be https://HOST[:PORT][/PATH], without user, query or "
                "fragment"
            )
        return found

    def read_client_authorities(self) -> str:
        """Return the authorities of callers' certificates as PEM; empty: anybody may call.

        Raises:
            ConfigurationError: the file cannot be read, or has no certificate. Nothing is served then:
                without authorities everybody would be.
        """
        if self.client_authorities is None:
            return ""
        try:
            text = self.client_authorities.read_bytes()
            x509.load_pem_x509_certificates(text)
            return text.decode("ascii")
        except (OSError, ValueError) as e:
            raise ConfigurationError(
                f"--admission-client-ca {self.client_authorities}: no certificates (PEM) can be read: {e}"
            ) from e

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
