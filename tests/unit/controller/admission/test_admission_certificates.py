"""Authorities and serving certificates come and go without a gap."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from controller.admission import pki
from controller.admission.pki import Material, renewed

DAY = 86400.0
NOW = 1_800_000_000.0
NAMES = frozenset({"dra-driver-admission.dra-driver.svc", "10.0.0.7"})


def fresh(now: float = NOW) -> Material:
    made = renewed(None, NAMES, now, trusted=False)
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
    assert renewed(made, NAMES, NOW, trusted=False) is None
    assert Material.from_secret(made.to_secret()) == made
    assert made.ends == pytest.approx(NOW + 90 * DAY, abs=1)


@pytest.mark.long
def test_years_go_by_without_a_gap() -> None:
    """Three views move on at different times: the Secret, the configuration, and what a replica serves."""
    now, secret = NOW, fresh()
    bundle, bundle_since, served = secret.bundle, NOW, secret
    leaves, authorities = {secret.leaf}, {secret.authorities[0]}
    while now < NOW + 4 * 365 * DAY:
        accepted(bundle, served, now)
        if secret != served:
            accepted(bundle, secret, now)
        trusted = bundle == secret.bundle and now - bundle_since >= 60
        due = renewed(secret, NAMES, now, trusted=trusted)
        served = secret  # a replica is one step behind
        if bundle != secret.bundle:
            bundle, bundle_since = secret.bundle, now
        if due is not None:
            secret = due
            leaves.add(secret.leaf)
            authorities.add(secret.authorities[0])
            assert len(secret.authorities) <= 3
        rolling = due is not None or secret.issuer != secret.authorities[0]
        now += 200 if rolling else DAY
    assert len(leaves) > 20
    assert len(authorities) >= 5


def test_the_old_authority_signs_on_until_the_new_one_is_trusted() -> None:
    old = fresh()
    later = NOW + 250 * DAY
    leaf = renewed(old, NAMES, NOW + 200 * DAY, trusted=True)
    assert leaf is not None
    both = renewed(leaf, NAMES, later, trusted=False)
    assert both is not None
    assert both.authorities[1] == old.authorities[0]
    assert both.leaf == leaf.leaf
    settled = later + 700
    assert renewed(both, NAMES, settled, trusted=False) is None
    assert renewed(both, NAMES, later + 300, trusted=True) is None
    rolled = renewed(both, NAMES, settled, trusted=True)
    assert rolled is not None
    assert rolled.issuer == both.authorities[0]
    assert rolled.authorities == both.authorities
    assert renewed(rolled, NAMES, settled, trusted=True) is None


def test_after_a_long_absence_everything_is_new() -> None:
    old = fresh()
    late = renewed(old, NAMES, NOW + 100 * DAY, trusted=True)  # the certificate alone has expired
    assert late is not None
    assert late.authorities == old.authorities
    accepted(late.bundle, late, NOW + 100 * DAY)
    later = renewed(old, NAMES, NOW + 400 * DAY, trusted=False)
    assert later is not None
    assert set(later.authorities).isdisjoint(old.authorities)
    accepted(later.bundle, later, NOW + 400 * DAY)


def test_another_address_means_another_certificate() -> None:
    old = fresh()
    new = renewed(old, {"other.example"}, NOW + 1, trusted=False)
    assert new is not None
    assert new.names == {"other.example"}
    assert new.authorities == old.authorities


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.clear(),
        lambda d: d.pop("ca.key"),
        lambda d: d.update({"tls.crt": "%%%"}),
        lambda d: d.update({"tls.crt": "aGVsbG8="}),
        lambda d: d.update({"tls.key": d["ca.key"]}),
        lambda d: d.update({"ca.crt": fresh().to_secret()["ca.crt"]}),
        lambda d: d.update({"ca.crt": ""}),
    ],
)
def test_a_damaged_secret_is_no_material(change: Callable[[dict[str, str]], object]) -> None:
    data = fresh().to_secret()
    change(data)
    assert Material.from_secret(data) is None


def test_keys_do_not_show_in_logs() -> None:
    assert "PRIVATE" not in repr(fresh())
    assert pki.SETTLE < pki.LEAF_RENEW < pki.CA_RENEW
