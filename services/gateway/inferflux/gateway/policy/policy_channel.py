"""Channels to policy: to one process, or in turn to all that there are."""

from __future__ import annotations

import json

import grpc.aio

from inferflux.api.channel_options import PING_EVERY_MS
from inferflux.common.calls import grpc_client
from inferflux.common.calls.grpc_options import Option
from inferflux.common.process.setting_kinds import listed
from inferflux.common.process.tls import ClientTls, TlsFiles

# A connection on which a ping is not answered for this long is given up.
_SILENCE_MS = 2_000
# Each call goes to the next one of those that can be connected to. One that stands still is noticed soon: a
# share of all calls waits for it. Servers allow a ping every 3 s.
_OPTIONS: tuple[Option, ...] = (
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    ("grpc.keepalive_time_ms", PING_EVERY_MS // 3 + 1000),
    ("grpc.keepalive_timeout_ms", _SILENCE_MS),
    ("grpc.http2.ping_timeout_ms", _SILENCE_MS),
)


def open_each(policy_address: str) -> dict[str, grpc.aio.Channel]:
    """By address, a channel to each process that is listed; none where one name stands for all."""
    addresses = listed(policy_address)
    return {each: grpc_client.channel(each) for each in addresses} if len(addresses) > 1 else {}


def open_policy_channel(policy_address: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    """A channel to all processes of policy: those that are listed, or those whose addresses a name has.

    Args:
        tls: None: plain text. Else there is one name.
    """
    addresses = listed(policy_address)
    if tls is not None:
        return grpc_client.renewed_channel(policy_address, ClientTls(tls), options=_OPTIONS)
    target = addresses[0] if len(addresses) == 1 else f"ipv4:{','.join(addresses)}"
    return grpc_client.channel(target, options=_OPTIONS)
