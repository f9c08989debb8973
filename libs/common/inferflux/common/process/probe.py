"""The HTTP port of a process: /metrics, /livez, /readyz and /healthz, served from a thread of its own.

A thread answers even while the event loop is busy, so that a long step never looks like a dead process.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from inferflux.common.contract.address import split
from inferflux.common.contract.errors import Unavailable

# Connections at the same time.
_MAX_CONNECTIONS = 32
# Between two bytes of a client.
_PATIENCE_S = 10
_JSON = "application/json"

# Reasons of more than one kind of service.
NO_MODEL = "no model backend loaded"
DRAINING = "draining"

_Request = socket.socket | tuple[bytes, socket.socket]


class Probe:
    """Serves metrics and readiness.

    Ready means: at least one condition was named with `set_ready`, and all named ones hold. Degraded means:
    not ready, or something is wrong that `set_warning` named and that leaves it ready.

    Args:
        listen: host:port; port 0 takes a free one.
        role: of the process; each answer about its health names it.
        variable: the setting `listen` came from, for the message when the port is taken.

    Raises:
        Unavailable: the address cannot be bound.
    """

    def __init__(
        self,
        listen: str,
        *,
        role: str,
        variable: str = "INFERFLUX_METRICS_LISTEN",
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.role = role
        self._conditions: dict[str, tuple[bool, str]] = {}
        # In short: of conditions that do not hold, and of warnings.
        self._said: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._warnings: dict[str, str] = {}
        self._registry = registry
        host, port = split(listen, variable)
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            message = f"cannot listen on {listen} ({variable}): {error.strerror or error}"
            raise Unavailable(message, reason="ADDRESS_UNAVAILABLE", retry_delay_s=None) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="probe", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def is_ready(self) -> bool:
        return self.are_met()

    @property
    def missing(self) -> str:
        """The conditions that do not hold, each with its detail and why; "" if all do. Not for strangers."""
        return self._missing(self._reasons.copy())

    def _missing(self, reasons: Mapping[str, str]) -> str:
        conditions = self._conditions.copy()
        unmet = ((name, detail, reasons.get(name)) for name, (ok, detail) in conditions.items() if not ok)
        return "; ".join(f"{name}: {detail}{f': {why}' if why else ''}" for name, detail, why in unmet)

    def set_ready(self, name: str, ok: bool, detail: str = "", *, why: str = "", reason: str = "") -> None:
        """Name a condition of readiness, or change it.

        Args:
            detail: what is missing, for all who ask.
            why: for `missing` alone: it may have paths and addresses.
            reason: what the answer of /readyz says of it in short; "": its name and the detail.
        """
        self._reasons[name] = why
        self._said[name] = reason or _named(name, detail)
        self._conditions[name] = (ok, detail)

    def set_warning(self, name: str, detail: str, *, reason: str = "") -> None:
        """Name what is wrong although the process may be ready; "" when it is wrong no more.

        Args:
            reason: what the answer of /readyz says of it in short; "": its name and the detail.
        """
        self._said[f"warning {name}"] = reason or _named(name, detail)
        self._warnings[name] = detail

    def are_met(self, *, but: Collection[str] = ()) -> bool:
        """True if every condition holds, without those in `but`."""
        conditions = self._conditions.copy()
        return bool(conditions) and all(ok for name, (ok, _) in conditions.items() if name not in but)

    @property
    def degraded(self) -> str:
        """Problems of the process, whether or not they keep it from being ready; "" without one."""
        warnings = self._warnings.copy()
        wrong = [self._missing({}), *(f"{name}: {detail}" for name, detail in warnings.items() if detail)]
        if not self._conditions:
            wrong.append("starting")
        return "; ".join(filter(None, wrong))

    @property
    def n_connections(self) -> int:
        """Connections that are being served now."""
        return self._server.n_connections

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)

    def answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for a GET."""
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return HTTPStatus.OK, content_type, encode(self._registry)
        if path == "/livez":
            return HTTPStatus.OK, _JSON, self._body("ok", "")
        if path == "/readyz":
            return self._readiness()
        if path == "/healthz":
            reason = self.degraded
            return HTTPStatus.OK, _JSON, self._body("degraded" if reason else "ok", reason)
        paths = b"paths: /metrics /livez /readyz /healthz\n"
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", paths

    def _readiness(self) -> tuple[HTTPStatus, str, bytes]:
        conditions, warnings = self._conditions.copy(), self._warnings.copy()
        not_met = [name for name, (ok, _) in conditions.items() if not ok]
        warned = [f"warning {name}" for name, detail in warnings.items() if detail]
        is_ready = bool(conditions) and not not_met
        reasons = dict.fromkeys(self._said[name] for name in (warned if is_ready else not_met))
        body = self._body(
            ("degraded" if reasons else "ok") if is_ready else "not_ready",
            "; ".join(reasons) if conditions else "starting",
            ready=is_ready,
            not_met=not_met,
            conditions={name: {"ok": ok, "detail": detail} for name, (ok, detail) in conditions.items()},
        )
        return HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, _JSON, body

    def _body(self, status: str, reason: str, **more: object) -> bytes:
        return json.dumps({"status": status, "role": self.role, "reason": reason, **more}).encode() + b"\n"


def _named(name: str, detail: str) -> str:
    return f"{name}: {detail}" if detail else name


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and a bounded number of them: a new connection ends the oldest.

    An honest one lasts for milliseconds, so a client that holds connections open keeps no other client out.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], probe: Probe) -> None:
        self.probe = probe
        # Connections being served, oldest first.
        self._served: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    @property
    def n_connections(self) -> int:
        return len(self._served)

    def process_request(self, request: _Request, client_address: Any) -> None:
        connection = cast("socket.socket", request)
        with self._lock:
            for oldest in list(self._served)[: len(self._served) + 1 - _MAX_CONNECTIONS]:
                del self._served[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
            self._served[connection] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        with self._lock:
            self._served.pop(cast("socket.socket", request), None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        # Not HTTPServer's: it looks the host's name up, which may block on DNS.
        # SO_REUSEADDR gives a restarted process its port back; it lets no two listen on one.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        status, content_type, body = self.server.probe.answer(path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Probes are frequent: no line each."""
