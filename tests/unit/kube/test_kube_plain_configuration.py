"""Service accounts and plain kubeconfigs are read without the ``kubernetes`` package, nothing else is."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.kube.http import config, plain


def content(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current-context": "b",
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other"}},
            {"name": "c", "cluster": {"server": "https://[::1]:6443", **(cluster or {})}},
        ],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
    }


def authorization(configuration: plain.PlainConfiguration) -> str | None:
    return asyncio.run(configuration.get_api_key_with_prefix("BearerToken"))


def test_the_current_context_is_read(tmp_path: Path) -> None:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    cluster = {"certificate-authority-data": authority, "tls-server-name": "kubernetes"}
    found = plain.from_file(tmp_path / "config", content(cluster, {"token": "secret\n"}))
    assert found is not None
    assert (found.host, found.tls_server_name, found.verify_ssl) == ("https://[::1]:6443", "kubernetes", True)
    assert found.ca_cert_data == "-----BEGIN CERTIFICATE-----"
    assert authorization(found) == "Bearer secret"


def test_paths_are_relative_to_the_file_and_certificates_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "cert").write_bytes(b"CERT")
    key = base64.b64encode(b"KEY").decode()
    user = {"client-certificate": "cert", "client-key-data": key}
    (tmp_path / "ca").touch()
    found = plain.from_file(tmp_path / "config", content({"certificate-authority": "ca"}, user))
    assert found is not None
    assert found.ssl_ca_cert == str(tmp_path / "ca")
    with found.certificate_files():
        paths = [Path(str(found.cert_file)), Path(str(found.key_file))]
        assert [p.read_bytes() for p in paths] == [b"CERT", b"KEY"]
        assert {p.stat().st_mode & 0o777 for p in paths} == {0o600}
    assert not paths[0].parent.exists()


def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    times = [0.0]
    found = plain.PlainConfiguration("https://kubernetes:6443", clock=lambda: times[-1])
    found.token_file = tmp_path / "token"
    found.read_token()
    assert authorization(found) == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert authorization(found) == "Bearer one"
    times.append(61.0)
    assert authorization(found) == "Bearer two"
    (tmp_path / "token").unlink()  # being replaced
    times.append(122.0)
    assert authorization(found) == "Bearer two"


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"proxy-url": "http://proxy"}, {}),
        ({}, {"exec": {"command": "aws"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"username": "u", "password": "p"}),
        ({}, {"token": 5}),
        ({"certificate-authority": "absent"}, {}),
        ({}, {"client-certificate-data": "AAAA"}),
        ({"certificate-authority-data": "not base64!"}, {}),
        ({"server": "kubernetes:6443"}, {}),
    ],
)
def test_what_is_not_plain_is_left_to_the_library(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    assert plain.from_file(tmp_path / "config", content(cluster, user)) is None


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent: No such file"):
        plain.from_file(tmp_path / "config", content(user={"tokenFile": "absent"}))


@pytest.mark.parametrize(("context", "wanted"), [("", "team"), ("other", "default"), ("third", "default")])
def test_the_namespace_is_that_of_the_context(tmp_path: Path, context: str, wanted: str) -> None:
    contents = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [
            {"name": "mine", "context": {"cluster": "c", "user": "", "namespace": "team"}},
            {"name": "other", "context": {"cluster": "c", "user": ""}},
            {"name": "third", "context": {"cluster": "c", "user": "", "namespace": ["odd"]}},
        ],
        "current-context": "mine",
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(contents))
    assert asyncio.run(config.connect(path, context)).namespace == wanted


def test_the_namespace_of_a_pod_is_read(tmp_path: Path) -> None:
    assert plain.service_account_namespace(tmp_path) == "default"
    (tmp_path / "namespace").write_text("team\n")
    assert plain.service_account_namespace(tmp_path) == "team"


def test_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigurationError, match=r"ca\.crt: no such file"):
        plain.from_service_account(tmp_path)
    (tmp_path / "ca.crt").write_text("CA")
    with pytest.raises(ConfigurationError, match="token: No such file"):
        plain.from_service_account(tmp_path)
    (tmp_path / "token").write_text("t")
    found = plain.from_service_account(tmp_path)
    assert found.host == "https://[fd00::1]:443"
    assert authorization(found) == "Bearer t"


def test_the_library_is_not_imported_for_a_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content({"server": "http://127.0.0.1:9"})))
    script = (
        "import asyncio, sys; from pathlib import Path; from dra_driver.kube.http import config\n"
        f"c = asyncio.run(config.connect(Path({str(path)!r})))\n"
        "assert c.host == 'http://127.0.0.1:9', c.host\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'kubernetes']"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
