"""Serving certificates come and go without a gap, and so do the authorities that an installation brings."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from controller.admission import pki
from controller.admission.pki import Material, authority_is_due, signed, with_new_authority

DAY = 86400.0
NOW = 1_800_000_000.0
NAMES = frozenset({"dra-driver-admission.dra-driver.svc", "10.0.0.7"})


def fresh(now: float = NOW) -> Material:
    made = signed(with_new_authority(None, now), NAMES, now)
    assert made is not None
    return made


def accepted(bundle: bytes, material: Material, now: float) -> None:
    """As an API server that trusts ``bundle`` would check what a replica serves."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    time = datetime.datetime.fromtimestamp(now, datetime.UTC)
    verifier = PolicyBuilder().store(store).time(time)
    name = x509.DNSName("dra-driver-admission.dra-driver.svc")
    verifier.build_server_verifier(name).verify(material.certificate, [])


def test_a_new_one_is_good_at_once() -> None:
    made = fresh()
    accepted(made.bundle, made, NOW)
    assert made.names == NAMES
    assert signed(made, NAMES, NOW) is None
    assert Material.from_secret(made.to_secret()) == made
    assert made.ends == pytest.approx(NOW + 90 * DAY, abs=1)
    assert made.authority_ends == pytest.approx(NOW + 3650 * DAY, abs=1)


@pytest.mark.long
def test_years_go_by_without_a_gap() -> None:
    """Three views move on at different times: the configuration, the Secret, and what a replica serves.

    An installation writes authorities, into the configuration first; the controller the serving certificate.
    """
    now, secret = NOW, fresh()
    bundle, served, coming = secret.bundle, secret, None
    leaves, authorities = {secret.leaf}, {secret.authorities[0]}
    while now < NOW + 24 * 365 * DAY:
        accepted(bundle, served, now)
        if secret.leaf != served.leaf:
            accepted(bundle, secret, now)
        served = secret  # a replica is one step behind
        if coming is not None:
            secret, coming = (
                Material(coming.authorities, coming.authority_key, secret.leaf, secret.leaf_key),
                None,
            )
            authorities.add(secret.authorities[0])
        elif authority_is_due(secret, now):
            coming = with_new_authority(secret, now)
            bundle = coming.bundle
        due = signed(secret, NAMES, now)
        if due is not None:
            assert due.authorities == secret.authorities  # those are not the controller's to change
            secret = due
            leaves.add(secret.leaf)
        assert len(secret.authorities) <= 3
        rolling = coming is not None or due is not None or secret.issuer != secret.authorities[0]
        now += 200 if rolling else 5 * DAY
    assert len(leaves) > 100
    assert len(authorities) >= 3


def test_the_old_authority_is_trusted_until_the_new_one_can_be_known_everywhere() -> None:
    old = fresh()
    later = NOW + 10 * DAY
    both = with_new_authority(old, later)
    assert both.authorities[1] == old.authorities[0]
    assert both.leaf == old.leaf
    accepted(both.bundle, both, later)
    assert signed(both, NAMES, later + 500) is None
    rolled = signed(both, NAMES, later + 700)
    assert rolled is not None
    assert rolled.issuer == both.authorities[0]
    assert rolled.authorities == both.authorities
    assert signed(rolled, NAMES, later + 700) is None


def test_what_no_authority_has_signed_is_made_anew_at_once() -> None:
    """As after a rollback of a release, or after everything was renewed."""
    other = with_new_authority(None, NOW)
    mixed = Material(other.authorities, other.authority_key, fresh().leaf, fresh().leaf_key)
    torn = Material(other.authorities, other.authority_key, fresh().leaf, fresh().leaf_key).to_secret()
    for data in (mixed.to_secret(), torn):
        read = Material.from_secret(data)
        assert read is not None
        made = signed(read, NAMES, NOW)
        assert made is not None
        accepted(other.bundle, made, NOW)


def test_after_a_long_absence_the_certificate_is_made_anew() -> None:
    old = fresh()
    late = signed(old, NAMES, NOW + 100 * DAY)
    assert late is not None
    accepted(old.bundle, late, NOW + 100 * DAY)


def test_an_authority_that_has_expired_signs_nothing_and_is_told() -> None:
    old = fresh()
    assert signed(old, NAMES, NOW + 3651 * DAY) is None
    assert not authority_is_due(old, NOW + 3000 * DAY)
    assert authority_is_due(old, NOW + 3290 * DAY)
    assert authority_is_due(None, NOW)


def test_the_last_certificate_of_an_authority_is_not_made_again_and_again() -> None:
    old = fresh()
    end = NOW + 3650 * DAY
    last = signed(old, NAMES, end - 20 * DAY)
    assert last is not None
    assert last.ends == pytest.approx(end, abs=1)
    assert signed(last, NAMES, end - 19 * DAY) is None


def test_another_address_means_another_certificate() -> None:
    old = fresh()
    new = signed(old, {"other.example"}, NOW + 1)
    assert new is not None
    assert new.names == {"other.example"}
    assert new.authorities == old.authorities


def test_a_finished_certificate_of_another_maker_is_served_and_never_replaced() -> None:
    """As cert-manager writes it: the authority's key is elsewhere."""
    data = fresh().to_secret()
    del data["ca.key"]
    read = Material.from_secret(data)
    assert read is not None
    assert read.leaf == fresh().leaf or read.leaf
    assert read.authority_ends == 0
    assert signed(read, {"other.example"}, NOW + 89 * DAY) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.clear(),
        lambda d: d.update({"ca.key": "", "tls.key": ""}),
        lambda d: d.update({"ca.crt": "%%%", "tls.crt": "aGVsbG8="}),
        lambda d: d.update({"ca.crt": fresh().to_secret()["ca.crt"], "tls.key": d["ca.key"]}),
    ],
)
def test_a_damaged_secret_is_no_material(change: Callable[[dict[str, str]], object]) -> None:
    data = fresh().to_secret()
    change(data)
    assert Material.from_secret(data) is None


@pytest.mark.parametrize("key", ["tls.crt", "tls.key"])
@pytest.mark.parametrize("value", ["", "%%%", "aGVsbG8="])
def test_a_damaged_certificate_is_made_anew(key: str, value: str) -> None:
    read = Material.from_secret(fresh().to_secret() | {key: value})
    assert read is not None
    assert not read.leaf
    assert signed(read, NAMES, NOW) is not None


def test_the_secret_of_the_version_before_is_good_and_its_authority_due() -> None:
    """Its controller made authorities of a year: the next installation brings another beside."""
    before = fresh(NOW - 3400 * DAY)  # ends in 250 days, as one of a year would
    read = Material.from_secret(before.to_secret())
    assert read is not None
    assert authority_is_due(read, NOW)
    made = signed(read, NAMES, NOW)
    assert made is not None
    accepted(before.bundle, made, NOW)


def test_keys_do_not_show_in_logs() -> None:
    assert "PRIVATE" not in repr(fresh())
    assert pki.SETTLE < pki.LEAF_RENEW < pki.CA_RENEW
