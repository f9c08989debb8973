"""gRPC channels as every InferFlux client opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc.aio

from inferflux.common.process.tls import ClientTls, Reloaded

from .grpc_metadata import outgoing
from .grpc_options import CHANNEL_OPTIONS, Option
from .grpc_tls import channel_credentials

__all__ = ["channel", "outgoing", "renewed_channel"]

# What runs on a channel whose certificates were renewed gets this long to end.
_OLD_CHANNEL_S = 60.0


def channel(
    address: str,
    *,
    options: Sequence[Option] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """A channel to host:port, with keepalive that our servers accept and quick reconnects.

    Args:
        credentials: of TLS; None: plain text.
    """
    all_options = list({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=all_options)
    return grpc.aio.secure_channel(address, credentials, options=all_options)


def renewed_channel(address: str, tls: ClientTls, *, options: Sequence[Option] = ()) -> grpc.aio.Channel:
    """The same over TLS, for unary calls. Calls use the files of `tls` as they are when they are made."""

    def open_channel(credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
        return channel(address, options=options, credentials=credentials)

    # It has of a channel what callers of unary methods use.
    return cast("grpc.aio.Channel", _RenewedChannel(open_channel, channel_credentials(tls)))


class _RenewedChannel:
    """A channel that is opened again when its certificates were renewed."""

    def __init__(
        self,
        open_channel: Callable[[grpc.ChannelCredentials], grpc.aio.Channel],
        credentials: Reloaded[grpc.ChannelCredentials],
    ) -> None:
        self._open = open_channel
        self._credentials = credentials
        self._used = credentials.current()
        self._channel = open_channel(self._used)
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        """A method, called on the channel of the moment."""
        of = self._channel
        method = of.unary_unary(*arguments, **named)

        def call(request: Any, **options: Any) -> Any:
            nonlocal of, method
            now = self._current()
            if now is not of:
                of, method = now, now.unary_unary(*arguments, **named)
            return method(request, **options)

        return call

    def _refused(self, *_arguments: Any, **_named: Any) -> Callable[..., Any]:
        """Stubs make every method of their service, also those that are not called."""

        def call(*_: Any, **__: Any) -> Any:
            raise NotImplementedError("this channel has unary calls alone")

        return call

    unary_stream = stream_unary = stream_stream = _refused

    async def close(self, grace: float | None = None) -> None:
        for task in self._closing:
            task.cancel()
        await self._channel.close(grace)

    def _current(self) -> grpc.aio.Channel:
        credentials = self._credentials.current()
        if credentials is not self._used:
            old, self._used = self._channel, credentials
            self._channel = self._open(credentials)
            closing = asyncio.get_running_loop().create_task(old.close(_OLD_CHANNEL_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return self._channel
