"""The certificate authority and the serving certificate of the webhooks. Pure: time is passed in.

The installation brings the authority, because the API server's configuration has to name it, and the
controller has no right to change that. The controller makes serving certificates with the authority's key. A
change never breaks the connection between an API server and a replica, whichever of them has heard of it
first:

1. A new authority comes beside the old one, into the configuration and into the Secret. Both are trusted; the
   serving certificate stays.
2. When ``SETTLE`` has passed, so that every API server has read the configuration, the serving certificate is
   made anew by the new authority.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Material", "authority_is_due", "signed", "with_new_authority"]

_DAY: Final = datetime.timedelta(days=1)
CA_LIFE: Final = 3650 * _DAY
CA_RENEW: Final = 365 * _DAY  # before its end
LEAF_LIFE: Final = 90 * _DAY
LEAF_RENEW: Final = 30 * _DAY
# Clocks of nodes differ.
BACKDATE: Final = datetime.timedelta(minutes=5)
# From the API server's answer that the configuration is stored until every API server uses it: seconds.
SETTLE: Final = datetime.timedelta(minutes=10)
# A serving certificate this close to its end is replaced whatever else there is to wait for.
LAST_MOMENT: Final = datetime.timedelta(hours=1)

# Beside a new authority: what replicas serve was signed by one of the last two.
_MOST_OLD: Final = 2

_CA_CERTIFICATES: Final = "ca.crt"
_CA_KEY: Final = "ca.key"
_LEAF: Final = "tls.crt"
_LEAF_KEY: Final = "tls.key"


@dataclass(frozen=True, slots=True, repr=False)
class Material:
    """Everything in the Secret.

    Attributes:
        authorities: PEM, the newest first: the one that signs.
        authority_key: PEM, of the newest; empty where somebody else makes the serving certificate.
        leaf: PEM, the serving certificate, and what its chain has beside it; empty: there is none yet.
        leaf_key: PEM; empty without a leaf.
    """

    authorities: tuple[bytes, ...]
    authority_key: bytes
    leaf: bytes
    leaf_key: bytes

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Material | None:
        """Read ``data`` of the Secret; None: neither a certificate nor a key to make one with is there.

        A serving certificate that cannot be used is left out, and one that none of the authorities has signed
        is, if it can be made anew.
        """
        values = {k: _decoded(data.get(k, "")) for k in _KEYS}
        authorities = _pems(values[_CA_CERTIFICATES])
        key = values[_CA_KEY] if authorities and _matches(authorities[0], values[_CA_KEY]) else b""
        leaf, leaf_key = values[_LEAF], values[_LEAF_KEY]
        if not _matches(leaf, leaf_key):
            leaf = leaf_key = b""
        material = cls(authorities, key, leaf, leaf_key)
        if key and leaf and material.issuer is None:
            material = cls(authorities, key, b"", b"")
        return material if material.authority_key or material.leaf else None

    def to_secret(self) -> dict[str, str]:
        """Return ``data`` of the Secret."""
        return self.authorities_to_secret() | self.leaf_to_secret()

    def authorities_to_secret(self) -> dict[str, str]:
        """Return the part of it that the installation writes."""
        return _encoded({_CA_CERTIFICATES: self.bundle, _CA_KEY: self.authority_key})

    def leaf_to_secret(self) -> dict[str, str]:
        """Return the part of it that the controller writes."""
        return _encoded({_LEAF: self.leaf, _LEAF_KEY: self.leaf_key})

    @property
    def bundle(self) -> bytes:
        """Return every authority to be trusted."""
        return b"".join(self.authorities)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the serving certificate, which must be there."""
        return _certificate(self.leaf)

    @property
    def issuer(self) -> bytes | None:
        """Return the authority that signed the serving certificate; None where it is not ours."""
        for authority in self.authorities:
            try:
                self.certificate.verify_directly_issued_by(_certificate(authority))
            except Exception:  # noqa: S112 - whatever is wrong with it, it is not the issuer
                continue
            return authority
        return None

    @property
    def names(self) -> frozenset[str]:
        """Return the names and addresses of the serving certificate."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        addresses = found.get_values_for_type(x509.IPAddress)
        return frozenset(found.get_values_for_type(x509.DNSName)) | {str(a) for a in addresses}

    @property
    def ends(self) -> float:
        """Return when the serving certificate expires, in seconds since the epoch; 0 without one."""
        return self.certificate.not_valid_after_utc.timestamp() if self.leaf else 0.0

    @property
    def authority_ends(self) -> float:
        """Return when the authority expires, in seconds since the epoch; 0 where it does not sign here."""
        return _ends(self.authorities[0]).timestamp() if self.authority_key else 0.0


_KEYS: Final = (_CA_CERTIFICATES, _CA_KEY, _LEAF, _LEAF_KEY)


def signed(material: Material, names: Collection[str], now: float) -> Material | None:
    """Return the same with another serving certificate; None where what is there stays.

    Args:
        material: what is there.
        names: that the serving certificate must have.
        now: seconds since the epoch.
    """
    time = datetime.datetime.fromtimestamp(now, datetime.UTC)
    if not material.authority_key or _ends(material.authorities[0]) <= time:
        return None
    newest = material.authorities[0]
    if material.leaf and not _is_due(material, names, time):
        return None
    leaf, leaf_key = _new_leaf(newest, material.authority_key, names, time)
    return Material(material.authorities, material.authority_key, leaf, leaf_key)


def _is_due(material: Material, names: Collection[str], time: datetime.datetime) -> bool:
    """Return whether a serving certificate is to be made anew, and whether it may be yet."""
    newest, end = material.authorities[0], _ends(material.leaf)
    left = end - time
    # The last one of an authority is as good as any that it could still sign.
    renewable = left < LEAF_RENEW and min(time + LEAF_LIFE, _ends(newest)) - end > _DAY
    if not (renewable or material.issuer != newest or not set(names) <= material.names):
        return False
    settled = time - _certificate(newest).not_valid_before_utc - BACKDATE >= SETTLE
    return material.issuer == newest or settled or left < LAST_MOMENT


def authority_is_due(material: Material | None, now: float) -> bool:
    """Return whether a new authority should come: there is none with its key, or it ends within a year."""
    if material is None or not material.authority_key:
        return True
    return material.authority_ends - now < CA_RENEW.total_seconds()


def with_new_authority(material: Material | None, now: float) -> Material:
    """Return what is there with a new authority, which comes beside those that have not expired."""
    time = datetime.datetime.fromtimestamp(now, datetime.UTC)
    authority, key = _new_authority(time)
    if material is None:
        return Material((authority,), key, b"", b"")
    alive = tuple(a for a in material.authorities if _ends(a) > time)
    return Material((authority, *alive[:_MOST_OLD]), key, material.leaf, material.leaf_key)


def _new_authority(time: datetime.datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial number in the name: two authorities of one name would be taken for one another.
    serial = x509.random_serial_number()
    name = _name(f"dra-driver-admission-ca-{serial:x}"[:64])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, time - BACKDATE, time + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _new_leaf(
    authority: bytes, authority_key: bytes, names: Collection[str], time: datetime.datetime
) -> tuple[bytes, bytes]:
    """Return a serving certificate and its key, signed by the authority."""
    issuer = _certificate(authority)
    signer = _any_key(authority_key)
    if not isinstance(signer, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("neither a key of an elliptic curve nor an RSA key")
    key = ec.generate_private_key(ec.SECP256R1())
    # By what the authority says of itself: its maker may number keys otherwise than this library does.
    of_issuer = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_issuer)
    certificate = (
        x509.CertificateBuilder(
            issuer.subject,
            _name("dra-driver-admission"),
            key.public_key(),
            x509.random_serial_number(),
            time - BACKDATE,
            min(time + LEAF_LIFE, issuer.not_valid_after_utc),
        )
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _ends(pem: bytes) -> datetime.datetime:
    return _certificate(pem).not_valid_after_utc


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _matches(certificate: bytes, key: bytes) -> bool:
    try:
        return _certificate(certificate).public_key() == _any_key(key).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _any_key(pem: bytes) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(pem, None)


def _pems(bundle: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a bundle; none where it is not one."""
    try:
        return tuple(map(_pem, x509.load_pem_x509_certificates(bundle)))
    except ValueError:
        return ()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _encoded(values: Mapping[str, bytes]) -> dict[str, str]:
    return {k: base64.b64encode(v).decode("ascii") for k, v in values.items()}
