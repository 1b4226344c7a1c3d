"""The certificate authority and the serving certificate of the webhooks. Pure: time is passed in.

A change never breaks the connection between an API server and a replica, whichever of them has heard of it
first:

1. A new authority comes beside the old one while the old one still has months to live. Both are trusted; the
   serving certificate stays.
2. When the API server's configuration has both, and ``SETTLE`` has passed so that every API server has read
   it, the serving certificate is made anew by the new authority.
3. The old authority is dropped when it has expired.
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
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Material", "renewed"]

_DAY: Final = datetime.timedelta(days=1)
CA_LIFE: Final = 365 * _DAY
CA_RENEW: Final = 120 * _DAY  # before its end; more than a serving certificate lives
LEAF_LIFE: Final = 90 * _DAY
LEAF_RENEW: Final = 30 * _DAY
# Clocks of nodes differ.
BACKDATE: Final = datetime.timedelta(minutes=5)
# From the API server's answer that the configuration is stored until every API server uses it: seconds.
SETTLE: Final = datetime.timedelta(minutes=10)
# A serving certificate this close to its end is replaced whatever else there is to wait for.
LAST_MOMENT: Final = datetime.timedelta(hours=1)

_CA_CERTIFICATES: Final = "ca.crt"
_CA_KEY: Final = "ca.key"
_LEAF: Final = "tls.crt"
_LEAF_KEY: Final = "tls.key"


@dataclass(frozen=True, slots=True, repr=False)
class Material:
    """Everything in the Secret.

    Attributes:
        authorities: PEM, the newest first: the one that signs.
        authority_key: PEM, of the newest.
        leaf: PEM, the serving certificate.
        leaf_key: PEM.
    """

    authorities: tuple[bytes, ...]
    authority_key: bytes
    leaf: bytes
    leaf_key: bytes

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Material | None:
        """Read ``data`` of the Secret; return None where it is empty, or not what we wrote."""
        try:
            values = {k: base64.b64decode(data[k], validate=True) for k in _KEYS}
            authorities = tuple(map(_pem, x509.load_pem_x509_certificates(values[_CA_CERTIFICATES])))
            material = cls(authorities, values[_CA_KEY], values[_LEAF], values[_LEAF_KEY])
            good = _matches(_certificate(authorities[0]), values[_CA_KEY]) and _matches(
                material.certificate, values[_LEAF_KEY]
            )
        except (KeyError, ValueError, TypeError, binascii.Error):
            return None
        return material if good and material.issuer is not None else None

    def to_secret(self) -> dict[str, str]:
        """Return ``data`` of the Secret."""
        values = {
            _CA_CERTIFICATES: self.bundle,
            _CA_KEY: self.authority_key,
            _LEAF: self.leaf,
            _LEAF_KEY: self.leaf_key,
        }
        return {k: base64.b64encode(v).decode("ascii") for k, v in values.items()}

    @property
    def bundle(self) -> bytes:
        """Return every authority to be trusted."""
        return b"".join(self.authorities)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the serving certificate."""
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
        """Return when the serving certificate expires, in seconds since the epoch."""
        return self.certificate.not_valid_after_utc.timestamp()


_KEYS: Final = (_CA_CERTIFICATES, _CA_KEY, _LEAF, _LEAF_KEY)


def renewed(
    material: Material | None, names: Collection[str], now: float, *, trusted: bool
) -> Material | None:
    """Return what should be in the Secret instead; None where what is there is good.

    Args:
        material: what is there; None where nothing of use is.
        names: that the serving certificate must have.
        now: seconds since the epoch.
        trusted: the API server's configuration has every authority of ``material``.
    """
    time = datetime.datetime.fromtimestamp(now, datetime.UTC)
    alive = [a for a in material.authorities if _ends(a) > time] if material is not None else []
    if material is None or material.authorities[0] not in alive:
        authority, key = _new_authority(time)
        return Material((authority,), key, *_new_leaf(authority, key, names, time))
    if _ends(material.authorities[0]) - time < CA_RENEW:
        authority, key = _new_authority(time)
        return Material((authority, *alive), key, material.leaf, material.leaf_key)
    newest = material.authorities[0]
    left = _ends(material.leaf) - time
    due = left < LEAF_RENEW or material.issuer != newest or not set(names) <= material.names
    settled = trusted and time - _certificate(newest).not_valid_before_utc - BACKDATE >= SETTLE
    if due and (material.issuer == newest or settled or left < LAST_MOMENT):
        leaf = _new_leaf(newest, material.authority_key, names, time)
        return Material(tuple(alive), material.authority_key, *leaf)
    return None


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
    signer = _private_key(authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
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


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of an elliptic curve")
    return key


def _matches(certificate: x509.Certificate, key: bytes) -> bool:
    return certificate.public_key() == _private_key(key).public_key()
