"""The node's memory of prepared claims: one JSON document, and a journal of what has changed since.

::

    {"version": 1, "checksum": "sha256:<hex>", "payload": {"claims": {"<uid>": {…}, …}, …}}

The checksum is over the bytes of ``payload`` as they stand in the file, so that no change of a struct can
make an old file look corrupt. Records that we do not change are written back byte for byte, with fields that
only a newer version knows; unknown fields beside ``claims`` are kept as well.

The journal belongs to one document. It has one line for each change, with the record of each claim that was
changed, or null for one that was forgotten::

    <hex> {"claims": {"<uid>": {…}, "<uid>": null}}

``<hex>`` is the SHA-256 of the one in the line before (in the first line: of the document's ``checksum``)
and of the rest of the line. So a journal of another document says nothing, and no line counts without those
before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import Uid
from dra_driver.errors import DecodeError, InvalidInput
from dra_driver.preparation.claim import PreparedClaim
from dra_driver.preparation.files import names

__all__ = ["VERSION", "Checkpoint", "Journal"]

VERSION: Final = 1
_CLAIMS: Final = "claims"
_BOOT_ID: Final = "bootID"


class _Entry(msgspec.Struct, frozen=True):
    claims: dict[str, msgspec.Raw]


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    checksum: str
    payload: msgspec.Raw


@dataclass(frozen=True, slots=True)
class _Record:
    claim: PreparedClaim
    raw: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An immutable set of records; ``changed`` and ``without`` return new ones."""

    version: int = VERSION
    _records: Mapping[Uid, _Record] = field(default_factory=dict)
    _others: Mapping[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[PreparedClaim]:
        return (r.claim for r in self._records.values())

    def get(self, uid: Uid) -> PreparedClaim | None:
        """Return the record of a claim."""
        record = self._records.get(uid)
        return record.claim if record else None

    @property
    def boot_id(self) -> str:
        """Which boot of the machine the records are of; empty where that was not noted."""
        raw = self._others.get(_BOOT_ID, b"")
        return str(codec.decode(str, raw)) if raw[:1] == b'"' else ""

    def with_boot_id(self, boot_id: str) -> Checkpoint:
        """Return it with another boot ID; records that do not say of which boot they are say so then."""
        before = self.boot_id
        changes = {
            c.uid: msgspec.structs.replace(c, boot_id=before) for c in self if before and not c.boot_id
        }
        others = {**self._others, _BOOT_ID: codec.encode(boot_id)}
        return Checkpoint(self.version, self.changed(changes)._records, others)

    def is_of_earlier_boot(self, claim: PreparedClaim, boot_id: str) -> bool:
        """Return whether a reboot has ended what the record says. Where a boot is not known, none has."""
        made_in = claim.boot_id or self.boot_id
        return bool(boot_id and made_in) and made_in != boot_id

    def without(self, uid: Uid) -> Checkpoint:
        """Return it without the record of this UID."""
        return self.changed({uid: None})

    def changed(self, changes: Mapping[Uid, PreparedClaim | None]) -> Checkpoint:
        """Return it with several records replaced; None removes."""
        records = dict(self._records)
        for uid, claim in changes.items():
            if claim is None:
                records.pop(uid, None)
            else:
                records[names.check_uid(uid)] = _Record(claim, codec.encode(claim))
        return Checkpoint(self.version, records, self._others)

    def encode(self) -> bytes:
        """Return the document, one line."""
        payload = _object(
            [(_CLAIMS, _object((u, r.raw) for u, r in self._records.items())), *self._others.items()]
        )
        head = {"version": self.version, "checksum": _checksum(payload)}
        return codec.encode(head)[:-1] + b',"payload":' + payload + b"}\n"

    def entry(self, uids: Iterable[Uid]) -> bytes:
        """Return a line of a journal that says what the records of these claims are, without its checksum."""
        raws = ((uid, r.raw if (r := self._records.get(uid)) is not None else b"null") for uid in uids)
        return b"{" + msgspec.json.encode(_CLAIMS) + b":" + _object(raws) + b"}"

    def replayed(self, entries: Iterable[bytes]) -> Checkpoint:
        """Return it with what lines of its journal say, without their checksums.

        Raises:
            DecodeError: one of them is not of this form.
        """
        records = dict(self._records)
        for entry in entries:
            for uid, raw in codec.decode(_Entry, entry).claims.items():
                if bytes(raw) == b"null":
                    records.pop(Uid(uid), None)
                else:
                    records[Uid(uid)] = _record(uid, bytes(raw))
        return Checkpoint(self.version, records, self._others)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read a document of this or any other version that keeps the form.

        Raises:
            DecodeError: not JSON, not of this form, or not what the checksum says.
        """
        envelope = codec.decode(_Envelope, data)
        payload = bytes(envelope.payload)
        if _checksum(payload) != envelope.checksum:
            raise DecodeError(
                f"checksum is {envelope.checksum[:80]!r}, but the payload of {len(payload)} bytes "
                f"has {_checksum(payload)!r}"
            )
        parts = _raw_object(payload, "payload")
        records: dict[Uid, _Record] = {}
        for uid, raw in _raw_object(bytes(parts.pop(_CLAIMS, b"{}")), "payload.claims").items():
            records[Uid(uid)] = _record(uid, bytes(raw))
        others = {name: bytes(raw) for name, raw in parts.items()}
        return cls(max(VERSION, envelope.version), records, others)


@dataclass(frozen=True, slots=True)
class Journal:
    """What has to be known of a journal to add to it.

    Attributes:
        size: in bytes, of the lines that count.
        last: the checksum of the last of them; without one, the document's.
    """

    size: int
    last: str

    @classmethod
    def of(cls, document: bytes) -> Journal:
        """Return the empty journal of an encoded document."""
        return cls(0, codec.decode(_Envelope, document).checksum)

    def line(self, entry: bytes) -> tuple[bytes, Journal]:
        """Return the line for an entry, and the journal that ends with it."""
        digest = self._digest(entry)
        line = digest.encode() + b" " + entry + b"\n"
        return line, Journal(self.size + len(line), digest)

    def read(self, data: bytes) -> tuple[list[bytes], Journal, str]:
        """Return the entries that count of what a journal's file holds.

        Args:
            data: the content of the file.

        Returns:
            The entries, the journal that ends with the last of them, and what is wrong with the rest, as a
            clause. It is empty if nothing is, or if the rest is a line that was not written to its end: what
            it says had not been acknowledged.
        """
        entries: list[bytes] = []
        found = self
        for line in data.split(b"\n")[:-1]:
            digest, _, entry = line.partition(b" ")
            if digest.decode("ascii", "replace") != found._digest(entry):
                return entries, found, f"line {len(entries) + 1} of the journal is not what its checksum says"
            entries.append(entry)
            found = Journal(found.size + len(line) + 1, digest.decode())
        return entries, found, ""

    def _digest(self, entry: bytes) -> str:
        return hashlib.sha256(self.last.encode() + b" " + entry).hexdigest()


def _record(uid: str, raw: bytes) -> _Record:
    try:
        claim = codec.decode(PreparedClaim, raw)
        names.check_uid(uid)
    except InvalidInput as e:
        raise DecodeError(f"payload.claims[{uid[:80]}]: {e}") from e
    if claim.uid != uid:
        raise DecodeError(f"payload.claims[{uid}]: the record is of claim {claim.uid[:80]!r}")
    return _Record(claim, raw)


_raw_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _raw_object(data: bytes, where: str) -> dict[str, msgspec.Raw]:
    try:
        return _raw_objects.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise DecodeError(f"{where}: {e}") from e


def _object(items: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + raw for name, raw in items) + b"}"


def _checksum(payload: bytes) -> str:
    return f"sha256:{hashlib.sha256(payload).hexdigest()}"
