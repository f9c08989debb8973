"""gRPC channels as every InferFlux client opens them.

A server ends a connection whose client pings more often than it allows (GOAWAY too_many_pings): the servers'
options follow from these.
"""

from __future__ import annotations

# Large enough for every prompt a gateway may be told to take.
MAX_RECEIVE_BYTES = 16 << 20

MAX_WAITING_CALLS = 8192
"""Calls that may wait at a server until it takes them. gRPC drops one more."""

PING_EVERY_MS = 30_000
PING_TIMEOUT_MS = 10_000

Option = tuple[str, int | str]

CHANNEL_OPTIONS: tuple[Option, ...] = (
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
