"""Clients that do not behave: connections that stop half-way, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.admission.pki import Material, signed, with_new_authority

__all__ = [
    "Begin",
    "Crowd",
    "allow_many_files",
    "body_half_sent",
    "client_certificate",
    "client_context",
    "handshake_half_done",
    "handshake_half_sent",
    "header_half_sent",
    "idle_after_handshake",
    "material",
    "server_context",
    "silent",
]

HALF_A_HEADER = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Ty"
HALF_A_BODY = (
    b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    + b"{" * 500
)


def material(now: float) -> Material:
    """An authority, and a certificate of 127.0.0.1."""
    made = signed(with_new_authority(None, now), {"127.0.0.1"}, now)
    assert made is not None
    return made


def client_certificate(authority: Material, name: str) -> tuple[bytes, bytes]:
    """A certificate of a caller by that name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.authorities[0])
    signer = serialization.load_pem_private_key(authority.authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    made = (
        x509.CertificateBuilder(
            issuer.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            issuer.not_valid_before_utc,
            issuer.not_valid_after_utc,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(encoding), private


def server_context(made: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "crt", Path(folder) / "key"
        certificate.write_bytes(made.leaf)
        key.write_bytes(made.leaf_key)
        context.load_cert_chain(certificate, key)
    return context


def client_context(made: Material) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=made.bundle.decode())


def allow_many_files(needed: int) -> None:
    """Raises the limit of open files as far as it goes; skips the test where that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"a process may have {hard} files open here, {needed} are needed")


@cache
def _hello() -> bytes:
    """What a client sends first, as OpenSSL makes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def _plain(address: tuple[str, int], source: str) -> socket.socket:
    made = socket.create_connection(address, timeout=30, source_address=(source, 0))
    made.settimeout(0)
    return made


Begin = Callable[[tuple[str, int], str], socket.socket]


def silent(address: tuple[str, int], source: str) -> socket.socket:
    """Connects and sends nothing."""
    return _plain(address, source)


def _plain_with(address: tuple[str, int], source: str, sent: bytes) -> socket.socket:
    made = _plain(address, source)
    try:
        made.send(sent)
    except OSError:
        made.close()
        raise
    return made


def handshake_half_sent(address: tuple[str, int], source: str) -> socket.socket:
    """Sends half of its first message."""
    return _plain_with(address, source, _hello()[:100])


def handshake_half_done(address: tuple[str, int], source: str) -> socket.socket:
    """Sends its first message and does not answer the server's."""
    return _plain_with(address, source, _hello())


def _secure(address: tuple[str, int], source: str, sent: bytes) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection(address, timeout=30, source_address=(source, 0))
    try:
        made = context.wrap_socket(plain)
    except OSError:
        plain.close()
        raise
    try:
        made.send(sent)
    except OSError:
        made.close()  # has taken the place of the other
        raise
    made.settimeout(0)
    return made


def idle_after_handshake(address: tuple[str, int], source: str) -> socket.socket:
    """Sends no request."""
    return _secure(address, source, b"")


def header_half_sent(address: tuple[str, int], source: str) -> socket.socket:
    """Sends half of a header."""
    return _secure(address, source, HALF_A_HEADER)


def body_half_sent(address: tuple[str, int], source: str) -> socket.socket:
    """Sends half of a body."""
    return _secure(address, source, HALF_A_BODY)


class Crowd:
    """Connections of one kind each, made in threads so that the event loop serves them meanwhile."""

    def __init__(self, source: str = "127.0.0.1") -> None:
        """Begin with nobody.

        Args:
            source: address that they come from; any of the loopback network.
        """
        self._source = source
        self.sockets: list[socket.socket] = []
        self.refused = 0

    async def come(self, begin: Begin, address: tuple[str, int], number: int, threads: int = 4) -> None:
        async with asyncio.TaskGroup() as tasks:
            for i in range(threads):
                share = number // threads + (i < number % threads)
                tasks.create_task(asyncio.to_thread(self._some, begin, address, share))

    def _some(self, begin: Begin, address: tuple[str, int], number: int) -> None:
        for _ in range(number):
            try:
                self.sockets.append(begin(address, self._source))
            except OSError:
                self.refused += 1

    def closed(self) -> int:
        """How many of them the server has closed."""
        return sum(map(_is_closed, self.sockets))

    def leave(self) -> None:
        for each in self.sockets:
            each.close()
        self.sockets.clear()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[Crowd]:
        try:
            yield self
        finally:
            self.leave()


def _is_closed(each: socket.socket) -> bool:
    try:
        # Not of ssl: whether the connection stands, not what is in it.
        return not socket.socket.recv(each, 1 << 16)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
