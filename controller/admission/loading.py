"""Gives a serving certificate to OpenSSL without writing its key to a disk."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator

from controller.admission.wire import Certificate

__all__ = ["load"]


def load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Serve a certificate from now on; connections that are open keep theirs.

    Raises:
        ssl.SSLError: it cannot be used.
    """
    with _as_file(certificate.certificate) as public, _as_file(certificate.key) as key:
        context.load_cert_chain(public, key)


@contextlib.contextmanager
def _as_file(content: str) -> Iterator[str]:
    """Yield a path to read the content from: OpenSSL's binding wants files, keys belong on no disk."""
    descriptor = os.memfd_create("dra-driver-admission")
    try:
        os.write(descriptor, content.encode("ascii"))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
