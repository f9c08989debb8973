"""gRPC channels as every InferFlux client opens them.

A server ends a connection whose client pings more often than it allows (GOAWAY too_many_pings): the servers'
options follow from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Large enough for every prompt a gateway may be told to take.
MAX_RECEIVE_BYTES = 16 << 20

MAX_WAITING_CALLS = 8192
"""Calls that may wait at a server until it takes them. gRPC drops one more."""

PING_EVERY_MS = 30_000
PING_TIMEOUT_MS = 10_000

USE_PROXY = "INFERFLUX_USE_PROXY"
"""Variable (1 or true) that has clients call gateways through the environment's proxy, as gRPC reads it."""

Option = tuple[str, int | str]

_PROXY = "grpc.enable_http_proxy"

CHANNEL_OPTIONS: tuple[Option, ...] = (
    # A proxy for web pages (http_proxy, grpc_proxy) reaches no service on this host or beside it.
    (_PROXY, 0),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server is found again within a second, not after the default's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    # In spite of its name also how long one attempt may take: a busy machine needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def with_proxy(options: Sequence[Option], env: Mapping[str, str]) -> tuple[Option, ...]:
    """Options of a client's channel, through a proxy where the environment `env` asks for that."""
    uses_proxy = env.get(USE_PROXY, "").lower() in ("1", "true", "yes", "on")
    return tuple({**dict(options), _PROXY: int(uses_proxy)}.items())
