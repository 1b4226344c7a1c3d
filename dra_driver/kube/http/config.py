"""Address and credentials of the API server: kubeconfig and in-cluster configuration.

This module picks the source. Service accounts and plain files are read by ``plain``; the ``kubernetes``
package does the rest (several files, exec plugins, OIDC, proxies): its many exceptions become one clear
``ConfigurationError``, and its credentials are kept fresh.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.kube.http import plain

__all__ = ["Connection", "connect"]

# A projected service account token is rewritten by the kubelet well before it expires; client-go re-reads it
# once a minute.
REFRESH_SECONDS = 60.0
DEFAULT_NAMESPACE = "default"


class Connection:
    """Address, TLS and credentials of one API server.

    Attributes:
        host: scheme, host and port, without a trailing slash.
        ssl_context: for https.
        server_name: TLS server name, where it is not the host's.
        proxy: proxy URL.
        namespace: of the context, or of the pod; ``default`` where it names none.
    """

    def __init__(
        self, configuration: Any, loader: Any, source: str, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._configuration = configuration
        self._loader = loader
        self._source = source
        self._refreshed = time.monotonic()
        self._lock = asyncio.Lock()
        self.host: str = configuration.host.rstrip("/")
        self.ssl_context = _ssl_context(configuration, source) if self.host.startswith("https") else None
        self.server_name: str | None = configuration.tls_server_name or None
        self.proxy: str | None = configuration.proxy or None
        self.namespace = namespace

    async def authorization(self, *, refresh: bool = False) -> str | None:
        """Return the value of the Authorization header, or None (client certificate, anonymous).

        Args:
            refresh: the server has just refused the credential: get a new one.
        """
        if refresh or time.monotonic() - self._refreshed > REFRESH_SECONDS:
            async with self._lock:
                await self._refresh(force=refresh)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if not token:
            return None
        # The token file may end with a newline, which aiohttp refuses in a header.
        return str(token).strip()

    async def _refresh(self, *, force: bool) -> None:
        self._refreshed = time.monotonic()
        loader = self._loader
        if loader is None:
            if force:
                self._configuration.read_token()
            return  # it reads its token file again by itself
        # An exec plugin that gives no expiry is run again only when its credential was refused.
        runs_exec = loader.provider is None and "exec" in (_user(loader) or {})
        if runs_exec and not force and not hasattr(loader, "exec_plugin_expiry"):
            return
        if runs_exec and force:
            loader.__dict__.pop("exec_plugin_expiry", None)
        try:
            await loader.load_and_set(self._configuration)
        except Exception as e:  # the library raises nearly anything here
            raise ConfigurationError(f"{self._source}: cannot refresh the credentials: {e}") from e


def _user(loader: Any) -> Mapping[str, Any] | None:
    user = loader._user
    value = user.value if hasattr(user, "value") else user
    return value if isinstance(value, dict) else None


def _ssl_context(configuration: Any, source: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert or None, cadata=configuration.ca_cert_data or None
        )
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file or None)
    except (OSError, ssl.SSLError) as e:
        raise ConfigurationError(f"{source}: cannot use its certificates: {e}") from e
    # Python 3.13 turned on checks that Go's TLS does not make; home-made cluster CAs fail them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def connect(kubeconfig: Path | None, context: str = "") -> Connection:
    """Find the API server: the file, the KUBECONFIG variable, the pod's service account, ~/.kube/config.

    Args:
        kubeconfig: a file; if None, the others are tried, in this order.
        context: of the kubeconfig; empty: its current one.

    Raises:
        ConfigurationError: none of them is there, or the one that is there cannot be used.
    """
    files = _files(kubeconfig)
    if files:
        return await _from_files(files, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return Connection(
            plain.from_service_account(), None, "in-cluster configuration", plain.service_account_namespace()
        )
    home = _home()
    if home.is_file():
        return await _from_files([home], context)
    raise ConfigurationError(
        f"no cluster: give --kubeconfig FILE or set KUBECONFIG; {home} does not exist (in a pod, its service "
        "account is used; this is none: KUBERNETES_SERVICE_HOST is not set)"
    )


def _home() -> Path:
    return Path("~/.kube/config").expanduser()


def _files(kubeconfig: Path | None) -> list[Path]:
    """Return the files to read; if there are none, the service account is used."""
    if kubeconfig is not None:
        return [kubeconfig.expanduser()]
    variable = os.environ.get("KUBECONFIG", "")
    paths = [Path(p).expanduser() for p in variable.split(os.pathsep) if p]
    there = [p for p in paths if p.exists()]
    if variable and not there:
        raise ConfigurationError(f"KUBECONFIG={variable}: no such file")
    return there


async def _from_files(paths: list[Path], context: str) -> Connection:
    source = "kubeconfig " + os.pathsep.join(str(p) for p in paths)
    contents = [_check_file(path) for path in paths]
    if context:
        _check_context(source, contents, context)
    namespace = _namespace(contents, context)
    if len(paths) == 1:
        chosen = {"current-context": context} if context else {}
        simple = plain.from_file(paths[0], {**contents[0], **chosen})
        if simple is not None:
            with simple.certificate_files():
                return Connection(simple, None, source, namespace)
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import load_kube_config

    configuration = type.__call__(Configuration)
    # Without this, a kubeconfig without a server would silently mean http://localhost.
    configuration.host = ""
    try:
        loader = await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(str(p) for p in paths),
            client_configuration=configuration,
            context=context or None,
            persist_config=False,
        )
    except Exception as e:  # the library raises ConfigException, KeyError, TypeError, ValueError, OSError …
        text = str(e) if not isinstance(e, KeyError) else f"missing {e}"
        raise ConfigurationError(f"{source}: {text or type(e).__name__}") from e
    if not configuration.host:
        raise ConfigurationError(f"{source}: the cluster of the current context has no server")
    if not configuration.host.startswith(("http://", "https://")):
        raise ConfigurationError(f"{source}: server {configuration.host!r} is not an http or https address")
    user = _user(loader) or {}
    if "exec" in user and not configuration.api_key and not configuration.cert_file:
        command = (user["exec"] or {}).get("command", "?")
        raise ConfigurationError(f"{source}: the exec plugin {command} gave no credential")
    return Connection(configuration, loader, source, namespace)


def _check_context(source: str, contents: list[Mapping[str, Any]], context: str) -> None:
    entries = [e for content in contents for e in content["contexts"] if isinstance(e, dict)]
    names = sorted({str(e.get("name")) for e in entries})
    if context not in names:
        raise ConfigurationError(f"{source}: no context {context!r}; there are {', '.join(names)}")


def _namespace(contents: list[Mapping[str, Any]], context: str) -> str:
    """Return the namespace of a context; of files that name the same one, the first counts."""
    name = context or contents[0]["current-context"]
    entries = (e for content in contents for e in content["contexts"] if isinstance(e, dict))
    found = next((e.get("context") for e in entries if e.get("name") == name), None)
    namespace = found.get("namespace") if isinstance(found, dict) else None
    return namespace if isinstance(namespace, str) and namespace else DEFAULT_NAMESPACE


def _check_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"kubeconfig {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        raise ConfigurationError(f"kubeconfig {path}: {reason}") from e
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigurationError(
            f"kubeconfig {path}: not YAML{where}: {getattr(e, 'problem', None) or e}"
        ) from e
    if not isinstance(content, dict):
        found = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigurationError(
            f"kubeconfig {path}: {found}, expected a mapping with clusters, users, contexts"
        )
    missing = [k for k in ("clusters", "contexts", "current-context") if not content.get(k)]
    if missing:
        raise ConfigurationError(f"kubeconfig {path}: {', '.join(missing)} missing or empty")
    return content
