"""A real API server with its etcd, for tests of what only it decides: RBAC and admission policies.

It needs no root, no kubelet and no network: a folder of Kubernetes' release binaries is enough, named by the
variable ``DRA_K8S_BIN``. Every test that wants it is skipped where the variable is not set.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dra_driver.kube import KubeApi

VARIABLE = "DRA_K8S_BIN"
ADMIN = "the-token-of-the-administrator"
# On two cores that others use too, an API server takes its time.
UP_SECONDS = 180.0
PROGRAMS = ("etcd", "kube-apiserver")


def binaries() -> Path:
    """Return the folder of the programs; skip the test where there is none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"a real API server is needed: {VARIABLE} names a folder with {' and '.join(PROGRAMS)}")
    missing = [name for name in PROGRAMS if not os.access(Path(folder) / name, os.X_OK)]
    assert not missing, f"{VARIABLE}={folder}: {', '.join(missing)} is not there"
    return Path(folder)


@functools.cache
def feature_gates(program: Path) -> dict[str, bool]:
    """Return the feature gates that a program of Kubernetes lists, and whether they are on by default."""
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"kube:(\w+)=true\|false \(\w+ - default=(\w+)\)", text)
    return {gate: default == "true" for gate, default in found}


def scheduler_has(gate: str) -> bool:
    """Return whether a feature gate of the kube-scheduler is on by default."""
    return feature_gates(binaries() / "kube-scheduler").get(gate, False)


def gate_flag(*gates: str) -> str:
    """Return the flag that turns feature gates on; skip the test where the API server lacks one of them."""
    known = feature_gates(binaries() / "kube-apiserver")
    missing = [gate for gate in gates if gate not in known]
    if missing:
        pytest.skip(f"this API server has no feature gate {', '.join(missing)}")
    return f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"


class RealApiServer:
    """An API server.

    Args:
        url: where it listens.
        folder: of its data and logs.
        flags: of its command line, whichever version it is.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str, folder: Path, flags: Sequence[str]) -> None:
        self.url = url
        self._folder = folder
        self._flags = flags

    @contextlib.contextmanager
    def running(self, programs: Path, *flags: str) -> Iterator[None]:
        """Run it; a second time it is an upgrade, or a rollback, that keeps etcd.

        Args:
            programs: the folder of the version.
            flags: more flags.
        """
        log = self._folder / "apiserver.log"
        with _running([str(programs / "kube-apiserver"), *self._flags, *flags], log) as process:
            _wait(self.url, process, log)
            yield

    def kubeconfig(self, token: str = ADMIN) -> Path:
        """Write a kubeconfig with a token; return its path."""
        path = self._folder / f"kubeconfig-{abs(hash(token)):x}"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        path.write_text(yaml.safe_dump(body))
        return path

    async def client(self, token: str = ADMIN, *, user_agent: str = "") -> KubeApi:
        """Return a client with a token; the caller closes it."""
        return await KubeApi.connect(self.kubeconfig(token), user_agent=user_agent)


async def bound_token(
    admin: KubeApi, namespace: str, account: str, bound: dict[str, str] | None = None
) -> str:
    """Return a token of a service account, bound to an object as a kubelet asks for it."""
    spec: dict[str, Any] = {"audiences": None, "expirationSeconds": 3600, "boundObjectRef": bound}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = yaml.safe_load(await admin._call("POST", path, body=body))
    return str(answer["status"]["token"])


@contextlib.contextmanager
def real_apiserver(folder: Path, *flags: str) -> Iterator[RealApiServer]:
    """Start etcd and an API server below ``folder``, and end both.

    Args:
        folder: of their data and logs.
        flags: more flags of the API server.
    """
    with real_etcd(folder) as server, server.running(binaries(), *flags):
        yield server


@contextlib.contextmanager
def real_etcd(folder: Path) -> Iterator[RealApiServer]:
    """Start etcd below ``folder``, and end it; give the API server on it, which does not run yet."""
    programs = binaries()
    client, peer, secure = (_free_port() for _ in range(3))
    key = folder / "sa.key"
    key.write_bytes(_private_key())
    etcd = [
        str(programs / "etcd"),
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--log-level=warn",
    ]
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{ADMIN},admin,admin,"system:masters"\n')
    server = [
        f"--etcd-servers=http://127.0.0.1:{client}",
        "--bind-address=127.0.0.1",
        f"--secure-port={secure}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={tokens}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--authorization-mode=RBAC",
        # No controller-manager makes service accounts here.
        "--disable-admission-plugins=ServiceAccount",
    ]
    with _running(etcd, folder / "etcd.log"):
        yield RealApiServer(f"https://127.0.0.1:{secure}", folder, server)


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + UP_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/readyz", context=context).close()
            return
        said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        assert process.poll() is None, f"the API server has ended:\n{said}"
        assert time.monotonic() < deadline, f"the API server is not ready:\n{said}"
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _private_key() -> bytes:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return made.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
