"""Traces: spans of OpenTelemetry where it is configured; `traceparent` is passed on in any case.

Spans never hold secrets, query strings, filters or values of rows, and of an error only its class. If tracing is off,
a span costs one comparison, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables that say where spans go; they and all other `OTEL_…` are those of OpenTelemetry."""
EXPORTER = "OTEL_TRACES_EXPORTER"
FLUSH_MS = 3000
"""Most milliseconds for which a task of a cluster waits until its spans are sent."""

_VALID = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_PRINTABLE = re.compile(r"[ -~]{1,512}")
_NOTHING: AbstractContextManager[Any] = nullcontext()

is_exporting = False
"""Whether `configure` has set up traces in this process; for code that is too quick for a span that does nothing."""
_tracer: Any = None
_caller_headers: ContextVar[Mapping[str, str] | None] = ContextVar("caller_trace", default=None)
"""Trace headers of the request that is being answered; our own requests repeat them if tracing is off."""


# Configuration


def configure(service: str) -> bool:
    """Export the spans of this process, if OpenTelemetry's variables say where; return whether it does.

    Args:
        service: name of the service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says another.
    """
    global _tracer, is_exporting
    if is_exporting:
        return True
    kind = os.environ.get(EXPORTER, "otlp" if any(map(os.environ.get, ENDPOINTS)) else "none").lower()
    if kind == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        logger.warning("OTEL_… variables ask for traces, which need pip install 'lancehouse[telemetry]'")
        return False
    if (tracer := _find_tracer()) is None:
        tracer = _create_provider(service, kind).get_tracer("lancehouse", version("lancehouse"))
    _tracer = tracer
    is_exporting = True
    return True


def _create_provider(service: str, kind: str) -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if is_named else {"service.name": service}))
    if kind == "console":
        exporter: Any = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _find_tracer() -> Any:
    """Return a tracer of the provider that the program around us has set up; None if it has none."""
    global _tracer
    if _tracer is None and (api := sys.modules.get("opentelemetry.trace")) is not None:
        provider = api.get_tracer_provider()
        if not isinstance(provider, api.ProxyTracerProvider):
            _tracer = provider.get_tracer("lancehouse", version("lancehouse"))
    return _tracer


# Spans


def span(name: str, attributes: Mapping[str, Any] | None = None, kind: str = "INTERNAL") -> AbstractContextManager[Any]:
    """Return a span of the block, the child of the one around it; a context that does nothing if tracing is off."""
    tracer = _tracer or _find_tracer()
    return _NOTHING if tracer is None else _open_span(tracer, name, attributes, kind)


@contextmanager
def _open_span(tracer: Any, name: str, attributes: Mapping[str, Any] | None, kind: str) -> Iterator[Any]:
    from opentelemetry.trace import SpanKind, Status, StatusCode

    span_context = tracer.start_as_current_span(
        name, kind=SpanKind[kind], attributes=attributes, record_exception=False, set_status_on_exception=False
    )
    with span_context as current:
        try:
            yield current
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def trace_calls(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Open a span around each call of a function."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with span(name):
                return function(*args, **kwargs)

        return call

    return decorate


def add_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return header fields of a request together with those of the current trace, if there is one."""
    if (_tracer or _find_tracer()) is not None:
        from opentelemetry.trace import get_current_span

        current = get_current_span().get_span_context()
        if current.is_valid:
            parent = f"00-{current.trace_id:032x}-{current.span_id:016x}-{int(current.trace_flags):02x}"
            state = current.trace_state.to_header() if current.trace_state else ""
            return {**headers, TRACEPARENT: parent, **({TRACESTATE: state} if state else {})}
    trace_headers = _caller_headers.get()
    return headers if trace_headers is None else {**headers, **trace_headers}


def find_trace_id(headers: Mapping[str, str]) -> str | None:
    """Return the trace that the sender of a request belongs to, by its header fields."""
    match = _VALID.fullmatch(headers.get(TRACEPARENT, ""))
    return match[1] if match else None


def _valid_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if find_trace_id(headers) is None:
        return {}
    state = headers.get(TRACESTATE, "")
    return {TRACEPARENT: headers[TRACEPARENT], **({TRACESTATE: state} if _PRINTABLE.fullmatch(state) else {})}


@contextmanager
def pass_on(headers: Mapping[str, str]) -> Iterator[None]:
    """Let requests in the block repeat the trace headers of a request to us, if tracing is off in this process."""
    token = _caller_headers.set(_valid_headers(headers) or None)
    try:
        yield
    finally:
        _caller_headers.reset(token)


class RequestSpan:
    """The span of a request that a server answers, which threads and the event loop share."""

    def __init__(self, headers: Mapping[str, str], method: str) -> None:
        """Begin it, as a child of the sender's span if the header fields name one."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(_valid_headers(headers))
        self._span = _tracer.start_span(method, parent, trace.SpanKind.SERVER)

    @property
    def trace_id(self) -> str:
        """The trace that it belongs to."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def activate(self) -> AbstractContextManager[Any]:
        """Make it the current span of the block."""
        from opentelemetry import trace

        active: AbstractContextManager[Any] = trace.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        return active

    def end(self, name: str, status: int, attributes: Mapping[str, Any]) -> None:
        """End it, with its name and what is known by then."""
        from opentelemetry.trace import Status, StatusCode

        self._span.update_name(name)
        self._span.set_attributes({**attributes, "http.response.status_code": status})
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


# Jobs


def carry() -> Mapping[str, str] | None:
    """Return the current trace, for tasks in other processes; None if there is none."""
    return add_headers({}) or None


@contextmanager
def task_span(carried: Mapping[str, str] | None, name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Open a span in a task of another process, the child of what it carried; send it before the task ends."""
    if carried is None:
        yield
        return
    if not configure("lancehouse-task"):
        with pass_on(carried):
            yield
        return
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(carried))
    try:
        with span(name, attributes):
            yield
    finally:
        context.detach(token)
        # Workers of Spark may be ended at any time after a task.
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(FLUSH_MS)


def name_work(work: Callable[..., object]) -> str:
    """Return what the pieces of a job do, for the name of its span."""
    name = getattr(work, "__name__", None) or type(work).__name__
    return "pieces" if name == "<lambda>" else str(name)
