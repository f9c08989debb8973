"""gRPC channels as every InferFlux client opens them."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio

from inferflux.common.grpc_metadata import outgoing
from inferflux.common.grpc_options import CHANNEL_OPTIONS, Option

__all__ = ["channel", "outgoing"]


def channel(address: str, *, options: Sequence[Option] = ()) -> grpc.aio.Channel:
    """An insecure channel to host:port, with keepalive that our servers accept and quick reconnects."""
    return grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options])
