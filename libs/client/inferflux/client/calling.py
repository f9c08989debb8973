"""The calls of one request, at whichever gateway answers: the same for both clients."""

from __future__ import annotations

import time
from typing import Any, Generic, Protocol, TypeVar

from inferflux.v1 import inference_pb2, inference_pb2_grpc

from .following import Following, Step
from .gateways import Connected, Gateways
from .requests import Request

Metadata = tuple[tuple[str, str], ...]


class WithInference(Connected, Protocol):
    @property
    def inference(self) -> inference_pb2_grpc.InferenceServiceStub: ...


_G = TypeVar("_G", bound=WithInference)


class RequestCalls(Generic[_G]):
    """Makes the calls that a `Following` asks for.

    Args:
        request: what is sent; None for one that another client sent.
    """

    def __init__(self, gateways: Gateways[_G], api_key: str, request: Request | None) -> None:
        self._gateways = gateways
        self._gateway = gateways.current
        self._api_key = api_key
        self._request = request

    @property
    def address(self) -> str:
        """Address of the gateway that was called last."""
        return self._gateway.address

    def open(self, step: Step, following: Following) -> Any:
        """A call that streams responses with a chunk."""
        if step.moves:
            self._gateways.leave(self._gateway)
        self._gateway = self._gateways.current
        stub, timeout_s = self._gateway.inference, following.time_left_s(time.monotonic())
        if self._request is None or step.resumes_at is not None:
            resume = inference_pb2.ResumeRequest(request_id=following.request_id, offset=step.resumes_at or 0)
            return stub.Resume(resume, metadata=metadata(self._api_key), timeout=timeout_s)
        sent_as = metadata(
            self._api_key,
            following.request_id,
            priority=self._request.priority,
            idempotency_key=following.idempotency_key,
        )
        if isinstance(self._request, inference_pb2.ChatRequest):
            return stub.Chat(self._request, metadata=sent_as, timeout=timeout_s)
        return stub.Generate(self._request, metadata=sent_as, timeout=timeout_s)


def metadata(api_key: str, request_id: str = "", *, priority: int = 0, idempotency_key: str = "") -> Metadata:
    """Metadata of a call; a call that sends a request also has its id and its priority: a busy gateway
    takes urgent calls first, before it reads them. By the key it knows a request that is sent again.
    """
    pairs = (
        ("authorization", f"Bearer {api_key}"),
        ("x-request-id", request_id),
        ("idempotency-key", idempotency_key),
        ("x-inferflux-priority", str(priority) if priority else ""),
    )
    return tuple((key, value) for key, value in pairs if value)
