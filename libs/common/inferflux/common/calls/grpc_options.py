"""Server options. What a client's channel has beside them is in `inferflux.api.channel_options`."""

from __future__ import annotations

from inferflux.api.channel_options import (
    CHANNEL_OPTIONS,
    MAX_RECEIVE_BYTES,
    MAX_WAITING_CALLS,
    PING_EVERY_MS,
    PING_TIMEOUT_MS,
    Option,
)

__all__ = ["CHANNEL_OPTIONS", "MAX_RECEIVE_BYTES", "SERVER_OPTIONS", "Option", "receive_limit"]

SERVER_OPTIONS: tuple[Option, ...] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients of ours ping every 11 s at the most often. On a busy machine two pings come close together.
    ("grpc.http2.min_ping_interval_without_data_ms", PING_EVERY_MS // 10),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this two processes could share a port without either noticing.
    ("grpc.so_reuseport", 0),
    # What a client may send before its call is read: 8 kB. With probing that grows to 4 MB, and 4,000 open
    # calls hold as many gigabytes. A message that is being read gets all the room it needs.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8 << 10),
    ("grpc.max_concurrent_streams", 1024),
    # Above this gRPC refuses calls at random. A token has up to 8,192 characters: all of gRPC's default.
    ("grpc.max_metadata_size", 12 << 10),
    # Calls that no handler has taken yet, of 16 to 34 kB each. gRPC drops one more as a bare CANCELLED: some
    # from the first number on, all from the second, and those that have waited for this many seconds. So a
    # burst waits here, and handlers refuse, with a reason.
    ("grpc.server.max_pending_requests", MAX_WAITING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_WAITING_CALLS),
    ("grpc.server_max_unrequested_time_in_server", 120),
    ("grpc.max_allowed_incoming_connections", 1024),
    # A connection that does not speak, and one without calls: strangers may hold all of them. A client's
    # channel connects again by itself when it calls next.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.http2.settings_timeout", 5_000),
    ("grpc.max_connection_idle_ms", 10_000),
)


def connection_age(seconds: float) -> Option:
    """Ask a client for a new connection when one is this old. Calls that run end on the old one."""
    return ("grpc.max_connection_age_ms", round(seconds * 1000))


def receive_limit(n_bytes: int) -> Option:
    """The largest message that gRPC takes in: it refuses a larger one by itself, before it has arrived."""
    return ("grpc.max_receive_message_length", n_bytes)
