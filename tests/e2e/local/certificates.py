"""Keys and certificates, made with ``openssl``: one authority for everything, valid for two days."""

from __future__ import annotations

import subprocess
from pathlib import Path

from local.configuration import NODE_ADDRESS, SERVICE_ADDRESS

USERS = ("admin", "controller-manager", "scheduler", "kubelet")


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, openssl: Path, folder: Path) -> None:
        self._openssl = openssl
        self._folder = folder
        folder.mkdir(mode=0o700)
        self._key("ca")
        self._run(
            "req -x509 -new -key ca.key -subj /CN=dra-e2e -days 2 -out ca.crt",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        )

    def issue(self, name: str, subject: str, *alternatives: str) -> None:
        """Writes ``name.key`` and ``name.crt``, good for servers and clients."""
        self._key(name)
        self._run(f"req -new -key {name}.key -out {name}.csr", "-subj", subject)
        lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
        if alternatives:
            lines.append("subjectAltName=" + ",".join(alternatives))
        (self._folder / f"{name}.ext").write_text("\n".join(lines) + "\n")
        self._run(
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2"
            f" -out {name}.crt -extfile {name}.ext"
        )

    def key_pair(self, name: str) -> None:
        """Writes ``name.key`` and ``name.pub``, RSA, for service account tokens."""
        self._run(f"genrsa -out {name}.key 2048")
        self._run(f"rsa -in {name}.key -pubout -out {name}.pub")

    def _key(self, name: str) -> None:
        self._run(f"ecparam -name prime256v1 -genkey -noout -out {name}.key")

    def _run(self, arguments: str, *more: str) -> None:
        command = [str(self._openssl), *arguments.split(), *more]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.strip()}")


def make(openssl: Path, folder: Path, node: str) -> None:
    """Everything that the components of a cluster with this one node need."""
    authority = Authority(openssl, folder)
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    addresses = ["127.0.0.1", SERVICE_ADDRESS, NODE_ADDRESS]
    authority.issue(
        "apiserver", "/CN=kube-apiserver", *(f"DNS:{n}" for n in names), *(f"IP:{a}" for a in addresses)
    )
    authority.issue("apiserver-kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client")
    authority.issue("front-proxy", "/CN=front-proxy")
    authority.issue(
        "kubelet-serving", f"/O=system:nodes/CN=system:node:{node}", f"DNS:{node}", f"IP:{NODE_ADDRESS}"
    )
    authority.issue("admin", "/O=system:masters/CN=admin")
    authority.issue("controller-manager", "/CN=system:kube-controller-manager")
    authority.issue("scheduler", "/CN=system:kube-scheduler")
    authority.issue("kubelet", f"/O=system:nodes/CN=system:node:{node}")
    authority.key_pair("sa")
