"""Spans of what the controller does, for OpenTelemetry; nothing at all unless ``--otlp-endpoint`` is given.

One trace for each key that a loop works on (a pod that is allocated for, a pool that is published), with a
span for each call to the API server in it. The packages are an extra (``pip install dra-driver[tracing]``);
headers, sampling and batching are set by OpenTelemetry's own variables (``OTEL_TRACES_SAMPLER`` …).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import structlog

import dra_driver
from dra_driver.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["span", "traced", "tracing"]

K = TypeVar("K")

log = structlog.get_logger(__name__)

_NOTHING = contextlib.nullcontext()
# Tasks inherit it, so each controller in a process (tests, the embedded cluster) has its own.
_current: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


def span(name: str, **attributes: str) -> contextlib.AbstractContextManager[object]:
    """Open a span of the work that goes on; an exception that leaves it is recorded."""
    tracer = _current.get()
    return _NOTHING if tracer is None else tracer.start_as_current_span(name, attributes=attributes)


def traced(name: str, work: Callable[[K], Awaitable[None]]) -> Callable[[K], Awaitable[None]]:
    """Return the same work, with a span around it that names the key."""

    async def wrapped(key: K) -> None:
        with span(name, **{"dra.key": str(key)}):
            await work(key)

    return wrapped


@contextlib.asynccontextmanager
async def tracing(endpoint: str) -> AsyncIterator[None]:
    """Collect spans while the block runs, and send what is left at its end.

    Args:
        endpoint: of a collector that speaks OTLP over HTTP, such as ``http://collector:4318``; empty: none.

    Raises:
        ConfigurationError: the packages are not installed.
    """
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise ConfigurationError(f"--otlp-endpoint: pip install 'dra-driver[tracing]' is needed: {e}") from e
    resource = Resource.create(
        {SERVICE_NAME: "dra-driver-controller", SERVICE_VERSION: dra_driver.__version__}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    token = _current.set(provider.get_tracer("dra-driver"))
    log.info("sending traces", endpoint=endpoint)
    try:
        yield
    finally:
        _current.reset(token)
        # It waits for a last answer of the collector.
        await asyncio.to_thread(provider.shutdown)
