"""Calls InferFlux from Python.

`Client` blocks, `AsyncClient` is for asyncio. Their streams outlive a lost connection. `TokenReader`, in
`inferflux.client.token_reader`, reads token streams from NATS.
"""

from __future__ import annotations

from inferflux.api.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InferFluxError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from inferflux.api.tls import Tls

from .async_client import AsyncClient
from .async_stream import AsyncStream
from .client import Client
from .requests import Messages, Options, Prompt
from .stream import Stream

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "InferFluxError",
    "Internal",
    "InvalidArgument",
    "Messages",
    "NotFound",
    "Options",
    "PermissionDenied",
    "Prompt",
    "ResourceExhausted",
    "Stream",
    "Tls",
    "Unauthenticated",
    "Unavailable",
]
