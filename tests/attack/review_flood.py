"""Pods that send reviews to webhooks: ``python review_flood.py KIND ADDRESSES CONNECTIONS PORT...``.

A process of the lowest priority, because pods of tenants run on other machines than the controller. Every
address of the loopback network is a pod of its own. It prints what it has done once a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time

_SECONDS = 5.0
_BYTES = 3_900_000

context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
done = 0
lock = threading.Lock()


def large_review() -> bytes:
    """A review of which much is to be checked: parameters with thousands of fields that there are not."""
    entries = 60
    share = _BYTES // entries - 300
    fields = {f"field{i}": i for i in range(share // 20)}
    parameters = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", **fields}
    config = [{"opaque": {"driver": "gpu.dra-driver.dev", "parameters": parameters}}] * entries
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    request = {
        "uid": "flood",
        "kind": kind,
        "operation": "CREATE",
        "object": {"spec": {"devices": {"config": config}}},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review).encode()


def head(length: int) -> bytes:
    return (
        "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def hello() -> bytes:
    """What a client sends first."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def large(secure: ssl.SSLSocket, body: bytes) -> None:
    """Send large reviews one after the other."""
    while True:
        secure.sendall(head(len(body)) + body)
        if not secure.recv(1 << 16):
            return
        count()


def slow(secure: ssl.SSLSocket, body: bytes) -> None:
    """Send a review byte by byte."""
    secure.sendall(head(len(body)))
    count()
    for i in range(len(body)):
        secure.sendall(body[i : i + 1])
        time.sleep(0.3)


def count() -> None:
    global done
    with lock:
        done += 1


def pod(kind: str, address: str, port: int, body: bytes) -> None:
    while True:
        with contextlib.suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", port), _SECONDS, source_address=(address, 0))
            with plain:
                if kind == "handshake":
                    plain.sendall(hello())
                    count()
                    plain.settimeout(60)
                    while plain.recv(1 << 16):
                        pass
                    continue
                with context.wrap_socket(plain) as secure:
                    (large if kind == "large" else slow)(secure, body)
        time.sleep(0.05)


def main(kind: str, addresses: int, connections: int, *ports: int) -> None:
    os.nice(19)
    body = large_review()
    for number in range(addresses):
        for port in ports:
            for _ in range(connections):
                address = f"127.0.{1 + number // 200}.{1 + number % 200}"
                threading.Thread(target=pod, args=(kind, address, port, body), daemon=True).start()
    while os.getppid() != 1:
        time.sleep(1)
        print(done, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
