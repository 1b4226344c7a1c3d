"""Service accounts and plain kubeconfigs, read without the ``kubernetes`` package.

Importing that package costs 18 MiB of resident memory and 0.2 s, on every node. Whatever is not plain here
(exec plugins, auth providers, passwords, proxies, several files) is left to it: ``from_file`` says None.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dra_driver.errors import ConfigurationError

__all__ = [
    "SERVICE_ACCOUNT",
    "PlainConfiguration",
    "from_file",
    "from_service_account",
    "service_account_namespace",
]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# The kubelet rewrites projected tokens long before they expire; client-go reads them once a minute.
_READ_AGAIN_SECONDS: Final = 60.0
_CLUSTER: Final = frozenset(
    {
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
        "tls-server-name",
    }
)
_USER: Final = frozenset(
    {
        "token",
        "tokenFile",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
    }
)


class PlainConfiguration:
    """Has the attributes of the library's ``Configuration`` that ``config.Connection`` reads."""

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self._clock = clock
        self.ssl_ca_cert: str | None = None
        self.ca_cert_data: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        self.token = ""
        self.token_file: Path | None = None
        self.certificate: tuple[bytes, bytes] | None = None
        self._read_at = float("-inf")

    async def get_api_key_with_prefix(self, _: str) -> str | None:
        """Return the value of the Authorization header.

        Raises:
            ConfigurationError: the token file cannot be read and was never read before.
        """
        if self.token_file is not None and self._clock() - self._read_at > _READ_AGAIN_SECONDS:
            self.read_token()
        return f"Bearer {self.token}" if self.token else None

    def read_token(self) -> None:
        """Read the token file again; an earlier token stays where that fails."""
        if self.token_file is None:
            return
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as e:
            if self.token:
                return
            reason = e.strerror if isinstance(e, OSError) else "not ASCII text"
            raise ConfigurationError(f"token file {self.token_file}: {reason}") from e
        if token:
            self.token, self._read_at = token, self._clock()

    @contextmanager
    def certificate_files(self) -> Iterator[None]:
        """Write inline certificates to files, as OpenSSL wants them; remove them after the block."""
        if self.certificate is None:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="dra-driver-") as folder:
            paths = (Path(folder) / "cert", Path(folder) / "key")
            for path, data in zip(paths, self.certificate, strict=True):
                path.touch(mode=0o600)
                path.write_bytes(data)
            self.cert_file, self.key_file = (str(p) for p in paths)
            yield
            self.cert_file = self.key_file = None


def from_service_account(folder: Path = SERVICE_ACCOUNT) -> PlainConfiguration:
    """Return the configuration that the kubelet gives to every pod.

    Raises:
        ConfigurationError: a part of it is missing.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigurationError(
            "in-cluster configuration: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set"
        )
    configuration = PlainConfiguration(f"https://{f'[{host}]' if ':' in host else host}:{port}")
    authority = folder / "ca.crt"
    if not authority.is_file():
        raise ConfigurationError(f"in-cluster configuration: {authority}: no such file")
    configuration.ssl_ca_cert = str(authority)
    configuration.token_file = folder / "token"
    configuration.read_token()
    if not configuration.token:
        raise ConfigurationError(f"in-cluster configuration: {configuration.token_file}: empty")
    return configuration


def service_account_namespace(folder: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of the pod that this process runs in; ``default`` where it is not written down."""
    try:
        return (folder / "namespace").read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"


def from_file(path: Path, content: Mapping[str, Any]) -> PlainConfiguration | None:
    """Return the current context of a kubeconfig.

    Args:
        path: of the file; relative paths in it begin at its directory.
        content: what is in it.

    Returns:
        None where it is not plain, or not right: the library then does it, or says what is wrong.
    """
    context = _named(content, "contexts", content.get("current-context"), "context")
    if context is None:
        return None
    cluster = _named(content, "clusters", context.get("cluster"), "cluster")
    name = context.get("user")
    user = _named(content, "users", name, "user") if name else {}
    if cluster is None or user is None or not cluster.keys() <= _CLUSTER or not user.keys() <= _USER:
        return None
    if not isinstance(cluster.get("insecure-skip-tls-verify", False), bool):
        return None
    texts = [v for k, v in (*cluster.items(), *user.items()) if k != "insecure-skip-tls-verify"]
    if not all(isinstance(v, str) and v for v in texts):
        return None
    server = cluster.get("server", "")
    if not server.startswith(("http://", "https://")):
        return None
    try:
        return _built(path.parent, server, cluster, user)
    except (OSError, binascii.Error, UnicodeDecodeError):
        return None


def _built(
    folder: Path, server: str, cluster: Mapping[str, Any], user: Mapping[str, Any]
) -> PlainConfiguration | None:
    configuration = PlainConfiguration(server)
    configuration.verify_ssl = not cluster.get("insecure-skip-tls-verify", False)
    configuration.tls_server_name = cluster.get("tls-server-name")
    if data := cluster.get("certificate-authority-data"):
        configuration.ca_cert_data = base64.b64decode(data, validate=True).decode("ascii")
    elif authority := cluster.get("certificate-authority"):
        if not (folder / authority).is_file():
            return None
        configuration.ssl_ca_cert = str(folder / authority)
    halves = [_bytes(folder, user, part) for part in ("client-certificate", "client-key")]
    if halves[0] and halves[1]:
        configuration.certificate = (halves[0], halves[1])
    elif any(halves):
        return None
    if token_file := user.get("tokenFile"):
        configuration.token_file = folder / token_file
        configuration.read_token()
    else:
        configuration.token = user.get("token", "").strip()
    return configuration


def _bytes(folder: Path, user: Mapping[str, Any], part: str) -> bytes:
    if data := user.get(f"{part}-data"):
        return base64.b64decode(data, validate=True)
    return (folder / user[part]).read_bytes() if part in user else b""


def _named(content: Mapping[str, Any], plural: str, name: object, field: str) -> dict[str, Any] | None:
    """Return ``field`` of the entry of that name; None where it is not what it should be."""
    entries = content.get(plural)
    if not isinstance(entries, list):
        return None
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.get(field)
            return value if isinstance(value, dict) else None
    return None
