"""Logging: one sentence for people, fields for machines, on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from inferflux.common.contract.callers.api_key import without_secrets


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Have imports of a package fail as if it were not installed."""
    before = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        if before is not None:
            sys.modules[package] = before


# structlog loads rich where it is installed, for tracebacks that no service prints: a tenth of the CPU time
# that a service takes to start.
with _hidden("rich"):
    import structlog

get = structlog.get_logger


class _LossyStream:
    """A stream that drops what cannot be written: a full disk under the log ends no request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(service: str, level: str = "info", fmt: str = "console") -> None:
    """Set logging up for this process: ours and that of libraries, in one format.

    Args:
        service: bound to every line as `service`.
        level: debug, info, warning or error. Libraries log from warning up.
        fmt: console for people, json for machines.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True)
        if fmt == "json"
        else structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
        _add_service(service),
    ]
    if fmt == "json":
        ending: list[structlog.typing.Processor] = [
            # No locals: among them are API keys and prompts.
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        ending = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=40
            )
        ]
    ending.append(_hide_secrets)
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    _adopt_library_logs(shared, ending)


def bind_request(**fields: Any) -> None:
    """Add fields (request_id, tenant, ...) to every line this task logs from here on."""
    structlog.contextvars.bind_contextvars(**fields)


def of_request(request_id: str, tenant: str = "", trace_id: str = "") -> dict[str, str]:
    """The fields of a line about one request, for a task that serves many: those that are not empty."""
    fields = {"request_id": request_id, "tenant": tenant, "trace_id": trace_id}
    return {name: value for name, value in fields.items() if value}


def _add_service(service: str) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("service", service)
        return event

    return add


def _hide_secrets(_logger: Any, _method: str, line: Any) -> str:
    return without_secrets(line)


def _adopt_library_logs(
    shared: list[structlog.typing.Processor], ending: list[structlog.typing.Processor]
) -> None:
    handler = logging.StreamHandler(_LossyStream(sys.stderr))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def clear_request() -> None:
    """Forget what `bind_request` added in this context."""
    structlog.contextvars.clear_contextvars()
