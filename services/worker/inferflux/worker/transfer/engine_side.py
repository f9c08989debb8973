"""The engine and its requests, as transfers of KV state see them."""

from __future__ import annotations

from typing import Protocol

from inferflux.v1 import engine_pb2


class EngineSide(Protocol):
    """Interface of a model to the transfers of its state."""

    @property
    def digest(self) -> str:
        """Digest of the model's file."""
        ...

    def key_of(self, tenant: str, request_id: str) -> str:
        """Key of a request."""
        ...

    def epoch_of(self, key: str) -> int:
        """Epoch of the request that is resident; 0: none is."""
        ...

    def has_finished(self, key: str, epoch: int) -> bool:
        """True if that epoch of the request has ended here lately."""
        ...

    def traceparent_of(self, key: str) -> str:
        """Trace context of the request that is resident; empty: there is none."""
        ...

    def send(self, command: engine_pb2.EngineCommand) -> None:
        """Tell the engine; without one it is lost."""
        ...
